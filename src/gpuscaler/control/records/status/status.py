"""The status: a summary of the latest state, small enough for a ConfigMap. ``gpuscaler status`` prints it, and the gauges show it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.control.loop.cloud import MessageReceipt
from gpuscaler.control.records.costing import ordered_price_range
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.findings import (
    describe_closed_nodes,
    describe_faulty_machines,
    describe_findings,
    describe_released_pool,
    describe_unbound_pools,
)
from gpuscaler.control.records.status.doctor_status import DoctorStatus
from gpuscaler.control.records.status.held import HeldMachines, held_machines
from gpuscaler.control.records.status.misplaced import describe_misplaced
from gpuscaler.control.records.status.removals import RemovalStatus, removal_statuses
from gpuscaler.control.records.words import format_duration, format_offering
from gpuscaler.kube.events import cut_to_bytes
from gpuscaler.lifecycle.memory import breakers_of
from gpuscaler.lifecycle.node_health import device_plugins
from gpuscaler.lifecycle.node_health.unready import describe_unready
from gpuscaler.lifecycle.registration.faulty_machines import FAULT_SECONDS
from gpuscaler.lifecycle.scale_in_protection import describe_groups as uneven
from gpuscaler.lifecycle.steering import opening, windows
from gpuscaler.model.accelerators import ACCELERATORS, GPU_MILLI, count_accelerators, node_accelerators
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import ACTIVITIES, Holds
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy, guessed_offerings
from gpuscaler.model.quantities import format_count
from gpuscaler.planning.capacity.limits import limit_usage
from gpuscaler.planning.capacity.pool_membership import Member, members
from gpuscaler.planning.capacity.similar_offerings import possible_offerings
from gpuscaler.planning.plans import NEVER, Plan, fits_no_pool
from gpuscaler.planning.state.breaker_messages import describe_breaker
from gpuscaler.planning.state.breakers import Breakers, has_enough_strikes, is_open
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

#: The maximum number of entries in a list, of pods named in an entry, and of bytes in a sentence; counts include everything.
MOST, NAMED, SENTENCE = 40, 5, 400


class PoolStatus(Struct, frozen=True, omit_defaults=True):
    """A pool: open machines, ordered machines, machines being removed; ``used`` is the number of GPUs that bound pods request.

    ``way`` is how its machines are bought, if there are several ways.
    """

    name: str
    machines: int = 0
    coming: int = 0
    leaving: int = 0
    min: int = 0
    max: int | None = None
    gpus: int = 0
    used: int = 0
    dollars_per_hour: float = 0.0
    way: str = ""


class MachineCount(Struct, frozen=True):
    """The number of machines of one kind that are ``open``, ``coming`` or ``leaving``."""

    pool: str
    market: str
    instance_type: str
    state: str
    machines: int


class Limit(Struct, frozen=True):
    """A limit over all pools, and how much of it is used, including ordered machines."""

    name: str
    used: float
    most: float


class BreakerStatus(Struct, frozen=True):
    """A breaker that blocks an offering; ``until`` is None if it waits for a change of settings."""

    target: str
    cause: str
    open: bool
    until: float | None
    text: str


class PendingPods(Struct, frozen=True):
    """Pods that are pending for the same reason: their ``count``, and a few names."""

    reason: str
    count: int
    pods: tuple[str, ...]


class StatusEntry(Struct, frozen=True, omit_defaults=True):
    """An event, with its ``decision`` if that is known, or an object that was skipped."""

    about: str
    text: str
    at: float = 0.0
    decision: str = ""


class HoldStatus(Struct, frozen=True):
    """A hold on an activity, ``buying`` or ``removing``; without ``until`` it lasts until the activity is resumed."""

    activity: str
    since: float
    until: float | None
    text: str


class UnreadyNode(Struct, frozen=True, omit_defaults=True):
    """A node that has not been Ready since ``since`` (seconds since the epoch), for long enough to be reported; ``text`` is for people."""

    node: str
    pool: str
    since: float
    dollars_per_hour: float = 0.0
    text: str = ""


class Process(Struct, frozen=True):
    """The process that wrote a status. Its pages are at ``port`` of the loopback ``address`` of ``pod``, or of ``host`` outside a cluster.

    ``port`` is 0 if no pages are served.
    """

    identity: str = ""
    version: str = ""
    pod: str = ""
    namespace: str = ""
    port: int = 0
    address: str = ""
    host: str = ""


class Status(Struct, frozen=True):
    """The whole status. Times are seconds since the epoch; ``at`` is when it was computed."""

    at: float
    leader: Process
    looked_at: float = 0.0
    planned_at: float = 0.0
    nodes: int = 0
    pods: int = 0
    pools: tuple[PoolStatus, ...] = ()
    kinds: tuple[MachineCount, ...] = ()
    limits: tuple[Limit, ...] = ()
    breakers: tuple[BreakerStatus, ...] = ()
    unplaced: int = 0
    coming: int = 0
    waiting: tuple[PendingPods, ...] = ()
    removals: tuple[RemovalStatus, ...] = ()
    happened: tuple[StatusEntry, ...] = ()
    set_aside_count: int = 0
    set_aside: tuple[StatusEntry, ...] = ()
    holds: tuple[HoldStatus, ...] = ()
    troubles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    promises_kept: int = 0
    promises_broken: int = 0
    unready: tuple[UnreadyNode, ...] = ()
    held: tuple[HeldMachines, ...] = ()
    priorities: str = ""
    doctor: DoctorStatus = DoctorStatus()
    test_message: MessageReceipt = MessageReceipt()


def status_of(
    latest: Latest, leader: Process, *, troubles: Iterable[str], happened: Sequence[HistoryEvent], now: float, holds: Holds | None = None
) -> Status:
    """The status at ``now``. The work grows with the number of nodes and pending pods; call it in a thread if there are many."""
    cluster, memory, plan = latest.cluster, latest.memory, latest.plan
    policy = latest.policy or Policy(())
    pool_members = members(cluster.nodes, policy, latest.unlisted)
    account = latest.account
    skipped_objects = (*cluster.set_aside, *account.set_aside)
    coming_nodes = {machine.node for machine in memory.ledger.coming if machine.node}
    leaving = {removal.node for removal in memory.ledger.leaving}
    pools = _pools(policy, cluster, pool_members, memory.ledger, coming_nodes)
    pools = tuple(replace(pool, way=account.ways.get(pool.name, "")) for pool in pools)
    waiting = _pending_pods(latest, now)
    unready = _unready(latest, policy, now)
    in_force = latest.priorities()
    return Status(
        at=now,
        leader=leader,
        looked_at=latest.observed_at,
        planned_at=latest.planned_at,
        nodes=len(cluster.nodes),
        pods=len(cluster.pods),
        pools=pools,
        kinds=_machine_counts(cluster, pool_members, memory.ledger, coming_nodes, leaving),
        limits=_limits(policy, pools, memory.ledger),
        breakers=_breakers(breakers_of(memory, policy, now), now)[:MOST],
        unplaced=len(plan.unplaced),
        coming=sum(len(machine.pods) for machine in memory.ledger.coming),
        waiting=waiting[:MOST],
        removals=removal_statuses(latest, now)[:MOST],
        happened=tuple(
            StatusEntry(event.kind, cut_to_bytes(event.text_with_pods, SENTENCE), event.at, event.decision) for event in happened
        ),
        set_aside_count=len(skipped_objects),
        set_aside=tuple(StatusEntry(skipped.object, cut_to_bytes(skipped.reason, SENTENCE)) for skipped in skipped_objects[:MOST]),
        holds=_holds(holds or Holds(), now),
        troubles=tuple(
            cut_to_bytes(sentence, SENTENCE)
            for sentence in (
                *troubles,
                *describe_unknown_prices(policy),
                *describe_faulty_machines(memory.ledger, latest.faults),
                *(node.text for node in unready),
                *uneven(memory.guarding, policy),
                *device_plugins.reports(memory.absent_devices, now, known=_nodes_without_devices(latest)),
                *describe_unbound_pools(memory.unbinding, now),
                *windows.reports(memory.windows),
            )
        )[:MOST],
        warnings=tuple(
            cut_to_bytes(sentence, SENTENCE)
            for sentence in (
                *describe_findings(plan, cluster, pool_members, latest.unpooled),
                *describe_closed_nodes(cluster, pool_members, memory.ledger, now),
                *map(describe_released_pool, latest.released_pools),
                *describe_misplaced(cluster, f"{leader.namespace}/{leader.pod}"),
                *plan.warnings,
                *account.warnings,
                *in_force.remarks,
            )
        )[:MOST],
        promises_kept=memory.promises.kept,
        promises_broken=memory.promises.broken,
        unready=unready[:MOST],
        held=held_machines(latest, pool_members, now),
        priorities=cut_to_bytes(in_force.text, SENTENCE),
        doctor=latest.doctor,
        test_message=latest.test_receipt(),
    )


def _nodes_without_devices(latest: Latest) -> frozenset[str]:
    """The nodes that a finding of the doctor reports, with a way to mend them."""
    return frozenset(finding.object.removeprefix("Node ") for finding in latest.findings if finding.check == "D12")


def _unready(latest: Latest, policy: Policy, now: float) -> tuple[UnreadyNode, ...]:
    """Nodes that have not been Ready for long enough to be reported, the most expensive first."""
    prices = {offering.key: offering.price for offering in policy.offerings.values()}
    unready = [
        UnreadyNode(
            silence.node, silence.offering.pool, silence.since, prices.get(silence.offering, 0.0), describe_unready(silence, policy, now)
        )
        for silence in latest.memory.unready.nodes
        if silence.reported
    ]
    return tuple(sorted(unready, key=lambda unready: (-unready.dollars_per_hour, unready.since, unready.node)))


def _pools(policy: Policy, cluster: Cluster, members: Mapping[str, Member], ledger: Ledger, closed: set[str]) -> tuple[PoolStatus, ...]:
    """The pools. A node that is still ``closed`` counts as coming and not as a machine yet: each is counted once."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, member in members.items():
        if name not in closed:
            names[member.pool.name].append(name)
    coming = Counter(machine.key.pool for machine in ledger.coming)
    leaving = Counter(removal.offering.pool for removal in ledger.leaving)
    return tuple(
        PoolStatus(
            name=pool.name,
            machines=len(names[pool.name]),
            coming=coming[pool.name],
            leaving=leaving[pool.name],
            min=pool.min,
            max=pool.max,
            gpus=sum(node_accelerators(cluster.nodes[name].allocatable, cluster.nodes[name].labels) for name in names[pool.name]),
            used=_gpus_requested(cluster, names[pool.name]),
            dollars_per_hour=round(sum(limit_usage(cluster.nodes[name], members[name]).price for name in names[pool.name]), 6),
        )
        for pool in policy.pools
    )


