"""The planner: one pure function from a cluster to a plan. Production, dry runs and the simulator all call it."""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy, boundless_warning, guessed_offerings, min_gpus_warnings
from gpuscaler.planning.capacity.existing import CapacityBuilder, CapacitySnapshot, mask_without
from gpuscaler.planning.capacity.expiring import block_expiring, describe_expiry, purchase_deadlines
from gpuscaler.planning.capacity.fallbacks import with_fallbacks
from gpuscaler.planning.capacity.limits import remaining
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.capacity.smallest_machines import FittingKinds, PodSizes
from gpuscaler.planning.demand.interrupted import evacuees, untried, with_evacuees, without_evacuees
from gpuscaler.planning.demand.pending import Demand, collect_demand
from gpuscaler.planning.demand.rationing import ration
from gpuscaler.planning.feasibility.min_gpus import SizeOf, requested_size
from gpuscaler.planning.feasibility.snapshot import Room, Rows
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.result import PlanDecisions, purchases, without_removals, write_plan
from gpuscaler.planning.scale_down import CandidateCache, ScaleDownResult, Situation, scale_down
from gpuscaler.planning.scale_up.draft.draft import PlanDraft, Queue, Solved, Stage
from gpuscaler.planning.scale_up.gangs import UnplacedGang, settle_gang
from gpuscaler.planning.scale_up.groups.arrival_check import pods_shut_out
from gpuscaler.planning.scale_up.headroom import spare_gpu_warnings, spare_machines
from gpuscaler.planning.scale_up.markets import restrict_to_markets
from gpuscaler.planning.scale_up.preferences import place_classes_by_preference, place_gang_by_preference
from gpuscaler.planning.scale_up.promised import place_late, place_promised
from gpuscaler.planning.scale_up.rounds import scale_up
from gpuscaler.planning.scale_up.unplaced import pods_over_budget, unplaced_pods
from gpuscaler.planning.scale_up.zone_balance import balance
from gpuscaler.planning.state import State
from gpuscaler.planning.state.breaker_messages import describe_trouble

