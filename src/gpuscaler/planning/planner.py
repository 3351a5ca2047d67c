"""The planner: one pure function from a cluster to a plan. Production, dry runs and the simulator all call it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy, boundless_warning, guessed_offerings
from gpuscaler.planning.capacity.existing import CapacityBuilder, CapacitySnapshot, mask_without
from gpuscaler.planning.capacity.expiring import block_expiring, describe_expiry, purchase_deadlines
from gpuscaler.planning.capacity.fallbacks import with_fallbacks
from gpuscaler.planning.capacity.limits import remaining
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.demand.interrupted import evacuees, untried, with_evacuees, without_evacuees
from gpuscaler.planning.demand.pending import Demand, PodClass, demand
from gpuscaler.planning.demand.rationing import BudgetCut, ration
from gpuscaler.planning.feasibility.snapshot import Room, Rows
from gpuscaler.planning.plans import Plan, Reason, Unplaced
from gpuscaler.planning.result import PlanDecisions, purchases, without_removals, write_plan
from gpuscaler.planning.scale_down import CandidateCache, ScaleDownResult, Situation, scale_down
from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft, Queue, Solved, Stage
from gpuscaler.planning.scale_up.gangs import UnplacedGang, settle_gang
from gpuscaler.planning.scale_up.groups.groups import admitted_by_others, uncertain_machines
from gpuscaler.planning.scale_up.groups.spread_check import pods_breaking_skew
from gpuscaler.planning.scale_up.headroom import spare_machines
from gpuscaler.planning.scale_up.markets import restrict_to_markets
from gpuscaler.planning.scale_up.preferences import place_classes, place_gang
from gpuscaler.planning.scale_up.rounds import scale_up
from gpuscaler.planning.scale_up.unplaced import exclusion_reasons
from gpuscaler.planning.scale_up.zone_balance import balance
from gpuscaler.planning.state import State
from gpuscaler.planning.state.breaker_messages import describe_trouble

#: How often everything is decided again because later placements violate the spread of pods placed earlier.
TRIES = 4


@dataclass(frozen=True)
class PlanRequest:
    """The arguments of one call of :func:`plan`."""

    cluster: Cluster
    state: State
    policy: Policy
    now: float
    should_stop: Callable[[], bool] | None
    live: bool


def plan(
    cluster: Cluster, state: State, policy: Policy, now: float, *, live: bool = False, should_stop: Callable[[], bool] | None = None
) -> Plan:
    """Decide which machines to buy, where pending pods go, and which nodes to remove.

    ``now`` is in seconds since the epoch. The work is bounded by ``policy.work_budget``, which is counted and not timed, so that the same
    input gives the same plan. ``should_stop`` is an emergency brake for callers with a clock; the plan says whether it was used. ``live``
    says that a scheduler works on the cluster, so pods that it has not tried yet are left to it.
    """
    return Planner(policy).plan(cluster, state, now, live=live, should_stop=should_stop)


class Planner:
    """Plans repeatedly for one policy.

    It caches results about templates, nodes, and the pods on them while those are the same objects, so that the work of a plan is
    proportional to the changes. The cache changes no plan: every cached result is what would be computed again.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._templates: Templates | None = None
        self._pictures = CapacityBuilder(policy)
        self._surveys = CandidateCache()
        self._closes = purchase_deadlines(policy.pools)

    def plan(
        self, cluster: Cluster, state: State, now: float, *, live: bool = False, should_stop: Callable[[], bool] | None = None
    ) -> Plan:
        """Like the function :func:`plan`."""
        return self.plan_and_proof(cluster, state, now, live=live, should_stop=should_stop)[0]

    def plan_and_proof(
        self, cluster: Cluster, state: State, now: float, *, live: bool = False, should_stop: Callable[[], bool] | None = None
    ) -> tuple[Plan, Solved | None]:
        """A plan, with the problem and duals that prove its lower bound (``mix.certificate`` checks them); None without purchases."""
        policy, state = self.policy, block_expiring(state, self._closes, now)
        if state.unbalancing:
            state = msgspec.structs.replace(state, blocked_offerings=state.blocked_offerings | state.unbalancing.keys())
        asked = PlanRequest(cluster, state, policy, now, should_stop, live)
        if self._templates is None or not self._templates.hold_for(cluster, state.blocked_offerings, state.probed_offerings):
            self._templates = Templates(cluster, policy, state.blocked_offerings, state.probed_offerings)
        seen = self._pictures.of(cluster, state)
        leaving = evacuees(cluster, state, policy)
        wants = with_evacuees(demand(cluster, state, policy, now, live=live), leaving)
        # Templates need no rows when no pod is pending.
        waits = bool(wants.classes or wants.gangs or wants.nominated)
        room = self._pictures.with_templates(seen, self._templates) if waits else seen.room
        desk = make_draft(asked, seen, room, self._templates)
        promised = frozenset(key for machine in state.upcoming for key in machine.pods)
        wants, cuts = ration(wants, cluster, now, first=promised.union(*(pod_class.keys for pod_class in leaving)))
        reserve_nominated(desk, seen, wants)
        late = frozenset(key for pod_class in leaving for key in pod_class.keys)
        desk, refused, queues = place_all(asked, desk, seen, wants, late) if waits else (desk, [], [])
        spares = spare_machines(desk, policy.pools, seen.have, seen)
        down = plan_removals(asked, desk, seen, self._surveys)
        made, proof = write_plan(
            PlanDecisions(
                desk=desk,
                names=seen.names,
                spares=tuple(spares),
                unplaced=tuple(
                    sorted((*unplaced_pods(desk, queues, refused, policy), *pods_over_budget(cuts, policy)), key=lambda entry: entry.pod)
                ),
                ignored=wants.ignored,
                down=down,
                set_aside=cluster.set_aside,
                warnings=tuple(filter(None, (boundless_warning(policy),))) + seen.warnings + cluster.warnings,
            )
        )
        made = balance_zones(made, cluster, policy, state, seen.by_node)
        machines = with_fallbacks(made.machines, cluster, policy, state, seen.have, templates=self._templates)
        made = made if machines is made.machines else msgspec.structs.replace(made, machines=machines)
        if state.removing_held:
            made = without_removals(made, state.removing_held)
        return (without_evacuees(made, leaving, cluster) if leaving else made), proof