def _gpus_requested(cluster: Cluster, names: Sequence[str]) -> int:
    """The number of GPUs that pods on these nodes request; shared GPUs are counted as devices."""
    rows = [cluster.table.row[name] for name in names]
    asked = {kind: int(cluster.requested[kind][rows].sum()) for kind in (*ACCELERATORS, GPU_MILLI) if kind in cluster.requested}
    return count_accelerators(asked)


def _machine_counts(
    cluster: Cluster, members: Mapping[str, Member], ledger: Ledger, coming: set[str], leaving: set[str]
) -> tuple[MachineCount, ...]:
    tally: Counter[tuple[str, str, str, str]] = Counter()
    for name in cluster.nodes:
        member = members.get(name)
        if member is None or name in coming:
            continue
        _, market, instance_type, _ = member.offering.key if member.offering is not None else ("", "", "", "")
        tally[member.pool.name, market, instance_type, "leaving" if name in leaving else "open"] += 1
    for machine in ledger.coming:
        tally[*machine.key[:3], "coming"] += 1
    return tuple(MachineCount(*kind, count) for kind, count in sorted(tally.items()))


def describe_unknown_prices(policy: Policy) -> Iterator[str]:
    """One sentence about all types without a known price, in some market."""
    unknown = guessed_offerings(policy)
    if names := sorted({f"{key.instance_type} {key.market}" for key in unknown}):
        some = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        pools = ", ".join(sorted({key.pool for key in unknown}))
        guess = "purchases use an estimated price, and no pods are moved to save money"
        yield f"prices unknown: {some} (pool {pools}); {guess}; add the prices to prices in the cloud's settings"


