"""Match the machines of the ledger with the cluster and the cloud's list: their ids, nodes and readiness, and the ones that never came."""

import math
from collections.abc import Mapping, Set
from functools import cached_property

from msgspec import Struct

from gpuscaler.lifecycle.answers import events_of_absence
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.observed.promised_pods import pending_pods
from gpuscaler.lifecycle.registration.faulty_machines import FAULT_SECONDS, find_faults, is_hopeless, note_faults
from gpuscaler.lifecycle.registration.futile_launches import FailingRelaunches
from gpuscaler.lifecycle.registration.readiness import NOTHING, Lack, find_lack, is_divided, requested_resources
from gpuscaler.lifecycle.registration.unshown_resources import shows_no_gpus
from gpuscaler.lifecycle.termination.starting import Overdue
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import SPOT
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.idle import leaves_with_machine
from gpuscaler.planning.capacity.similar_offerings import assumed_offering
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.boot_times import Arrived
from gpuscaler.planning.state.breakers import Breakers, is_open
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.draft import Draft
from gpuscaler.planning.state.ledger.entries import SKEW_SECONDS
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, Ledger, Order, OrderedMachine

NO_BREAKERS = Breakers()
#: How long a registered machine stays closed for a gang whose other pods have no machines yet. Then the machine is ended.
GANG_SECONDS = 600.0
#: How long a registered machine that shows only parts of its accelerators is expected to show whole ones, in seconds.
DIVIDED_SECONDS = 60.0


class Waits(Struct, frozen=True, gc=False):
    """Time-outs and times for ordered machines, in seconds.

    A machine has ``register`` to become a node, and then ``ready`` to show all promised resources. ``lag`` is how old the cloud's list may
    be. With ``keeps_tokens`` the cloud answers a repeated order without buying again. ``began`` is when this process started: earlier times
    come from other clocks, which may be minutes off. ``observed_until`` is the time of the last confirmed observation of the cluster;
    time-outs are measured up to it.
    """

    register: float = 900.0
    ready: float = 900.0
    lag: float = 0.0
    keeps_tokens: bool = True
    began: float = 0.0
    observed_until: float = math.inf


class Arrivals(Struct, frozen=True, gc=False):
    """What became of ordered machines: ``steps`` are events for the ledger, ``breaker_events`` for breakers, ``arrived`` for boot times.

    ``overdue`` are machines to end, ``unfilled`` the tokens of orders whose missing machines are withdrawn. ``lacks`` says, by machine, why
    its node is not ready yet, and ``faults`` what the cloud reports about a machine without a node.
    """

    steps: tuple[ledger.Event, ...] = ()
    breaker_events: tuple[offering_events.Event, ...] = ()
    arrived: tuple[Arrived, ...] = ()
    overdue: tuple[Overdue, ...] = ()
    unfilled: tuple[str, ...] = ()
    lacks: Mapping[str, str] = {}
    faults: Mapping[str, str] = {}


def find_arrivals(
    ledger: Ledger,
    cluster: Cluster,
    inventory: Inventory | None,
    policy: Policy,
    *,
    waits: Waits,
    now: float,
    index: MachineIndex,
    exposed: Set[str] = frozenset(),
    breakers: Breakers = NO_BREAKERS,
) -> Arrivals:
    """Find what became of the machines of ``ledger``. Without an ``inventory`` only the cluster counts, and no machine is reported as gone.

    ``index`` is the index of ``cluster`` and ``inventory``. ``exposed`` are machines, by id, that must not open before they are protected
    from being ended by their group. ``breakers`` name the types that never show their GPUs.
    """
    registration = _Registration(ledger, cluster, policy, waits=waits, now=now, index=index, exposed=exposed, breakers=breakers)
    registration.assign_instances(inventory)
    registration.correct_offerings()
    if inventory is not None:
        registration.give_up()
        registration.drop_vanished(inventory)
    registration.register()
    if inventory is not None:
        registration.note_faults(inventory)
    registration.time_out()
    return Arrivals(
        tuple(registration.steps),
        tuple(registration.breaker_events),
        tuple(registration.arrived),
        tuple(registration.overdue),
        tuple(registration.unfilled),
        registration.lacks,
        registration.faults,
    )


