"""The production planner as an autoscaler of a replay: when it is asked, what it remembers, how its plans become decisions."""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gpuscaler.lifecycle.node_marks.soft_taints import LIMITS
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Machine, Plan, Removal
from gpuscaler.planning.scale_up import markets
from gpuscaler.planning.state import State, offering_events
from gpuscaler.planning.state.breakers import HUNT_QUIET, Breakers, step
from gpuscaler.planning.state.openness import Openness, next_change, openness, with_openness
from gpuscaler.simulation.cloud.machines import FAILED, NO_CAPACITY, RECLAIMED, UNKNOWN_OFFERING, Answer
from gpuscaler.simulation.world.autoscaler import Decisions, Intent, Moment, Purchase, View

#: What is asked for a plan: the cluster as it stands, what is remembered, the time in seconds since the epoch.
Decide = Callable[[Cluster, State, float], Plan]

#: Changes are collected this long before a plan is made, as the controller does.
DEBOUNCE_SECONDS = 0.6
#: Who leaves something waiting is asked again after a minute, then ever more rarely while nothing is found to do.
RESYNC_FIRST, RESYNC_LAST = 60.0, 6 * 3600.0
#: While pods run that may be moved, it is asked so often at most whether that pays by now, and so often where nothing has changed: what
#: moving them loses only grows with time, so that a budget's schedule alone could make a difference then.
CONSOLIDATION, UNCHANGED = 600.0, 3600.0
#: A machine that has not registered this long after it was bought is given back.
REGISTRATION_LIMIT = 900.0
#: What the cloud's refusals mean to breakers; a pool at its maximum is nothing that a breaker knows.
CAUSES = {NO_CAPACITY: offering_events.CAPACITY, UNKNOWN_OFFERING: offering_events.CONFIGURATION}