def balance_zones(made: Plan, cluster: Cluster, policy: Policy, state: State, members: Mapping[str, Member]) -> Plan:
    """Move machines of groups that balance zones to the emptiest zones that suit their pods at no higher price."""
    machines = balance(made.machines, cluster, policy, state, members)
    return made if machines == made.machines else msgspec.structs.replace(made, machines=machines, purchases=purchases(machines))


def make_draft(asked: PlanRequest, seen: CapacitySnapshot, room: Room, templates: Templates) -> PlanDraft:
    open_still = [m for m in asked.state.upcoming if m.id in seen.row_of and len(m.choices) > 1 and m.node not in asked.cluster.nodes]
    chosen = {seen.row_of[machine.id]: machine.keys for machine in open_still}
    row_of = {offering.key: row for row, offering in enumerate(templates.offerings)} if chosen else {}
    return PlanDraft(
        cluster=asked.cluster,
        templates=templates,
        room=room,
        open_rows=np.concatenate((seen.open_rows, np.zeros(len(room) - len(seen.room), dtype=np.bool_))),
        first_template=len(seen.room),
        remaining=remaining(asked.policy, asked.state, seen.have),
        work=asked.policy.work_budget,
        stages=placement_stages(asked.cluster, seen) if room is not seen.room else (),
        should_stop=asked.should_stop,
        trouble=lambda key: (
            describe_trouble(asked.state.breakers, key, asked.now)
            or describe_expiry(asked.policy, key, asked.now)
            or asked.state.unbalancing.get(key, "")
        ),
        unsettled=asked.state.unsettled_offerings,
        idle_price=lambda row: idle_price(asked, seen, row),
        undecided={row: tuple(row_of[key] for key in keys if key in row_of) for row, keys in chosen.items()},
    )


