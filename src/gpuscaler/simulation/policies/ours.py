"""The production planner as an autoscaler of a replay: turns its plans into decisions.

When to plan, and how to handle answers, interruptions and time-outs, is the controller's logic (``lifecycle``), on virtual time.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from msgspec.structs import replace

from gpuscaler.lifecycle import interruptions, purchase_intents
from gpuscaler.lifecycle.answers import events_of_absence, events_of_answer
from gpuscaler.lifecycle.node_marks.soft_taints import LIMITS
from gpuscaler.lifecycle.pacing import Consolidation, Pace, Timetable, next_change
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Plan, PlannedMachine, PlannedRemoval
from gpuscaler.planning.state import State, askable_offerings, offering_events
from gpuscaler.planning.state.askable_offerings import Openness, with_openness
from gpuscaler.planning.state.breakers import HUNT_QUIET, Breakers, step
from gpuscaler.simulation.cloud.machines import FAILED, NO_CAPACITY, RECLAIMED, UNKNOWN_OFFERING, PurchaseAnswer
from gpuscaler.simulation.world.autoscaler import Decisions, Intent, Moment, Purchase, View

#: Arguments for a plan: the current cluster, the remembered state, the time in seconds since the epoch.
Decide = Callable[[Cluster, State, float], Plan]

#: The controller's pace, except that consolidation of running pods is checked more rarely: a replay lasts months.
PACE = Pace(consolidate=600.0, unchanged=3600.0)
#: The controller plans at every resync. A replay leaves out plans that would find nothing: while something waits, it plans again after a
#: minute, then ever more rarely as long as plans find nothing to do.
AGAIN_FIRST, AGAIN_LAST = 60.0, 6 * 3600.0
#: The breakers' causes for the cloud's refusals; breakers ignore a pool at its maximum.
CAUSES = {NO_CAPACITY: offering_events.CAPACITY, UNKNOWN_OFFERING: offering_events.CONFIGURATION}


class Gpuscaler:
    """Calls ``decide``, the planner by default.

    It does so shortly after changes that a plan could act on, when machines were idle for long enough, and now and then while pods wait.
    """

    soft_taint_shares = LIMITS

    def __init__(self, policy: Policy, *, name: str = "gpuscaler", steers: bool = True, decide: Decide | None = None) -> None:
        self.name = name
        self.steers = steers
        self._decide = decide or Planner(policy).plan
        self._idle_after = {pool.name: pool.idle_after for pool in policy.pools}
        self._offerings = policy.offerings
        self._plans_due = Timetable(PACE)
        self._plans_due.due = math.inf
        self._again = AGAIN_FIRST
        self._idle: list[tuple[float, str, float]] = []
        self._late: list[tuple[float, str]] = []
        #: When the cloud takes machines away, by machine id.
        self._going: dict[str, float] = {}
        self._breakers = Breakers()
        #: The last result of the breakers, and until when it holds without news.
        self._openness, self._openness_until = Openness(), -1.0
        self._plans = 0
        self._view: View | None = None
        self._next_change: float | None = None
        #: Whether any pods that may be moved have arrived, and whether any of them runs.
        self._movable = self._running = False
        #: When consolidation was last checked, and whether pods or machines have changed since.
        self._consolidation, self._changed = Consolidation(), True
        #: The decisions being carried out.
        self._acting: Decisions | None = None

    @property
    def decide_at(self) -> float | None:
        view = self._view
        if view is None:
            return None
        while self._idle and view.idle_since(self._idle[0][1]) != self._idle[0][2]:
            heapq.heappop(self._idle)
        while self._late and not view.is_unregistered(self._late[0][1]):
            heapq.heappop(self._late)
        at = min(self._plans_due.due, self._idle[0][0] if self._idle else math.inf, self._late[0][0] if self._late else math.inf)
        return at if at < math.inf else None

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        return ()

    def observe(self, moment: Moment, view: View) -> None:
        now = moment.now
        if self._view is None:
            self._view = view
            self._plans_due.plan_by(now)
        for name in moment.idled:
            self._watch_idle(name, view)
        for answer in moment.answers:
            self._process_answer(answer, now)
        self._record_nodes(moment, view)
        for notice in moment.notices:
            self._step_breakers(*interruptions.reclaim_events((notice.machine.offering.key,), now))
            self._going[notice.machine.id] = notice.gone_at
        for lost in moment.lost:
            self._going.pop(lost.machine.id, None)
            if lost.why == RECLAIMED:
                self._step_breakers(*interruptions.reclaim_events((lost.machine.offering.key,), now))
            elif lost.why == FAILED and lost.machine.registered_at > now:
                self._step_breakers(offering_events.Failed(lost.machine.offering.key, now, "it ended before it became a node"))
        self._plan_for(moment, view)
        if self._acting is not None:
            self._schedule_next_plan(self._acting, view, now)
            self._acting = None

    def _plan_for(self, moment: Moment, view: View) -> None:
        """Plan for the events, as soon as the controller would; not if no pending pod could benefit."""
        now, plans, waits = moment.now, self._plans_due, view.has_fresh_demand
        new_demand, ended, freed = moment.arrived or moment.evicted, moment.removed or moment.lost, moment.finished or moment.opened
        self._changed |= bool(new_demand or ended or freed)
        if waits and new_demand:
            plans.pods_came(now)
        if moment.notices or moment.broken or (waits and (ended or any(answer.refusals for answer in moment.answers))):
            plans.plan_now(now)
        if (waits and freed) or moment.vacated:
            plans.plan_at_resync(now)

    def _record_nodes(self, moment: Moment, view: View) -> None:
        for name in moment.registered:
            self._step_breakers(offering_events.Registered(view.offering_of(name).key, moment.now))
        for name in moment.opened:
            offering = view.offering_of(name)
            self._step_breakers(offering_events.Ready(offering.key, moment.now, frozenset(offering.allocatable)))

    def decide(self, view: View, now: float) -> Decisions:
        self._plans_due.planned(now, resync=False)
        unregistered = self._never_registered(view, now)
        while self._idle and self._idle[0][0] <= now:
            heapq.heappop(self._idle)
        cluster, state = view.snapshot(now)
        self._plans += 1
        state = self._with_breakers(state, now)
        # Replacements for a machine that is about to vanish are ordered before its pods are evicted.
        noticed_ends, self._going = self._going, {}
        vanishing = frozenset(noticed_ends)
        state = replace(
            state, consolidating=self._is_consolidation_due(state, now), vanishing=vanishing, disrupting=state.disrupting | vanishing
        )
        plan = self._decide(cluster, state, now)
        purchases, names = purchases_of(plan, self._plans)
        self._step_breakers(*purchase_intents.probe_events(plan, state, now))
        self._acting = Decisions(
            purchases=purchases,
            placements=plan.placements,
            removals=(
                *unregistered,
                *(PlannedRemoval(name, f"{interruptions.TAKEN} at {gone_at:.0f}") for name, gone_at in noticed_ends.items()),
                *(with_intents(removal, names) for removal in plan.removals),
            ),
            unplaced=plan.unplaced,
            ignored=plan.ignored,
        )
        self._next_change = next_change(cluster, self._breakers, now)
        self._movable |= any(key.options.restart_cost is not None for key in cluster.unbound)
        self._running = bool(cluster.on_node)
        return self._acting

    def _is_consolidation_due(self, state: State, now: float) -> bool:
        """Whether a plan should look for better places for running pods."""
        unsettled = state.no_moves_to
        if self._movable and not self._consolidation.is_due(unsettled, now, PACE, changed=self._changed):
            return False
        self._consolidation, self._changed = Consolidation(now, unsettled), False
        return True

    def _step_breakers(self, *events: offering_events.Event) -> None:
        after = reduce(step, events, self._breakers)
        if after != self._breakers:
            self._breakers, self._openness_until = after, -1.0

    def _with_breakers(self, state: State, now: float) -> State:
        """``state`` with the breakers' current result, computed again only if news or time may have changed it."""
        if now >= self._openness_until:
            self._openness = askable_offerings.openness(self._breakers, self._offerings, now)
            change, hunt = askable_offerings.next_openness_change(self._breakers, now), self._breakers.hunt
            # A hunt still counts at the moment of its end, and not after it: the result no longer holds then.
            on = hunt is not None and now <= hunt.last + HUNT_QUIET
            self._openness_until = now if on else math.inf if change is None else change
        return with_openness(state, self._openness, self._breakers)

    def _process_answer(self, answer: PurchaseAnswer, now: float) -> None:
        """Record the cloud's grants and refusals."""
        refusals = (
            offering_events.Refused(refusal.offering, now, CAUSES.get(refusal.kind, offering_events.UNKNOWN), refusal.detail)
            for refusal in answer.refusals
        )
        self._step_breakers(*events_of_answer((machine.offering.key for machine in answer.machines), refusals, now, missing=answer.missing))
        for machine in answer.machines:
            heapq.heappush(self._late, (now + PACE.register, machine.id))

    def _watch_idle(self, name: str, view: View) -> None:
        since, pool = view.idle_since(name), view.offering_of(name).pool
        if since is not None:
            # A moment later: sums of times are rounded, and a node that is idle a microsecond too short would stay.
            heapq.heappush(self._idle, (since + self._idle_after[pool] + 0.001, name, since))

    def _never_registered(self, view: View, now: float) -> list[PlannedRemoval]:
        """Machines that did not register in time."""
        removals = []
        while self._late and self._late[0][0] <= now:
            _, name = heapq.heappop(self._late)
            if view.is_unregistered(name):
                key = view.offering_of(name).key
                self._step_breakers(*events_of_absence(key, now - PACE.register, now, "it never became a node"))
                removals.append(PlannedRemoval(name, f"did not register within {PACE.register:g} s"))
        return removals

    def _schedule_next_plan(self, decisions: Decisions, view: View, now: float) -> None:
        """While something waits that time alone could help, plan again, ever more rarely."""
        if decisions.purchases or decisions.placements or decisions.removals:
            self._again = AGAIN_FIRST
        plans = self._plans_due
        if self._movable and self._running:
            plans.plan_by(now + (PACE.consolidate if self._changed or self._consolidation.no_moves_to else PACE.unchanged))
        if not view.has_servable_pods and not any(self._is_idle_too_long(name, view, now) for name in view.idle()):
            return
        if self._next_change is not None:
            plans.plan_by(self._next_change)
        plans.plan_by(now + self._again)
        self._again = min(2 * self._again, AGAIN_LAST)

    def _is_idle_too_long(self, name: str, view: View, now: float) -> bool:
        """Whether a node is idle for longer than its pool allows."""
        since = view.idle_since(name)
        return since is not None and since + self._idle_after[view.offering_of(name).pool] < now