class Gpuscaler:
    """Asks ``decide``, the planner by default.

    It does so a moment after changes that a plan could act on, when machines were idle for long enough, and now and then while pods wait.
    """

    discourages = LIMITS

    def __init__(self, policy: Policy, *, name: str = "gpuscaler", steers: bool = True, decide: Decide | None = None) -> None:
        self.name = name
        self.steers = steers
        self._decide = decide or Planner(policy).plan
        self._idle_after = {pool.name: pool.idle_after for pool in policy.pools}
        self._offerings = policy.offerings
        self._plan_at: float | None = None
        self._resync = RESYNC_FIRST
        self._idle: list[tuple[float, str, float]] = []
        self._late: list[tuple[float, str]] = []
        self._reclaimed: dict[str, float] = {}
        self._drain_at: float | None = None
        self._breakers = Breakers()
        #: What the breakers said last, and until when that holds without news.
        self._openness, self._openness_until = Openness(), -1.0
        self._plans = 0
        self._view: View | None = None
        self._markets_change_at: float | None = None
        #: Whether pods have come that may be moved, and whether any runs.
        self._movable = self._running = False
        #: When it was last looked at whether that pays, which offerings nothing was moved to then, and whether pods or machines changed.
        self._looked_at, self._unsettled, self._changed = -UNCHANGED, frozenset[OfferingKey](), True
        #: What was decided and is being carried out.
        self._acting: Decisions | None = None

    @property
    def ask_at(self) -> float | None:
        view = self._view
        if view is None:
            return None
        while self._idle and view.idle_since(self._idle[0][1]) != self._idle[0][2]:
            heapq.heappop(self._idle)
        while self._late and not view.missing(self._late[0][1]):
            heapq.heappop(self._late)
        times = (self._plan_at, self._drain_at, self._idle[0][0] if self._idle else None, self._late[0][0] if self._late else None)
        return min((at for at in times if at is not None), default=None)

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        return ()

    def noticed(self, moment: Moment, view: View) -> None:
        now = moment.now
        if self._view is None:
            self._view = view
            self._plan_by(now)
        for name in moment.idled:
            self._watch_idle(name, view)
        for answer in moment.answers:
            self._answered(answer, now)
            if answer.refusals and view.promising:
                self._plan_by(now)
        self._came(moment, view)
        for notice in moment.notices:
            self._fold(offering_events.Reclaimed(notice.machine.offering.key, now))
            self._reclaimed[notice.machine.id] = notice.gone_at
            self._drain_at = now
        for lost in moment.lost:
            self._reclaimed.pop(lost.machine.id, None)
            if lost.why == RECLAIMED:
                self._fold(offering_events.Reclaimed(lost.machine.offering.key, now))
            elif lost.why == FAILED and lost.machine.registered_at > now:
                self._fold(offering_events.Failed(lost.machine.offering.key, now, "it ended before it became a node"))
        freed = moment.finished or moment.opened or moment.evicted or moment.given_back or moment.lost
        self._changed |= bool(freed or moment.arrived)
        if moment.broken or ((freed or moment.arrived) and view.promising):
            self._plan_by(now + DEBOUNCE_SECONDS)
        if self._acting is not None:
            self._ask_again(self._acting, view, now)
            self._acting = None

    def _came(self, moment: Moment, view: View) -> None:
        for name in moment.registered:
            self._fold(offering_events.Registered(view.offering_of(name).key, moment.now))
        for name in moment.opened:
            offering = view.offering_of(name)
            self._fold(offering_events.Ready(offering.key, moment.now, frozenset(offering.allocatable)))

    def decide(self, view: View, now: float) -> Decisions:
        if self._drain_at is not None:
            return self._drain()
        self._plan_at = None
        late = self._never_registered(view, now)
        while self._idle and self._idle[0][0] <= now:
            heapq.heappop(self._idle)
        cluster, state = view.picture(now)
        self._plans += 1
        state = self._with_breakers(state, now)
        state = replace(state, consolidating=self._consolidates(state, now))
        plan = self._decide(cluster, state, now)
        purchases, names = purchases_of(plan, self._plans)
        # What only stands behind it may never be asked; if it is, its answer comes with the purchase's.
        for key in sorted({key for one in plan.machines for key in one.keys} & state.half_open_offerings):
            self._fold(offering_events.Asked(key, now))
        self._acting = Decisions(
            purchases=purchases,
            placements=plan.placements,
            removals=(*late, *(renamed(removal, names) for removal in plan.removals)),
            unplaced=plan.unplaced,
            ignored=plan.ignored,
        )
        self._markets_change_at = markets_change(cluster, now)
        self._movable |= any(key.options.restart_cost is not None for key in cluster.unbound)
        self._running = bool(cluster.on_node)
        return self._acting

    def _consolidates(self, state: State, now: float) -> bool:
        """Whether a plan should look for better places for pods that run."""
        if self._movable:
            news = self._changed or self._unsettled - state.unsettled_offerings
            if now < self._looked_at + (CONSOLIDATION if news else UNCHANGED):
                return False
        self._looked_at, self._unsettled, self._changed = now, state.unsettled_offerings, False
        return True

    def _drain(self) -> Decisions:
        """Empty the machines that the cloud will take back; their pods are planned for once they wait again."""
        going = tuple(Removal(name, f"the cloud takes it back at {gone_at:.0f}") for name, gone_at in self._reclaimed.items())
        self._reclaimed.clear()
        self._drain_at = None
        return Decisions(removals=going)

    def _fold(self, event: offering_events.Event) -> None:
        after = step(self._breakers, event)
        if after != self._breakers:
            self._breakers, self._openness_until = after, -1.0

    def _with_breakers(self, state: State, now: float) -> State:
        """``state`` with what may be asked, looked at anew only where news or time may have changed it."""
        if now >= self._openness_until:
            self._openness = openness(self._breakers, self._offerings, now)
            change, hunt = next_change(self._breakers, now), self._breakers.hunt
            # A hunt still counts at the moment of its end, and not after it: what is said then holds no longer.
            on = hunt is not None and now <= hunt.last + HUNT_QUIET
            self._openness_until = now if on else math.inf if change is None else change
        return with_openness(state, self._openness, self._breakers)

    def _answered(self, answer: Answer, now: float) -> None:
        """Fold what the cloud granted and refused."""
        granted = dict.fromkeys(machine.offering.key for machine in answer.machines)
        for key in granted:
            self._fold(offering_events.Granted(key, now))
        for machine in answer.machines:
            heapq.heappush(self._late, (now + REGISTRATION_LIMIT, machine.id))
        for one in answer.refusals:
            self._fold(offering_events.Asked(one.offering, now))
            cause, filled = CAUSES.get(one.kind, offering_events.UNKNOWN), not answer.missing
            self._fold(offering_events.Refused(one.offering, now, cause, one.detail, filled=filled, partial=one.offering in granted))

    def _watch_idle(self, name: str, view: View) -> None:
        since, pool = view.idle_since(name), view.offering_of(name).pool
        if since is not None:
            # A moment later: sums of times are rounded, and a node that is idle a microsecond too short would stay.
            heapq.heappush(self._idle, (since + self._idle_after[pool] + 0.001, name, since))

    def _never_registered(self, view: View, now: float) -> list[Removal]:
        """Machines whose time to register is over."""
        found = []
        while self._late and self._late[0][0] <= now:
            _, name = heapq.heappop(self._late)
            if view.missing(name):
                key = view.offering_of(name).key
                self._fold(offering_events.Failed(key, now, "it never became a node"))
                self._fold(offering_events.Absent(key, now - REGISTRATION_LIMIT, now, "it never became a node"))
                found.append(Removal(name, f"did not register within {REGISTRATION_LIMIT:g} s"))
        return found

    def _ask_again(self, decisions: Decisions, view: View, now: float) -> None:
        """While something waits that time alone could help, ask again, ever more rarely."""
        if decisions.purchases or decisions.placements or decisions.removals:
            self._resync = RESYNC_FIRST
        if self._movable and self._running:
            self._plan_by(now + (CONSOLIDATION if self._changed or self._unsettled else UNCHANGED))
        if not view.hopeful and not any(self._overstays(name, view, now) for name in view.idle()):
            return
        for change in (next_change(self._breakers, now), self._markets_change_at):
            if change is not None:
                self._plan_by(change)
        self._plan_by(now + self._resync)
        self._resync = min(2 * self._resync, RESYNC_LAST)

    def _overstays(self, name: str, view: View, now: float) -> bool:
        """Whether a node is idle for longer than its pool allows."""
        since = view.idle_since(name)
        return since is not None and since + self._idle_after[view.offering_of(name).pool] < now

    def _plan_by(self, at: float) -> None:
        if self._plan_at is None or at < self._plan_at:
            self._plan_at = at


