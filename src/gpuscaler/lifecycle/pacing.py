"""When a plan is made: soon after pods become unschedulable, when time changes what may be bought, and at regular intervals.

Moments and spans are seconds on the caller's clock: the controller's clock is real, that of a replay is virtual.
"""

import math
from collections.abc import Set

from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.scale_up import markets
from gpuscaler.planning.state import askable_offerings
from gpuscaler.planning.state.breakers import Breakers


class Pace(Struct, frozen=True, gc=False):
    """How long the loop waits, in seconds.

    A plan is made when no pod became unschedulable for ``debounce``, after ``patience`` at most, and every ``resync`` in any case. Plans
    for clusters of more than ``inline`` nodes and pods together, or more than ``inline_pods`` pending pods, are made in a thread; a pod
    with rules counts as several. Consolidation, the most expensive part of a plan, is computed every ``consolidate`` at most, and every
    ``unchanged`` where nothing has changed since: the work lost by moving pods changes with time.
    A machine is ended if it has not registered ``register`` after it was requested, or is not ready ``ready`` after that.
    """

    debounce: float = 0.2
    patience: float = 0.6
    resync: float = 10.0
    register: float = 900.0
    ready: float = 900.0
    inline: int = 2_000
    inline_pods: int = 100
    consolidate: float = 60.0
    unchanged: float = 600.0


NORMAL = Pace()


class Timetable:
    """When the next plan is due."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.due = 0.0
        self._planned = 0.0
        self._first_unschedulable: float | None = None

    def plan_by(self, at: float) -> None:
        """Make a plan due at this moment, or sooner."""
        self.due = min(self.due, at)

    def pods_came(self, now: float) -> None:
        """Note that pods became unschedulable: a plan is due once no more of them do, and soon in any case."""
        if self._first_unschedulable is None:
            self._first_unschedulable = now
        self.due = min(now + self.pace.debounce, self._first_unschedulable + self.pace.patience)

    def plan_now(self, now: float) -> None:
        """Make a plan due at once, because of something that it has to answer.

        While pods are arriving it waits for them: a plan for only the first of them would buy too small a machine, and the plan for all of
        them is due in a moment.
        """
        if self._first_unschedulable is None:
            self.plan_by(now)

    def plan_at_resync(self, now: float) -> None:
        """Note something that the plan at the next resync will find."""
        passed = max(0, math.ceil((now - self._planned) / self.pace.resync))
        self.plan_by(self._planned + passed * self.pace.resync)

    def take(self, now: float, *, urgent: bool) -> bool:
        """Whether a plan is made now, because it is ``urgent`` or due; then the next one is due after the resync."""
        if urgent:
            self.plan_now(now)
        if now < self.due:
            return False
        self.planned(now)
        return True

    def planned(self, now: float, *, resync: bool = True) -> None:
        """Note that a plan is made now; the next one is due after the resync, or when something happens."""
        self.due, self._planned = now + self.pace.resync if resync else math.inf, now
        self._first_unschedulable = None


class Consolidation(Struct, frozen=True, gc=False):
    """When consolidation was last computed, ``at``, and the ``unsettled`` offerings that nothing could be moved to then."""

    at: float = -math.inf
    unsettled: frozenset[OfferingKey] = frozenset()

    def is_due(self, unsettled: Set[OfferingKey], now: float, pace: Pace, *, changed: bool) -> bool:
        """Whether consolidation is computed again: not at every change, and rarely if nothing has changed."""
        news = changed or bool(self.unsettled - unsettled)
        return now >= self.at + (pace.consolidate if news else pace.unchanged)


def next_change(cluster: Cluster, breakers: Breakers, now: float) -> float | None:
    """Return the next moment at which time alone changes what may be bought, for pending pods or at all; None if there is none."""
    timed = any(key.options.spot_wait is not None or key.options.deadline is not None for key in cluster.unbound)
    waiting = (pod for bucket in cluster.unbound.values() for pod in bucket.pods.values()) if timed else ()
    changes = (askable_offerings.next_openness_change(breakers, now), markets.next_market_change(waiting, now))
    return min((at for at in changes if at is not None), default=None)