def _limits(policy: Policy, pools: tuple[PoolStatus, ...], ledger: Ledger) -> tuple[Limit, ...]:
    offerings = policy.offerings
    gpus = sum(max((offering.gpus for offering in possible_offerings((machine.key,), offerings)), default=0) for machine in ledger.coming)
    dollars = sum(
        ordered_price_range(machine, policy)[1] if machine.key in offerings else _most_expensive(machine.key, offerings)
        for machine in ledger.coming
    )
    used = {
        "machines": sum(pool.machines + pool.coming for pool in pools),
        "gpus": sum(pool.gpus for pool in pools) + gpus,
        "dollars_per_hour": round(sum(pool.dollars_per_hour for pool in pools) + dollars, 6),
    }
    limits = policy.limits
    most = {"machines": limits.machines, "gpus": limits.gpus, "dollars_per_hour": limits.dollars_per_hour}
    return tuple(Limit(name, float(used[name]), float(value)) for name, value in most.items() if value is not None)


def _most_expensive(key: OfferingKey, offerings: Mapping[OfferingKey, Offering]) -> float:
    """The maximum price of a machine with an unknown offering."""
    return max((offering.price for offering in possible_offerings((key,), offerings)), default=0.0)


def _breakers(breakers: Breakers, now: float) -> tuple[BreakerStatus, ...]:
    stopping = sorted((breaker for breaker in breakers.open if has_enough_strikes(breaker)), key=lambda breaker: breaker.target.words)
    return tuple(
        BreakerStatus(
            breaker.target.words,
            breaker.cause,
            is_open(breaker, now),
            breaker.until,
            cut_to_bytes(describe_breaker(breaker, now), SENTENCE),
        )
        for breaker in stopping
    )