def idle_price(asked: PlanRequest, seen: CapacitySnapshot, row: int) -> float:
    """The hourly price of an ordered machine, or of a node that runs only DaemonSet pods; 0 for any other row."""
    if row >= len(seen.names):
        return 0.0
    name = seen.room.table.names[row]
    coming = next((machine for machine in asked.state.upcoming if machine.id == seen.names[row]), None)
    if coming is not None:
        keys = coming.keys
        return min((offering.price for offering in asked.policy.offerings.values() if offering.key in keys), default=0.0)
    member = seen.by_node.get(name)
    busy = any(pod.owner.kind != "DaemonSet" for pod in asked.cluster.on_node.get(name, {}).values())
    return member.offering.price if member is not None and member.offering is not None and not busy else 0.0


def placement_stages(cluster: Cluster, seen: CapacitySnapshot) -> tuple[Stage, ...]:
    """The stages of placement: first the nodes that are open now, then these and all machines of the ledger."""
    stand = seen.stand
    if not stand.coming:
        return (Stage(seen.room.copy(), seen.open_rows),)
    least = stand.rows.least_gpus
    nodes = Room.over(cluster, Rows(cluster.table, None if least is None else least[: len(cluster.table)]))
    open_rows = mask_without(seen.open_rows[: len(nodes)], [stand.rows.table.row[name] for name in stand.registered])
    return Stage(nodes, open_rows), Stage(seen.room.copy(), seen.open_rows)


def reserve_nominated(desk: PlanDraft, seen: CapacitySnapshot, wants: Demand) -> None:
    """Reserve room on their nodes for pods that the scheduler has nominated."""
    for promise in wants.nominated:
        row = seen.row_of[promise.node]
        for room in (desk.room, *(stage.room for stage in desk.stages if row < len(stage.room))):
            room.place(promise.one.spec, promise.one.labels, row, promise.one.count)


def place_promised(desk: PlanDraft, seen: CapacitySnapshot, state: State, wants: Demand, late: Set[str] = frozenset()) -> Demand:
    """Place pods on the machine of the ledger that was bought for them, as long as they fit; return the rest of the demand.

    The rest includes the ``late`` pods, which are placed after all others, and gangs without a running member in which some member has
    no promised machine.
    """
    upcoming = [machine for machine in state.upcoming if machine.id in seen.row_of]
    promised = {pod: seen.row_of[machine.id] for machine in upcoming for pod in machine.pods if pod not in late}
    while promised:
        since = len(desk.taken)
        wants = place_admitted(desk, wants, promised)
        classes = (*wants.classes, *(pod_class for gang in wants.gangs for pod_class in gang.classes)) if len(desk.taken) > since else ()
        promised = {key: promised[key] for pod_class in classes for key in pod_class.keys if key in promised}
    return wants


def place_admitted(desk: PlanDraft, wants: Demand, promised: Mapping[str, int]) -> Demand:
    """Place pods on the machine that was promised to them, if the filters admit them now; return the rest of the demand.

    Some pods become admissible only after others are placed (spread, affinity), so the caller repeats this.
    """
    gangs = []
    for gang in wants.gangs:
        if not gang.nodes and any(key not in promised for pod_class in gang.classes for key in pod_class.keys):
            # The machine of a member was lost or refused before any member was placed: another zone may be better for the gang now.
            gangs.append(gang)
            continue
        classes = tuple(place_promised_of_class(desk, pod_class, promised) for pod_class in gang.classes)
        waiting = {key for pod_class in classes for key in pod_class.keys}
        kept = [key for pod_class in gang.classes for key in pod_class.keys if key not in waiting]
        nodes = gang.nodes + tuple(desk.room.table.names[promised[key]] for key in kept)
        if waiting:
            gangs.append(replace(gang, classes=tuple(pod_class for pod_class in classes if pod_class.count), nodes=nodes))
    left = [place_promised_of_class(desk, pod_class, promised) for pod_class in wants.classes]
    return replace(wants, classes=tuple(pod_class for pod_class in left if pod_class.count), gangs=tuple(gangs))