#: The maximum number of times that all pods are placed again because some would lose their places to others.
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
    input gives the same plan. ``should_stop`` lets callers with a clock end the search early; the plan says whether it did. ``live`` says
    that a scheduler is running, so pods that it has not tried yet are left to it.
    """
    return Planner(policy).plan(cluster, state, now, live=live, should_stop=should_stop)


class Planner:
    """Plans repeatedly for one policy.

    It caches results about templates, nodes and their pods for as long as these objects are unchanged, so that the work of a plan is
    proportional to the changes. The cache changes no plan: every cached result is what would be computed again.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._templates: Templates | None = None
        self._capacities = CapacityBuilder(policy)
        self._surveys = CandidateCache()
        self._closes = purchase_deadlines(policy.pools)
        self._policy_warnings = min_gpus_warnings(policy)
        self._keeps = any(pool.keeps_closed for pool in policy.pools)
        self._fitting: FittingKinds | None = None
        self._sizes: PodSizes | None = None

    def plan(
        self, cluster: Cluster, state: State, now: float, *, live: bool = False, should_stop: Callable[[], bool] | None = None
    ) -> Plan:
        """Like the function :func:`plan`."""
        return self.plan_and_proof(cluster, state, now, live=live, should_stop=should_stop)[0]

    def plan_and_proof(
        self, cluster: Cluster, state: State, now: float, *, live: bool = False, should_stop: Callable[[], bool] | None = None
    ) -> tuple[Plan, Solved | None]:
        """A plan, and the problem and duals that prove its lower bound (``mix.certificate`` checks them), or None without purchases."""
        policy, state = self.policy, block_expiring(state, self._closes, now)
        if state.unbalancing:
            state = msgspec.structs.replace(state, blocked_offerings=state.blocked_offerings | state.unbalancing.keys())
        request = PlanRequest(cluster, state, policy, now, should_stop, live)
        leaving = evacuees(cluster, state, policy)
        demand = with_evacuees(collect_demand(cluster, state, policy, now, live=live), leaving)
        templates = self._current_templates(cluster, state, self._size_of(cluster, state.blocked_offerings))
        capacity = self._capacities.build(cluster, state, templates.size_of)
        # Templates need no rows when no pod is pending.
        waits = bool(demand.classes or demand.gangs or demand.nominated)
        room = self._capacities.with_templates(capacity, templates) if waits else capacity.room
        draft = make_draft(request, capacity, room, templates)
        promised = frozenset(key for machine in state.upcoming for key in machine.pods)
        demand, cuts = ration(demand, cluster, now, first=promised.union(*(pod_class.keys for pod_class in leaving)))
        if self._sizes is not None:
            self._sizes.learn(pod_class.spec for pod_class in demand.all_classes)
        reserve_nominated(draft, capacity, demand)
        late = frozenset(key for pod_class in leaving for key in pod_class.keys)
        draft, refused, queues = place_all(request, draft, capacity, demand, late) if waits else (draft, [], [])
        spares = spare_machines(draft, policy.pools, capacity.have, capacity)
        scale_down_result = plan_removals(request, draft, capacity, self._surveys)
        made, proof = write_plan(
            PlanDecisions(
                draft=draft,
                names=capacity.names,
                spares=tuple(spares),
                unplaced=tuple(
                    sorted((*unplaced_pods(draft, queues, refused, policy), *pods_over_budget(cuts, policy)), key=lambda entry: entry.pod)
                ),
                ignored=demand.ignored,
                scale_down_result=scale_down_result,
                set_aside=cluster.set_aside,
                warnings=(
                    *filter(None, (boundless_warning(policy),)),
                    *self._policy_warnings,
                    *spare_gpu_warnings(draft, policy.pools),
                    *capacity.warnings,
                    *cluster.warnings,
                ),
            )
        )
        made = balance_zones(made, cluster, policy, state, capacity.by_node)
        machines = with_fallbacks(made.machines, cluster, policy, state, capacity.have, templates=templates)
        made = made if machines is made.machines else msgspec.structs.replace(made, machines=machines)
        if state.removing_held:
            made = without_removals(made, state.removing_held)
        return (without_evacuees(made, leaving, cluster) if leaving else made), proof

    def _current_templates(self, cluster: Cluster, state: State, size_of: SizeOf) -> Templates:
        """The templates of the machines that may be bought now, made again if the previous ones are out of date."""
        wanted, templates = (cluster, state.blocked_offerings, state.probed_offerings), self._templates
        if templates is None or templates.size_of is not size_of or not templates.are_current_for(*wanted):
            templates = self._templates = Templates(cluster, self.policy, state.blocked_offerings, state.probed_offerings, size_of)
        return templates

    def _size_of(self, cluster: Cluster, blocked: frozenset[OfferingKey]) -> SizeOf:
        """What gives the sizes of pods where they are compared with the minimum of a machine."""
        if not self._keeps:
            return requested_size
        if self._fitting is None or not self._fitting.templates.are_current_for(cluster, frozenset()):
            self._fitting, self._sizes = FittingKinds(cluster, self.policy), None
        if self._sizes is None or self._sizes.blocked != blocked:
            self._sizes = PodSizes(self._fitting, blocked)
        return self._sizes


def balance_zones(made: Plan, cluster: Cluster, policy: Policy, state: State, members: Mapping[str, Member]) -> Plan:
    """Move machines of groups that balance zones to the emptiest zones that suit their pods at no higher price."""
    machines = balance(made.machines, cluster, policy, state, members)
    return made if machines == made.machines else msgspec.structs.replace(made, machines=machines, purchases=purchases(machines))