def _holds(holds: Holds, now: float) -> tuple[HoldStatus, ...]:
    held = {activity: hold for activity in ACTIVITIES if (hold := holds.of(activity, now)) is not None}
    return tuple(
        HoldStatus(activity, hold.since, hold.until, cut_to_bytes(holds.sentence(activity, now), SENTENCE))
        for activity, hold in held.items()
    )


def _pending_pods(latest: Latest, now: float) -> tuple[PendingPods, ...]:
    """Pending pods by reason: first those for which nothing can be bought."""
    groups: dict[str, list[str]] = defaultdict(list)
    for pod, reason in unplaced_reasons(latest.plan):
        groups[reason].append(pod)
    closed = closed_reasons(latest, now)
    for machine in latest.memory.ledger.coming:
        if machine.pods:
            groups[describe_ordered_machine(machine, latest, now, closed)] += machine.pods
    return tuple(PendingPods(cut_to_bytes(reason, SENTENCE), len(pods), tuple(pods[:NAMED])) for reason, pods in groups.items())


def unplaced_reasons(plan: Plan) -> Iterable[tuple[str, str]]:
    """All unplaced pods with their reasons, which say so if no machine can ever hold the pod."""
    texts: dict[int, str] = {}
    for unplaced in plan.unplaced:
        # Pods of one class share their reasons.
        if id(unplaced.reasons) not in texts:
            never = f"{NEVER}: " if fits_no_pool(unplaced.reasons) else ""
            details = "; ".join(f"pool {reason.pool}: {reason.detail}" for reason in unplaced.reasons) or "there is no pool"
            texts[id(unplaced.reasons)] = f"{never}{details}"
        yield unplaced.pod, texts[id(unplaced.reasons)]


def describe_ordered_machine(machine: OrderedMachine, latest: Latest, now: float, closed: Mapping[str, str] | None = None) -> str:
    """The progress of an ordered machine, and when it should be ready; ``closed`` is :func:`closed_reasons`, if it is known."""
    if machine.ready:
        closed = closed_reasons(latest, now) if closed is None else closed
        return f"{format_offering(machine.key)} is ready as node {machine.node} and {describe_closed_machine(machine.node, closed)}"
    expected = latest.forecast_for(machine.key)
    if not machine.granted:
        return (
            f"{format_offering(machine.key)} was ordered {format_duration(now - machine.asked)} ago; once granted, it should be "
            f"ready in about {format_duration(expected.typical)}"
        )
    if machine.id in latest.faults:
        left = machine.faulted + FAULT_SECONDS - now
        return (
            f"{format_offering(machine.key)} was granted, and the cloud reports a fault of it; unless it becomes a node, it is given up in "
            f"{format_duration(left)}: {latest.faults[machine.id]}"
        )
    left = machine.began + expected.typical - now
    when = f"should be ready in about {format_duration(left)}" if left > 0 else f"should have been ready {format_duration(-left)} ago"
    lack = f": {latest.lacks[machine.id]}" if machine.id in latest.lacks else ""
    stage = f"is node {machine.node}, not ready yet{lack}" if machine.node else "was granted"
    return f"{format_offering(machine.key)} {stage}; it {when}"


def closed_reasons(latest: Latest, now: float) -> Mapping[str, str]:
    """Why ready machines are still closed, by node."""
    ledger, policy = latest.memory.ledger, latest.policy
    if policy is None or not (ledger.promises or any(machine.ready for machine in ledger.coming)):
        return {}
    return opening.still_closed(ledger, latest.cluster, policy, nominating=latest.memory.unbinding.keys(), now=now)


def describe_closed_machine(node: str, closed: Mapping[str, str]) -> str:
    """Why a ready machine is still closed, as the end of a sentence."""
    return f"is still closed: {closed[node]}" if node in closed else "is being opened"


def summary(status: Status) -> str:
    """One line with the number of machines, GPUs and pending pods, and the cost."""
    machines, gpus = sum(pool.machines for pool in status.pools), sum(pool.gpus for pool in status.pools)
    used, dollars = sum(pool.used for pool in status.pools), sum(pool.dollars_per_hour for pool in status.pools)
    return (
        f"{format_count(machines, 'machine')} in {format_count(len(status.pools), 'pool')} at ${dollars:.2f}/h; "
        f"{used} of {format_count(gpus, 'GPU')} in use; {format_count(status.unplaced, 'pod')} cannot be placed, "
        f"{status.coming} {'waits' if status.coming == 1 else 'wait'} for ordered machines"
    )
