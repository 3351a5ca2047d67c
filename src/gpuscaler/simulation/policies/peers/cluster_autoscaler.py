"""A model of Cluster Autoscaler, as a policy of a replay.

Source: kubernetes/autoscaler 1.35, ``cluster-autoscaler/core/static_autoscaler.go`` (the loop), ``clusterstate``, ``estimator``,
``expander``, ``core/scaledown``. Each offering of the pools is one node group, an Auto Scaling group of one type in one zone, as its
documentation recommends for GPU groups. The model has:

- the loop's interval;
- pods that fit existing or upcoming nodes are no demand;
- new pods wait for more pods, longer with GPUs;
- one group per scale-up, chosen by the expander;
- time-outs, error signals, back-off;
- nodes that were unneeded long enough are removed, a limited number at once, and none for a while after any scale-up: empty ones, and one
  at a time of those with low utilization and pods that fit elsewhere (see :mod:`~gpuscaler.simulation.policies.peers.draining`);
- soft taints on unneeded nodes, of which each loop sets or lifts a limited number (``core/scaledown/actuation/softtaint.go``).

Interrupted spot machines are drained at the notice, as the AWS Node Termination Handler does. Pods that their owners do not allow to move
count as annotated ``cluster-autoscaler.kubernetes.io/safe-to-evict: "false"``, as recommended to users of batch jobs: no node with one of
them is drained.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import PlannedRemoval
from gpuscaler.simulation.policies.peers.books import Backoff, ScaleUp, add_upcoming
from gpuscaler.simulation.policies.peers.draining import Draining
from gpuscaler.simulation.policies.peers.estimator import estimate
from gpuscaler.simulation.policies.peers.expanders import Option, expander_by_name
from gpuscaler.simulation.policies.peers.settings import ClusterAutoscalerSettings
from gpuscaler.simulation.world.autoscaler import Decisions, Intent, Moment, ObservedMachine, Pending, Purchase, View
from gpuscaler.simulation.world.scheduler import Scheduler

NEVER = math.inf


class Demand(NamedTuple):
    """Pending pods (and their number) that fit no existing or upcoming node; ``used`` nodes would take the others.

    ``room`` is the room left after placing those, None if no pod waits; ``coming`` are the nodes in it that are not ready.
    """

    unplaced: list[tuple[Pending, int]]
    used: set[str]
    room: Scheduler | None = None
    coming: tuple[str, ...] = ()


class ClusterAutoscaler:
    """See the module. A pool's ``max`` bounds its groups together, its ``min`` what scale-down leaves of it."""

    name = "cluster-autoscaler"
    steers = False
    soft_taint_shares = ()

    def __init__(self, policy: Policy, settings: ClusterAutoscalerSettings | None = None, *, seed: int = 0) -> None:
        self._settings = settings or ClusterAutoscalerSettings()
        self._pools = {pool.name: pool for pool in policy.pools}
        self._groups = policy.offerings
        self._choose = expander_by_name(self._settings.expander, seed=seed)
        self._backoff = Backoff(self._settings.backoff)
        self._draining = Draining(
            threshold=self._settings.scale_down_utilization_threshold,
            gpu_threshold=self._settings.scale_down_gpu_utilization_threshold,
            recheck=self._settings.unremovable_recheck,
        )
        self._orders: dict[str, ScaleUp] = {}
        self._asked = 0
        #: Until when the machines of a raised group are expected.
        self._expected: dict[OfferingKey, float] = {}
        self._unneeded: dict[str, float] = {}
        #: Nodes with the soft taint DeletionCandidateOfClusterAutoscaler.
        self._marked: set[str] = set()
        #: Time of the last event that may change which nodes are unneeded.
        self._news = -NEVER
        self._interrupted: list[str] = []
        self._last_scale_up = -NEVER
        self._began: float | None = None
        self._last_loop = -NEVER
        self._decide_at: float | None = None

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        """Return nothing: Cluster Autoscaler does not raise a group to its minimum (``--enforce-node-group-min-size`` is off)."""
        return ()

    @property
    def decide_at(self) -> float | None:
        return self._decide_at

    def observe(self, moment: Moment, view: View) -> None:
        if self._began is None:
            self._began = moment.now
        for answer in moment.answers:
            order = self._orders[answer.purchase]
            order.missing -= len(answer.machines)
            order.refused |= bool(answer.refusals)
            if order.missing <= 0:
                del self._orders[answer.purchase]
        self._interrupted += [notice.machine.id for notice in moment.notices]
        news = (moment.arrived, moment.evicted, moment.answers, moment.registered, moment.opened, moment.idled, moment.notices, moment.lost)
        if any(news) or moment.removed or (moment.finished and next(iter(view.movable()), None) is not None):
            self._news = moment.now
            tick = self._tick(moment.now)
            self._decide_at = tick if self._decide_at is None else min(tick, self._decide_at)

    def decide(self, view: View, now: float) -> Decisions:
        """Run one loop."""
        self._last_loop = now
        machines = list(view.machines())
        removals = [PlannedRemoval(name, "interrupted: drained at the notice") for name in self._interrupted if view.node(name) is not None]
        self._interrupted.clear()
        self._backoff.forget(now)
        withdrawals, unregistered = self._settle_orders(machines, now)
        removals += [PlannedRemoval(observed.machine.id, "did not register in time") for observed in unregistered]
        removed = {removal.node for removal in removals}
        machines = [observed for observed in machines if observed.machine.id not in removed]
        demand = self._demand(view, machines)
        unplaced = demand.unplaced
        wake = [self._next_deadline(now)]
        purchase = None
        wait_until = self._wait_for_more_pods_until(unplaced, now)
        if wait_until is not None:
            wake.append(wait_until)
        elif unplaced:
            purchase = self._scale_up(unplaced, machines, now)
            wake += self._back_offs(now)
        if purchase is not None:
            self._last_scale_up = now
            wake.append(now + self._settings.scan_interval)
        # Unneeded nodes are determined in every loop; while pods are too new nothing is removed.
        unneeded, next_removal = self._scale_down(view, machines, demand, now)
        if wait_until is None:
            removals += unneeded
            wake.append(next_removal)
        marks, more = self._soft_taints(machines, {removal.node for removal in removals})
        if more:
            wake.append(now + self._settings.scan_interval)
        at = min(wake)
        self._decide_at = None if at == NEVER else self._tick(at)
        return Decisions(withdrawals=tuple(withdrawals), purchases=(purchase,) if purchase else (), removals=tuple(removals), marks=marks)

    def _tick(self, at: float) -> float:
        """The first loop at or after ``at`` that has not run yet."""
        assert self._began is not None, "loops begin with the first event"
        interval = self._settings.scan_interval
        # Sums of times are rounded: a loop that runs a microsecond early would find nothing due.
        at = max(at, self._last_loop + interval / 2)
        return self._began + math.ceil((at - self._began) / interval - 1e-6) * interval

    # Orders

    def _settle_orders(self, machines: list[ObservedMachine], now: float) -> tuple[list[str], list[ObservedMachine]]:
        """Settle scale-ups that are done, failed or late. Returns orders to withdraw and machines to remove."""
        rules = self._settings
        upcoming = self._upcoming(machines)
        for group, until in list(self._expected.items()):
            if not upcoming[group]:
                del self._expected[group]
                self._backoff.clear(group)
            elif until < now:
                del self._expected[group]
                self._backoff.fail(group, now)
        withdrawn = []
        for order in list(self._orders.values()):
            signalled = rules.error_signal is not None and order.refused and order.asked_at + rules.error_signal <= now
            if signalled or order.asked_at + rules.max_node_provision_time < now:
                del self._orders[order.id]
                withdrawn.append(order.id)
            if signalled:
                self._backoff.fail(order.group, now)
                self._expected.pop(order.group, None)
        unregistered = [
            observed for observed in machines if observed.registered is None and observed.bought + rules.max_node_provision_time < now
        ]
        return withdrawn, unregistered

    def _upcoming(self, machines: Iterable[ObservedMachine]) -> Counter[OfferingKey]:
        """Return how many machines of each group are expected and not ready."""
        upcoming: Counter[OfferingKey] = Counter()
        for order in self._orders.values():
            upcoming[order.group] += order.missing
        for observed in machines:
            if not self._ready(observed):
                upcoming[observed.offering.key] += 1
        return upcoming

    def _ready(self, observed: ObservedMachine) -> bool:
        return observed.ready is not None or (observed.registered is not None and not self._settings.gpu_label)

    def _next_deadline(self, now: float) -> float:
        """Return when some open scale-up times out at the latest."""
        rules = self._settings
        # A moment later: a time-out applies after its time, not at it.
        deadlines = [until + 0.001 for until in self._expected.values()]
        for order in self._orders.values():
            deadlines.append(order.asked_at + rules.max_node_provision_time + 0.001)
            if rules.error_signal is not None and order.refused:
                deadlines.append(order.asked_at + rules.error_signal)
        return min((at for at in deadlines if at > now), default=NEVER)

    # Scale-up

    def _demand(self, view: View, machines: list[ObservedMachine]) -> Demand:
        pending = view.pending()
        if not pending:
            return Demand([], set())
        room, coming = view.room(), []
        for observed in machines:
            if not self._ready(observed):
                add_upcoming(room, observed)
                coming.append(observed.machine.id)
        for order in self._orders.values():
            for number in range(order.missing):
                room.add(f"{order.id}/{number}", self._groups[order.group])
                coming.append(f"{order.id}/{number}")
        used: set[str] = set()
        unplaced = []
        for group in sorted(pending, key=lambda group: (-group.spec.priority, group.oldest, group.pods[0])):
            placed = 0
            while placed < len(group.pods) and (node := room.first(group.spec)) is not None:
                room.place(group.spec, node)
                used.add(node)
                placed += 1
            if placed < len(group.pods):
                unplaced.append((group, len(group.pods) - placed))
        return Demand(unplaced, used, room, tuple(coming))

    def _wait_for_more_pods_until(self, unplaced: list[tuple[Pending, int]], now: float) -> float | None:
        """Until when to wait for more pods before buying for these; None if they are old enough."""
        if not unplaced:
            return None
        oldest = [(group.oldest if count == len(group.pods) else group.newest, group.spec) for group, count in unplaced]
        until = min(at for at, _ in oldest) + self._settings.new_pods
        with_gpus = [at for at, spec in oldest if any("/" in name and amount for name, amount in spec.requests.items())]
        if with_gpus:
            until = max(until, min(with_gpus) + self._settings.new_gpu_pods)
        return until if until > now else None

    def _scale_up(self, unplaced: list[tuple[Pending, int]], machines: list[ObservedMachine], now: float) -> Purchase | None:
        pods: dict[str, tuple[PodSpec, int]] = {}
        for group, count in unplaced:
            previous = pods.get(group.spec.digest, (group.spec, 0))
            pods[group.spec.digest] = (group.spec, previous[1] + count)
        sizes = Counter(observed.offering.pool for observed in machines)
        for order in self._orders.values():
            sizes[order.group[0]] += order.missing
        options = []
        for key, offering in self._groups.items():
            limit = self._pools[offering.pool].max
            most = self._settings.max_nodes_per_scaleup if limit is None else limit - sizes[offering.pool]
            if most > 0 and self._backoff.until(key, now) is None:
                option = estimate(offering, tuple(pods.values()), most=min(most, self._settings.max_nodes_per_scaleup))
                if option is not None:
                    options.append(option)
        return self._order(self._choose(options), now) if options else None

    def _order(self, option: Option, now: float) -> Purchase:
        self._asked += 1
        group, name = option.offering.key, f"scale-up-{self._asked}"
        self._orders[name] = ScaleUp(name, group, option.count, now)
        self._expected[group] = now + self._settings.max_node_provision_time
        number = sum(count for _, count in option.pods)
        intents = tuple(Intent(f"{name}#{machine}") for machine in range(1, option.count + 1))
        return Purchase(name, (group,), standing=True, intents=intents, why=f"{number} pending pods fit no node")

    def _back_offs(self, now: float) -> list[float]:
        """Return when groups in back-off may be asked again."""
        ends = (self._backoff.until(group, now) for group in self._groups)
        return [end + 0.001 for end in ends if end is not None]

    # Scale-down

    def _scale_down(self, view: View, machines: list[ObservedMachine], demand: Demand, now: float) -> tuple[list[PlannedRemoval], float]:
        """Return the nodes to remove now, and when the next may follow."""
        rules = self._settings
        empty = [
            observed
            for observed in machines
            if self._ready(observed) and not observed.pods and not observed.closed and observed.node not in demand.used
        ]
        little_used, following = self._underutilized(view, machines, empty, demand, now)
        self._unneeded = {observed.node: self._unneeded.get(observed.node, now) for observed in (*empty, *little_used)}
        allowed = self._last_scale_up + rules.scale_down_delay_after_add
        sizes = Counter(observed.offering.pool for observed in machines if observed.registered is not None)
        removals: list[PlannedRemoval] = []
        for group, limit in ((empty, rules.max_empty), (little_used, rules.max_drain)):
            number = 0
            for observed in sorted(group, key=lambda observed: (self._unneeded[observed.node], observed.node)):
                due = max(self._unneeded[observed.node] + rules.scale_down_unneeded_time, allowed)
                if due > now + 0.001:
                    following = min(following, due)
                elif number == limit or len(removals) == rules.max_empty:
                    following = min(following, now + rules.scan_interval)
                elif sizes[observed.offering.pool] > self._pools[observed.offering.pool].min:
                    sizes[observed.offering.pool] -= 1
                    number += 1
                    state = "underutilized" if observed.pods else "empty"
                    removals.append(PlannedRemoval(observed.node, f"{state} for {now - self._unneeded[observed.node]:.0f} s"))
        return removals, following

    def _soft_taints(self, machines: list[ObservedMachine], going: set[str]) -> tuple[tuple[tuple[str, bool], ...], bool]:
        """Soft taints to lift from nodes that are needed again, then to set on unneeded ones, and whether some are left for later."""
        nodes = {observed.node for observed in machines if observed.node and not observed.closed} - going
        self._marked &= nodes
        due = [(name, False) for name in sorted(self._marked - self._unneeded.keys())]
        due += [(name, True) for name in sorted((self._unneeded.keys() & nodes) - self._marked)]
        most = self._settings.max_bulk_soft_taint_count
        for name, unneeded in due[:most]:
            (self._marked.add if unneeded else self._marked.discard)(name)
        return tuple(due[:most]), 0 < most < len(due)

    def _underutilized(
        self, view: View, machines: list[ObservedMachine], empty: list[ObservedMachine], demand: Demand, now: float
    ) -> tuple[list[ObservedMachine], float]:
        """Nodes with pods that could be drained, and when to try others that are not tried now. Empty nodes take no pods."""
        movable = set(view.movable()) - demand.used
        if not movable:
            return [], NEVER
        room = demand.room or view.room()
        unready = demand.coming or tuple(observed.node for observed in machines if observed.node and not self._ready(observed))
        for name in (*unready, *(observed.node for observed in empty)):
            room.close(name)
        nodes = [observed for observed in machines if observed.node in movable and self._ready(observed)]
        nodes.sort(key=lambda observed: observed.node not in self._unneeded)
        # It could not remove more than this many anyway (``unneededNodesLimit``).
        most = len(self._unneeded) + 2 * self._settings.max_empty - len(empty)
        return self._draining.find(nodes, room, most=most, now=now, news=self._news)