def make_draft(request: PlanRequest, capacity: CapacitySnapshot, room: Room, templates: Templates) -> PlanDraft:
    open_still = [
        m for m in request.state.upcoming if m.id in capacity.row_of and len(m.choices) > 1 and m.node not in request.cluster.nodes
    ]
    chosen = {capacity.row_of[machine.id]: machine.keys for machine in open_still}
    row_of = {offering.key: row for row, offering in enumerate(templates.offerings)} if chosen else {}
    return PlanDraft(
        cluster=request.cluster,
        templates=templates,
        room=room,
        open_rows=np.concatenate((capacity.open_rows, np.zeros(len(room) - len(capacity.room), dtype=np.bool_))),
        first_template=len(capacity.room),
        remaining=remaining(request.policy, request.state, capacity.have),
        work=request.policy.work_budget,
        stages=placement_stages(request.cluster, capacity) if room is not capacity.room else (),
        should_stop=request.should_stop,
        trouble=lambda key: (
            describe_trouble(request.state.breakers, key, request.now)
            or describe_expiry(request.policy, key, request.now)
            or request.state.unbalancing.get(key, "")
        ),
        unsettled=request.state.no_moves_to,
        idle_price=lambda row: idle_price(request, capacity, row),
        undecided={row: tuple(row_of[key] for key in keys if key in row_of) for row, keys in chosen.items()},
    )


def idle_price(request: PlanRequest, capacity: CapacitySnapshot, row: int) -> float:
    """The hourly price of an ordered machine, or of a node that runs only DaemonSet pods; 0 for any other row."""
    if row >= len(capacity.names):
        return 0.0
    name = capacity.room.table.names[row]
    coming = next((machine for machine in request.state.upcoming if machine.id == capacity.names[row]), None)
    if coming is not None:
        keys = coming.keys
        return min((offering.price for offering in request.policy.offerings.values() if offering.key in keys), default=0.0)
    member = capacity.by_node.get(name)
    busy = any(pod.owner.kind != "DaemonSet" for pod in request.cluster.on_node.get(name, {}).values())
    return member.offering.price if member is not None and member.offering is not None and not busy else 0.0


def placement_stages(cluster: Cluster, capacity: CapacitySnapshot) -> tuple[Stage, ...]:
    """The stages of placement: first the nodes that are open now, then these and all machines of the ledger."""
    inventory = capacity.inventory
    if not inventory.coming:
        return (Stage(capacity.room.copy(), capacity.open_rows),)
    min_gpus = inventory.rows.min_gpus
    nodes = Room(cluster, Rows(cluster.table, None if min_gpus is None else min_gpus.first(len(cluster.table))))
    open_rows = mask_without(capacity.open_rows[: len(nodes)], [inventory.rows.table.row[name] for name in inventory.registered])
    return Stage(nodes, open_rows), Stage(capacity.room.copy(), capacity.open_rows)


def reserve_nominated(draft: PlanDraft, capacity: CapacitySnapshot, demand: Demand) -> None:
    """Reserve room on their nodes for pods that the scheduler has nominated."""
    for promise in demand.nominated:
        row = capacity.row_of[promise.node]
        for room in (draft.room, *(stage.room for stage in draft.stages if row < len(stage.room))):
            room.place(promise.pod_class.spec, promise.pod_class.labels, row, promise.pod_class.count)


def place_all(
    request: PlanRequest, draft: PlanDraft, capacity: CapacitySnapshot, demand: Demand, late: frozenset[str] = frozenset()
) -> tuple[PlanDraft, list[UnplacedGang], list[Queue]]:
    """Place all pods, the ``late`` ones last.

    Pods that would lose their places to others, by topology spread or by volumes, become late, and everything is placed again.
    """
    for _ in range(TRIES):
        trial = draft.copy()
        left = restrict_to_markets(
            trial, place_promised(trial, capacity, request.state, demand, late), request.policy, request.state, request.now
        )
        at_once = not (trial.taken or demand.gangs or request.policy.preferences == "respect")
        refused: list[UnplacedGang] = []
        queues: list[Queue] = []
        for behind, part in split_late(left, late):
            if behind:
                part = place_late(trial, capacity, request.state, part)
            trial, failed, unplaced_queues = place(trial, part, respect=request.policy.preferences == "respect")
            refused += failed
            queues += unplaced_queues
        shut_out = pods_shut_out(trial, spread_checked=at_once)
        gangs = (frozenset(key for pod_class in gang.classes for key in pod_class.keys) for gang in demand.gangs)
        newly_late = shut_out.union(*(keys for keys in gangs if keys & shut_out)) - late
        if not newly_late or not draft.effort.left:
            break
        late |= newly_late
    return trial, refused, queues