def purchases_of(plan: Plan, number: int) -> tuple[tuple[Purchase, ...], Mapping[str, str]]:
    """The machines of the ``number``-th plan of a run, one purchase per set of offerings, and the intents of its machines."""
    names = {machine.id: f"plan-{number}/{machine.id}" for machine in plan.machines}
    purchases = tuple(
        Purchase(
            id=f"plan-{number}/{'/'.join(offerings[0])}/{place}",
            offerings=offerings,
            count=len(machines),
            intents=tuple(
                Intent(names[machine.id], machine.pods, tuple(names[after] for after in machine.opens_after if after in names))
                for machine in machines
            ),
            why=purpose(machines),
            planned_offerings=len(machines[0].keys),
        )
        for place, (offerings, machines) in enumerate(purchase_intents.group_requests(plan).items())
    )
    return purchases, names


def with_intents(removal: PlannedRemoval, names: Mapping[str, str]) -> PlannedRemoval:
    """Return a removal that names its replacements by their intents."""
    moves = tuple(replace(move, to=names.get(move.to, move.to)) for move in removal.moves)
    return replace(removal, moves=moves, needs=tuple(names[needed] for needed in removal.needs if needed in names))


def purpose(machines: Sequence[PlannedMachine]) -> str:
    """Describe why machines of one kind are bought."""
    first, purposes = machines[0], {machine.purpose for machine in machines}
    if purposes == {"spare"}:
        return f"headroom of pool {first.pool}, at ${first.price_per_hour:.3f} per hour each"
    if "demand" not in purposes:
        return f"to take over the pods of more expensive machines, at ${first.price_per_hour:.3f} per hour each"
    pods = sum(len(machine.pods) for machine in machines if machine.purpose == "demand")
    return f"the cheapest that fits {pods} pending {'pod' if pods == 1 else 'pods'}, at ${first.price_per_hour:.3f} per hour each"