def place_promised_of_class(desk: PlanDraft, pod_class: PodClass, promised: Mapping[str, int]) -> PodClass:
    """Place the promised pods of a class; return the class without them."""
    by_row: dict[int, list[str]] = {}
    for key in pod_class.keys:
        if key in promised:
            by_row.setdefault(promised[key], []).append(key)
    if not by_row:
        return pod_class
    # If the cloud has not chosen the machine yet, a place that was certain when it was ordered may not be certain now.
    unsure = uncertain_machines(desk, pod_class, admitted_by_others(desk, pod_class)) if by_row.keys() & desk.undecided.keys() else None
    kept: set[str] = set()
    spec = pod_class.spec
    # Pods without such rules leave the room on other machines unchanged.
    alone = not (spec.spread or spec.affinity or spec.anti_affinity or spec.host_ports or spec.volumes)
    room = desk.room.capacity(spec, pod_class.labels)
    counts: dict[int, int] = {}
    for row, keys in sorted(by_row.items()):
        if unsure is not None and unsure[row]:
            continue
        room = room if alone else desk.room.capacity(spec, pod_class.labels)
        fitting = tuple(keys[: int(room[row])])
        if fitting:
            counts[row] = len(fitting)
            if not alone:
                desk.room.place(pod_class.spec, pod_class.labels, row, len(fitting))
            desk.taken.append(ClassPlacement(pod_class, row, fitting))
            kept.update(fitting)
    if alone and counts:
        desk.room.place_all(
            pod_class.spec, pod_class.labels, np.array(list(counts), dtype=np.int64), np.array(list(counts.values()), dtype=np.int64)
        )
    return replace(pod_class, keys=tuple(key for key in pod_class.keys if key not in kept)) if kept else pod_class


def place_all(
    asked: PlanRequest, desk: PlanDraft, seen: CapacitySnapshot, wants: Demand, late: frozenset[str] = frozenset()
) -> tuple[PlanDraft, list[UnplacedGang], list[Queue]]:
    """Place all pods, the ``late`` ones last.

    Pods whose topology spread is violated by pods placed later (a gang, or a lower priority) become late, and everything is placed again.
    """
    for _ in range(TRIES):
        trial = desk.copy()
        left = restrict_to_markets(trial, place_promised(trial, seen, asked.state, wants, late), asked.policy, asked.state, asked.now)
        at_once = not (trial.taken or wants.gangs or asked.policy.preferences == "respect")
        refused: list[UnplacedGang] = []
        queues: list[Queue] = []
        for part in split_late(left, late):
            trial, failed, unplaced_queues = place(trial, part, respect=asked.policy.preferences == "respect")
            refused += failed
            queues += unplaced_queues
        shut_out = frozenset[str]() if at_once else pods_breaking_skew(trial)
        gangs = (frozenset(key for pod_class in gang.classes for key in pod_class.keys) for gang in wants.gangs)
        more = shut_out.union(*(keys for keys in gangs if keys & shut_out)) - late
        if not more or not desk.effort.left:
            break
        late |= more
    return trial, refused, queues


def split_late(wants: Demand, late: Set[str]) -> Iterator[Demand]:
    """Yield the demand without the ``late`` pods, then only the late pods."""
    if not late:
        yield wants
        return
    for behind in (False, True):
        classes = [replace(pod_class, keys=tuple(key for key in pod_class.keys if (key in late) == behind)) for pod_class in wants.classes]
        gangs = tuple(gang for gang in wants.gangs if late.isdisjoint(gang.classes[0].keys) != behind)
        yield replace(wants, classes=tuple(pod_class for pod_class in classes if pod_class.count), gangs=gangs)