def split_late(demand: Demand, late: Set[str]) -> Iterator[tuple[bool, Demand]]:
    """Yield the demand without the ``late`` pods, then only the late pods, each with whether it is the latter."""
    if not late:
        yield False, demand
        return
    for behind in (False, True):
        classes = [replace(pod_class, keys=tuple(key for key in pod_class.keys if (key in late) == behind)) for pod_class in demand.classes]
        gangs = tuple(gang for gang in demand.gangs if late.isdisjoint(gang.classes[0].keys) != behind)
        yield behind, replace(demand, classes=tuple(pod_class for pod_class in classes if pod_class.count), gangs=gangs)


def place(draft: PlanDraft, demand: Demand, *, respect: bool) -> tuple[PlanDraft, list[UnplacedGang], list[Queue]]:
    """Place gangs first, because they have the fewest places; but where limits are set, never before classes of a higher priority.

    Pods that find no place are placed on machines of closed pools that are larger than the smallest that holds them.

    ``respect`` meets preferences of pods even if that costs more; otherwise they only decide between equal choices.
    """
    place_these, place_this = (place_classes_by_preference, place_gang_by_preference) if respect else (scale_up, settle_gang)
    bounded = draft.remaining.any()
    refused: list[UnplacedGang] = []
    queues: list[Queue] = []
    waiting = list(demand.classes)
    for gang in demand.gangs:
        ahead = [pod_class for pod_class in waiting if bounded and pod_class.spec.priority > gang.priority]
        if ahead:
            queues += place_these(draft, ahead)
            waiting = [pod_class for pod_class in waiting if pod_class.spec.priority <= gang.priority]
        if not draft.effort.left:
            refused.append(UnplacedGang(gang, "the planning budget ran out before this gang was reached; a later plan will include it"))
            continue
        draft, failed = place_this(draft, gang)
        refused += failed
    queues += place_these(draft, waiting)
    left = [queue for queue in queues if queue.left]
    if (left or refused) and draft.effort.left and draft.templates.minimums.by_size:
        draft.set_any_size(allowed=True)
        gangs, refused = [entry.gang for entry in refused], []
        for gang in gangs:
            draft, failed = place_this(draft, gang)
            refused += failed
        again = [replace(queue.pod_class, keys=queue.pod_class.keys[queue.taken :], announced=0) for queue in left]
        queues = [*(queue for queue in queues if not queue.left), *place_these(draft, again)]
        draft.set_any_size(allowed=False)
    return draft, refused, queues


def plan_removals(request: PlanRequest, draft: PlanDraft, capacity: CapacitySnapshot, memory: CandidateCache) -> ScaleDownResult:
    """Plan removals on the cluster as it will be after this plan's placements.

    The room is that of the draft without templates and new machines, whose empty domains would count for topology spread. All pods placed
    on the draft, including nominated ones, take up room in it (I11).
    """
    room = capacity.room.copy()
    taken: set[int] = set()
    for placed in draft.room.placed_since(capacity.room):
        rows, counts = list(placed.counts), list(placed.counts.values())
        room.place_all(placed.spec, placed.labels, np.array(rows, dtype=np.int64), np.array(counts, dtype=np.int64))
        taken.update(rows)
    return scale_down(
        Situation(
            cluster=request.cluster,
            state=request.state,
            policy=request.policy,
            now=request.now,
            room=room,
            present=capacity.room if taken else None,
            members=capacity.by_node,
            taken=frozenset(room.table.names[row] for row in taken).union(request.state.promised),
            templates=draft.templates.after_purchases(draft.remaining.spent).without_unsettled(
                request.state.no_moves_to | guessed_offerings(request.policy)
            ),
            limits=draft.remaining.for_mix(),
            untried=untried(request.cluster, request.policy) if request.live else (),
            should_stop=request.should_stop,
        ),
        memory,
    )