class _Registration(Draft):
    """One pass over machines on their way."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        policy: Policy,
        *,
        waits: Waits,
        now: float,
        index: MachineIndex,
        exposed: Set[str],
        breakers: Breakers,
    ) -> None:
        super().__init__(ledger)
        self.cluster = cluster
        self.policy = policy
        self.pools = {pool.name: pool for pool in policy.pools}
        self.offerings = policy.offerings
        self.waits = waits
        self.now = now
        self.index = index
        self.exposed = exposed
        self.breakers = breakers
        self.breaker_events: list[offering_events.Event] = []
        self.arrived: list[Arrived] = []
        self.overdue: list[Overdue] = []
        self.unfilled: list[str] = []
        self.lacks: dict[str, str] = {}
        self.faults: Mapping[str, str] = {}
        #: When the cloud's list was read.
        self.listed_at = -math.inf

    def assign_instances(self, inventory: Inventory | None) -> None:
        """Match instances of the cloud's list to machines whose order was accepted or is in doubt."""
        orders = {order.token: order for order in self.ledger.orders if order.state != ledger.INTENDED}
        if not orders:
            return
        taken = (
            {machine.instance for machine in self.ledger.coming if machine.instance}
            | {removal.instance for removal in self.ledger.leaving}
            | self.ledger.departed_ids
        )
        unclaimed = (instance for instance in self.index.listed.alive.values() if instance.id not in taken)
        free = sorted(unclaimed, key=lambda instance: (instance.launched, instance.id))
        for machine in self.ledger.coming:
            if machine.instance or machine.order not in orders:
                continue
            instance = next((candidate for candidate in free if self._is_of(candidate, machine, orders[machine.order])), None)
            if instance is not None:
                free.remove(instance)
                self.breaker_events.append(offering_events.Granted(instance.key, self.now))
                self.fold(ledger.Found(machine.id, instance.id, instance.key, self.now, instance.launched))
        for token, order in orders.items():
            self._settle(token, order, inventory)

    def _is_of(self, instance: Instance, machine: OrderedMachine, order: Order) -> bool:
        """Whether an unclaimed instance may be ``machine``: it is of one of its offerings, or of its pool but of no known offering."""
        if instance.token:
            return instance.token == order.token
        if any(0 < node.created <= order.at for node in self.index.by_machine.get(instance.id, ())):
            # It was a node when this order was decided. A machine that boots in seconds is younger than clouds' clocks are exact, and one
            # that is taken for each order after the other would be ordered again and again.
            return False
        is_undescribed = instance.pool == order.pool and instance.key not in self.offerings
        return (is_undescribed or instance.key in machine.offerings) and instance.launched >= order.at - SKEW_SECONDS

    def correct_offerings(self) -> None:
        """Correct the offerings of machines that were granted as another offering than the cloud lists.

        A group that chooses among markets reports only later in which market it launched a machine.
        """
        for machine in self.ledger.coming:
            listed = self.index.listed.alive.get(machine.instance) if machine.instance else None
            if listed is not None and listed.key != machine.key and listed.key in self.offerings:
                self.fold(ledger.Recognised(machine.id, listed.key))

    def _settle(self, token: str, order: Order, inventory: Inventory | None) -> None:
        """Give up the missing machines of an order: if its answer was lost, once the list would show them; else when they are overdue."""
        if all(machine.order != token or machine.instance for machine in self.ledger.coming):
            return
        if order.state == ACCEPTED:
            if inventory is None or min(self.now, inventory.at) < order.since + self.waits.register:
                return
            self.breaker_events += [offering_events.Failed(order.offerings[0], self.now, f"order {token} was accepted but not filled")]
        elif self.waits.keeps_tokens or inventory is None or inventory.at < order.since + self.waits.lag + SKEW_SECONDS:
            return
        self.breaker_events += [offering_events.Dropped(key, self.now) for key in order.offerings]
        self.unfilled.append(token)
        self.fold(ledger.Settled(token))

    def give_up(self) -> None:
        """Count machines that their group gave up during their start as failed, also unordered ones: the group launches others itself."""
        for instance in self.index.listed.given_up:
            if instance.pool in self.pools:
                self.breaker_events.append(
                    offering_events.Absent(instance.key, instance.launched, self.now, f"it was ended before it opened: {instance.doubt}")
                )

    def drop_vanished(self, inventory: Inventory) -> None:
        """Drop machines that the cloud no longer lists, unless their node is Ready."""
        by_group = {instance.id for instance in self.index.listed.ended if not instance.doubt}
        for machine in self.ledger.coming:
            node = self.cluster.nodes.get(machine.node)
            if machine.instance in by_group and node is None:
                # A machine that its group ends by itself, perhaps to balance zones, says nothing about the offering.
                self.fold(ledger.Lost(machine.id))
                continue
            if not machine.instance or machine.instance in self.index.listed.alive or (node is not None and node.ready):
                continue
            if inventory.at > max(machine.granted, self.waits.began) + self.waits.lag + SKEW_SECONDS:
                ended = self.index.listed.by_id.get(machine.instance)
                why = f": {ended.doubt or ended.fault}" if ended is not None and (ended.doubt or ended.fault) else ""
                if machine.order and not machine.node and machine.key.market != SPOT and not (ended is not None and ended.doubt):
                    # Spot may just have been reclaimed; in other markets an early end means that no machine of this pool's setup starts.
                    self.breaker_events.append(
                        offering_events.Absent(machine.key, machine.asked, self.now, f"it ended before it became a node{why}")
                    )
                self.breaker_events.append(offering_events.Failed(machine.key, self.now, f"it ended before it opened{why}"))
                self.fold(ledger.Lost(machine.id))

    def register(self) -> None:
        """Find the nodes of machines, and those that are ready."""
        waiting = [machine for machine in self.ledger.coming if not machine.ready]
        if not waiting:
            return
        for machine in waiting:
            nodes = self.index.by_machine.get(machine.instance, ())
            if not nodes:
                continue
            node = nodes[-1]
            registered = machine.registered
            if not machine.node:
                registered = self.now
                self.fold(ledger.Registered(machine.id, node.name, self.now))
                if not self.why_in_doubt(machine):
                    self.breaker_events.append(offering_events.Registered(machine.key, self.now))
            lack = self.lack_of(machine, node)
            if lack is not None:
                self.lacks[machine.id] = lack.words
            else:
                self.fold(ledger.Ready(machine.id, self.now))
                shows = frozenset(name for name, amount in node.allocatable.items() if amount)
                self.breaker_events.append(offering_events.Ready(machine.key, self.now, shows))
                self._learn_boot_time(machine, node, registered)

    def note_faults(self, inventory: Inventory) -> None:
        """Note since when the cloud has reported faults of machines without a node."""
        self.listed_at, self.faults = inventory.at, find_faults(self.ledger, self.index)
        for step in note_faults(self.ledger, self.faults, inventory.at):
            self.fold(step)

    def why_in_doubt(self, machine: OrderedMachine) -> str:
        """Return why the group of a machine may still give it up; empty if it may not."""
        listed = self.index.listed.alive.get(machine.instance)
        return listed.doubt if listed is not None else ""

    def lack_of(self, machine: OrderedMachine, node: Node) -> Lack | None:
        """Return what the node of a machine still lacks; None if it is ready."""
        if machine.instance in self.exposed:
            return Lack("its group balances zones, and it is not protected from scale-in")
        if doubt := self.why_in_doubt(machine):
            return Lack(doubt)
        offering = assumed_offering(machine.key, self.offerings)
        what = find_lack(node, offering, self.pools.get(machine.key.pool), requested_resources(machine.pods, self.cluster))
        if what is None or self.now < machine.registered + DIVIDED_SECONDS:
            return what
        # A machine with divided devices is of use to other pods, and the template of the next one is learned from it.
        return None if is_divided(what, node, offering) else what

    def _learn_boot_time(self, machine: OrderedMachine, node: Node, registered: float) -> None:
        """Learn the boot time of ``machine``, unless it became ready while this process was down, or was a node before it was granted."""
        if not machine.order and node.created < machine.granted:
            return
        registered_at = node.created if machine.began < node.created < registered else registered
        if registered_at >= self.waits.began or self.now > self.waits.began + SKEW_SECONDS:
            self.arrived.append(Arrived(machine.key, registered_at - machine.began, self.now - registered_at))

    def time_out(self) -> None:
        """End machines that are overdue."""
        observed_at = min(self.now, self.waits.observed_until)
        lacks: Lack | None = None
        promised = {promise.node for promise in self.ledger.promises}
        for machine in self.ledger.coming:
            over = (
                machine.node
                and observed_at >= machine.registered + GANG_SECONDS
                and machine.node not in promised
                and not self.is_used(machine.node)
            )
            if over and is_half_gang(machine, self.cluster):
                # The missing pods of the gang say nothing about this machine.
                self.overdue.append(Overdue(machine, f"the rest of gang {machine.gang} got no machines within {GANG_SECONDS:g} s"))
                self.fold(ledger.Lost(machine.id))
                continue
            if not machine.instance or machine.ready or (not machine.order and self.is_used(machine.node)):
                continue
            if observed_at >= machine.granted and self.is_relaunched(machine):
                reason = f"machines of pool {machine.key.pool} keep failing, and the cloud launches new ones by itself"
                self.overdue.append(Overdue(machine, reason))
                self.fold(ledger.Lost(machine.id))
                continue
            fault = f": the cloud reports {self.faults[machine.id]}" if machine.id in self.faults else ""
            if not machine.node and observed_at >= machine.granted + self.waits.register:
                reason = f"machine {machine.instance} did not become a node within {self.waits.register:g} s (pace.register_timeout){fault}"
            elif not machine.node and is_hopeless(machine, min(observed_at, self.listed_at), self.index):
                reason = f"machine {machine.instance} did not become a node within {FAULT_SECONDS:g} s after it failed{fault}"
            elif machine.node and observed_at >= machine.registered + self.waits.ready:
                node = self.cluster.nodes.get(machine.node)
                lacks = self.lack_of(machine, node) if node is not None else Lack("its Node is gone")
                if lacks is not None and lacks.resource and self.is_only_replaced(machine):
                    continue
                reason = (
                    f"node {machine.node} was not ready within {self.waits.ready:g} s (pace.ready_timeout): "
                    f"{lacks.words if lacks else NOTHING}"
                )
            else:
                continue
            self.overdue.append(Overdue(machine, reason))
            if machine.order and not machine.node:
                # A machine that was not ordered here may have been a node for a long time, until its Node was deleted.
                self.breaker_events += events_of_absence(machine.key, machine.asked, self.now, reason)
            elif machine.order:
                self.breaker_events.append(failure_event(machine, self.now, reason, lacks))
            elif machine.node and lacks is not None and lacks.resource:
                # Even a machine that was not ordered here predicts what the next ones show.
                self.breaker_events.append(failure_event(machine, self.now, reason, lacks))
            self.fold(ledger.Lost(machine.id))

    def is_only_replaced(self, machine: OrderedMachine) -> bool:
        """Whether a group would only replace an unordered machine by another of a type that never shows its GPUs, if it were ended.

        Such a machine is kept until the breaker of its type lets another one be tried.
        """
        pool, breaker = self.pools.get(machine.key.pool), shows_no_gpus(self.breakers, machine.key)
        if machine.order or pool is None or breaker is None or not is_open(breaker, self.now):
            return False
        return sum(listed.pool == pool.name for listed in self.index.listed.alive.values()) <= pool.min

    def is_relaunched(self, machine: OrderedMachine) -> bool:
        """Whether a group has launched ``machine`` by itself and it is expected to fail like the machines before.

        The group launches machines up to its desired capacity, which is lowered when the machine is ended.
        """
        pool, listed = self.pools.get(machine.key.pool), self.index.listed.alive.get(machine.instance)
        if machine.order or pool is None or listed is None or (machine.node and not listed.doubt):
            return False
        return self.failing_relaunches.contains(listed) and len(self.index.listed.by_pool.get(pool.name, ())) > pool.min

    @cached_property
    def failing_relaunches(self) -> FailingRelaunches:
        return FailingRelaunches(self.ledger, self.index, self.breakers, self.now)

    def is_used(self, node: str) -> bool:
        """Whether a closed node runs pods other than those that leave with it: a machine not ordered here may have been open before."""
        return any(not leaves_with_machine(pod, self.now) for pod in self.cluster.on_node.get(node, {}).values())


def is_half_gang(machine: OrderedMachine, cluster: Cluster) -> bool:
    """Whether a machine was bought for a pending gang that does not have machines for all pods, so that it should not open for some.

    If pods of the gang run there already, the gang has started, whichever of its pods are pending.
    """
    if not machine.gang or any(pending_pods(machine.pods, cluster)):
        return False
    if any(pod.gang == machine.gang for pod in cluster.on_node.get(machine.node, {}).values()):
        return False
    namespace, _, gang = machine.gang.partition("/")
    demand = ((key, bucket.sample) for key, bucket in cluster.unbound.items() if key.options.gang == gang)
    return any(pod.namespace == namespace and key.unschedulable and not key.terminating for key, pod in demand)


def failure_event(machine: OrderedMachine, now: float, reason: str, lacks: Lack | None) -> offering_events.Event:
    """Return the event for the offering of a machine that was ended because it was not ready in time."""
    if lacks is not None and lacks.resource:
        return offering_events.Lacking(machine.key, now, lacks.resource, reason)
    return offering_events.Failed(machine.key, now, reason)
