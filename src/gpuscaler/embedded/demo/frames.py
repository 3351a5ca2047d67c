"""A snapshot of a demo at one moment, as data that any display can be drawn from."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.words import format_duration
from gpuscaler.control.records.words import format_offering as named
from gpuscaler.embedded.demo.tally import GPU
from gpuscaler.embedded.nodes.machines import name_of
from gpuscaler.lifecycle.memory import state_of
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.well_known import ARRIVING_TAINT, LEAVING_TAINT
from gpuscaler.planning.plans import Reason
from gpuscaler.planning.state.boot_times import forecast
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.machines import CloudMachine


class Machine(Struct, frozen=True, gc=False):
    """One machine with its GPUs by state; a ``cpu_only`` machine counts as one. A machine that is only ordered has no name yet."""

    name: str
    pool: str
    instance_type: str
    market: str
    zone: str
    used: int = 0
    idle: int = 0
    arriving: int = 0
    leaving: int = 0
    cpu_only: bool = False


class Pending(Struct, frozen=True, gc=False):
    """A pod without a node: how long it has been pending, and what it waits for, in the controller's words."""

    key: str
    gpus: int
    seconds: float
    why: str


class PoolView(Struct, frozen=True, gc=False):
    """A pool, its machines, and how many of its ``offerings`` are not tried at the moment because they refused.

    ``gpus`` says whether its machines have any GPUs.
    """

    name: str
    machines: tuple[Machine, ...]
    gpus: bool
    offerings: int
    refused: int


class Frame(Struct, frozen=True, gc=False):
    """One moment, ``elapsed`` seconds after the start; money is in US dollars.

    ``behind`` is by how many seconds the clock lags at its ``speed``, ``troubles`` the current problems, ``server`` the URL of the
    API server, ``happenings`` the newest events.
    """

    elapsed: float
    span: float
    speed: float
    behind: float
    pools: tuple[PoolView, ...]
    pending: tuple[Pending, ...]
    running: int
    finished: int
    dollars_per_hour: float
    spent: float
    troubles: tuple[str, ...]
    server: str
    happenings: tuple[HistoryEvent, ...]

    @property
    def gpus(self) -> tuple[int, int, int, int]:
        """The numbers of GPUs that are used, idle, arriving and leaving."""
        machines = [machine for pool in self.pools for machine in pool.machines if not machine.cpu_only]
        used, idle = sum(machine.used for machine in machines), sum(machine.idle for machine in machines)
        return used, idle, sum(machine.arriving for machine in machines), sum(machine.leaving for machine in machines)


def pools_of(cluster: Cluster, latest: Latest, core: SimulatedCloud, now: float) -> tuple[PoolView, ...]:
    """All pools of the policy with the cloud's machines, what runs on their nodes, and ordered machines without a name."""
    policy = latest.policy
    if policy is None:
        return ()
    ledger = latest.memory.ledger
    leaving = {removal.node for removal in ledger.leaving}
    machines: dict[str, list[Machine]] = {pool.name: [] for pool in policy.pools}
    for machine in core.list():
        if machine.offering.pool in machines:
            machines[machine.offering.pool].append(_machine(machine, cluster, leaving))
    sizes = {offering.key: offering.allocatable.get(GPU, 0) for offering in policy.offerings.values()}
    for coming in ledger.coming:
        if not coming.instance and coming.key.pool in machines:
            pool, market, kind, zone = coming.key
            gpus = sizes.get(coming.key, 0)
            machines[pool].append(Machine("", pool, kind, market, zone, arriving=max(1, gpus), cpu_only=not gpus))
    blocked = state_of(latest.memory, policy, now).blocked_offerings
    return tuple(
        PoolView(
            name=pool.name,
            machines=tuple(machines[pool.name]),
            gpus=any(sizes[offering.key] for offering in pool.offerings),
            offerings=len(pool.offerings),
            refused=sum(offering.key in blocked for offering in pool.offerings),
        )
        for pool in policy.pools
    )


def _machine(machine: CloudMachine, cluster: Cluster, leaving: set[str]) -> Machine:
    pool, market, kind, zone = machine.offering.key
    name = name_of(machine)
    gpus = machine.offering.allocatable.get(GPU, 0)
    pods = cluster.on_node.get(name, {}).values()
    used = min(gpus, sum(pod.spec.requests.get(GPU, 0) for pod in pods)) if gpus else min(1, len(pods))
    rest = _state(machine, cluster.nodes.get(name), leaving)
    counts = {"used": used, rest: max(1, gpus) - used}
    return Machine(name, pool, kind, market, zone, cpu_only=not gpus, **counts)


def _state(machine: CloudMachine, node: Node | None, leaving: set[str]) -> str:
    """The state of the part of a machine that no pod uses."""
    taints = {taint.key for taint in node.taints} if node is not None else set()
    if name_of(machine) in leaving or LEAVING_TAINT in taints:
        return "leaving"
    if node is None or ARRIVING_TAINT in taints or node.allocatable.get(GPU, 0) < machine.offering.allocatable.get(GPU, 0):
        return "arriving"
    return "idle"


def pending_of(cluster: Cluster, latest: Latest, now: float) -> tuple[Pending, ...]:
    """Pods without a node; those that have been pending longest come first."""
    waits_for = _PendingReasons(latest, now)
    waiting = [pod for bucket in cluster.unbound.values() for pod in bucket.pods.values() if not pod.deleted]
    return tuple(
        Pending(pod.key, pod.spec.requests.get(GPU, 0), max(0.0, now - pod.created), waits_for.describe(pod.key))
        for pod in sorted(waiting, key=lambda pod: (pod.created, pod.key))
    )


class _PendingReasons:
    """What each pod waits for, as the controller sees it."""

    def __init__(self, latest: Latest, now: float) -> None:
        ledger, self._boots, self._now = latest.memory.ledger, latest.memory.boots, now
        self._coming = {pod: machine for machine in ledger.coming for pod in machine.pods}
        self._promised = {pod: promise.node for promise in ledger.promises for pod in promise.pods}
        self._known = {machine.id: machine for machine in ledger.coming}
        self._placed = {placement.pod: placement.node for placement in latest.plan.placements}
        self._unplaced: Mapping[str, tuple[Reason, ...]] = {unplaced.pod: unplaced.reasons for unplaced in latest.plan.unplaced}

    def describe(self, pod: str) -> str:
        if pod in self._promised:
            return f"node {self._promised[pod]} is being opened for it"
        if (machine := self._coming.get(pod)) is not None:
            return self._of_machine(machine)
        if (place := self._placed.get(pod)) is not None:
            # A placement on a machine that is not a node yet names the machine by its id in the ledger.
            return self._of_machine(self._known[place]) if place in self._known else f"there is room on node {place}"
        if pod in self._unplaced:
            return "; ".join(f"pool {reason.pool}: {reason.detail}" for reason in self._unplaced[pod]) or "there is no pool"
        return "not planned yet"

    def _of_machine(self, machine: ledger.OrderedMachine) -> str:
        if not machine.instance:
            return f"{named(machine.key)} is ordered"
        left = machine.began + forecast(self._boots, machine.key).typical - self._now
        return f"{named(machine.key)} is on its way" + (f", ready in about {format_duration(left)}" if left >= 1 else ", due any moment")