def markets_change(cluster: Cluster, now: float) -> float | None:
    """When waiting pods may buy in other markets by the passing of time alone."""
    buckets = [bucket for key, bucket in cluster.unbound.items() if key.options.spot_wait is not None or key.options.deadline is not None]
    return markets.next_change((pod for bucket in buckets for pod in bucket.pods.values()), now)


def purchases_of(plan: Plan, number: int) -> tuple[tuple[Purchase, ...], Mapping[str, str]]:
    """The machines of the ``number``-th plan of a run as one purchase for each set of offerings, and the intents of its machines."""
    groups: dict[tuple[OfferingKey, ...], list[Machine]] = defaultdict(list)
    for machine in plan.machines:
        groups[machine.requested].append(machine)
    names = {machine.id: f"plan-{number}/{machine.id}" for machine in plan.machines}
    purchases = tuple(
        Purchase(
            id=f"plan-{number}/{'/'.join(offerings[0])}/{place}",
            offerings=offerings,
            count=len(machines),
            intents=tuple(
                Intent(names[one.id], one.pods, tuple(names[after] for after in one.opens_after if after in names)) for one in machines
            ),
            why=purpose(machines),
        )
        for place, (offerings, machines) in enumerate(groups.items())
    )
    return purchases, names


def renamed(removal: Removal, names: Mapping[str, str]) -> Removal:
    """A removal whose replacements are named by their intents."""
    moves = tuple(replace(move, to=names.get(move.to, move.to)) for move in removal.moves)
    return replace(removal, moves=moves, needs=tuple(names[needed] for needed in removal.needs if needed in names))


def purpose(machines: list[Machine]) -> str:
    """Why machines of one kind are bought, in words."""
    first, purposes = machines[0], {machine.purpose for machine in machines}
    if purposes == {"spare"}:
        return f"headroom of pool {first.pool}, at ${first.price_per_hour:.3f} per hour each"
    if "demand" not in purposes:
        return f"for pods of machines that cost more, at ${first.price_per_hour:.3f} per hour each"
    pods = sum(len(machine.pods) for machine in machines if machine.purpose == "demand")
    return f"the cheapest that fits {pods} pending {'pod' if pods == 1 else 'pods'}, at ${first.price_per_hour:.3f} per hour each"