def place(desk: PlanDraft, wants: Demand, *, respect: bool) -> tuple[PlanDraft, list[UnplacedGang], list[Queue]]:
    """Place gangs first, because they have the fewest places; but where limits are set, never before classes of a higher priority.

    ``respect`` meets preferences of pods even if that costs more; otherwise they only decide between equal choices.
    """
    place_these, place_this = (place_classes, place_gang) if respect else (scale_up, settle_gang)
    bounded = desk.remaining.any()
    refused: list[UnplacedGang] = []
    queues: list[Queue] = []
    waiting = list(wants.classes)
    for gang in wants.gangs:
        ahead = [pod_class for pod_class in waiting if bounded and pod_class.spec.priority > gang.priority]
        if ahead:
            queues += place_these(desk, ahead)
            waiting = [pod_class for pod_class in waiting if pod_class.spec.priority <= gang.priority]
        if not desk.effort.left:
            refused.append(UnplacedGang(gang, "planning budget of this plan used up before this gang; it is planned for in a later plan"))
            continue
        desk, failed = place_this(desk, gang)
        refused += failed
    return desk, refused, queues + place_these(desk, waiting)


def plan_removals(asked: PlanRequest, desk: PlanDraft, seen: CapacitySnapshot, memory: CandidateCache) -> ScaleDownResult:
    """Plan removals on the cluster as it will be after this plan's placements.

    The room is that of the desk without templates and new machines, whose empty domains would count for topology spread. All pods placed
    on the desk, including nominated ones, take up room in it (I11).
    """
    room = seen.room.copy()
    taken: set[int] = set()
    for placed in desk.room.placed_since(seen.room):
        rows, counts = list(placed.counts), list(placed.counts.values())
        room.place_all(placed.spec, placed.labels, np.array(rows, dtype=np.int64), np.array(counts, dtype=np.int64))
        taken.update(rows)
    return scale_down(
        Situation(
            cluster=asked.cluster,
            state=asked.state,
            policy=asked.policy,
            now=asked.now,
            room=room,
            present=seen.room if taken else None,
            members=seen.by_node,
            taken=frozenset(room.table.names[row] for row in taken),
            templates=desk.templates.less(desk.remaining.spent).settled(asked.state.unsettled_offerings | guessed_offerings(asked.policy)),
            limits=desk.remaining.for_mix(),
            untried=untried(asked.cluster, asked.policy) if asked.live else (),
            should_stop=asked.should_stop,
        ),
        memory,
    )


def pods_over_budget(cuts: Iterable[BudgetCut], policy: Policy) -> Iterator[Unplaced]:
    """Every pod that was not planned for because the planning budget of its namespace or owner is used up."""
    for cut in cuts:
        why = tuple(Reason(pool.name, "budget", cut.detail) for pool in policy.pools)
        yield from (Unplaced(key, why) for key in cut.keys)


def unplaced_pods(desk: PlanDraft, queues: Sequence[Queue], refused: Sequence[UnplacedGang], policy: Policy) -> tuple[Unplaced, ...]:
    """Every unplaced pod, with the reasons of its class."""
    unplaced: list[Unplaced] = []
    for queue in queues:
        if queue.left:
            why = exclusion_reasons(desk, queue.one, policy.pools)
            unplaced += [Unplaced(key, why) for key in queue.one.keys[queue.taken :]]
    for entry in refused:
        for pod_class in entry.gang.classes:
            why = exclusion_reasons(desk, pod_class, policy.pools, entry.detail)
            unplaced += [Unplaced(key, why) for key in pod_class.keys]
    return tuple(sorted(unplaced, key=lambda entry: entry.pod))
