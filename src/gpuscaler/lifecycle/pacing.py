"""When plans are made: soon after pods become unschedulable, when waiting times end that affect purchases, and at regular intervals.

All times are seconds of the caller's clock, which is virtual in a replay.
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

    A plan is made once no more pods have become unschedulable for ``debounce``, but at most ``patience`` after the first one; in any case
    one is made every ``resync``. Plans for clusters of more than ``inline`` nodes and pods together, or of more than ``inline_pods``
    pending pods, are made in a thread; a pod with rules counts as several. Consolidation, the most expensive part of a plan, is computed
    at most every ``consolidate``. If nothing has changed it is computed every ``unchanged``, because the work lost by moving pods changes
    with time. A machine is ended if it is not a node ``register`` after it was granted, or not ready ``ready`` after it became a node.
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
        """Note that pods became unschedulable: a plan is due once no more pods do, at the latest ``patience`` after the first."""
        if self._first_unschedulable is None:
            self._first_unschedulable = now
        self.due = min(now + self.pace.debounce, self._first_unschedulable + self.pace.patience)

    def plan_now(self, now: float) -> None:
        """Make a plan due at once, because of an event that needs one.

        While pods are arriving, the plan waits until all have come, for a moment: a plan for the first few would buy too small a machine.
        """
        if self._first_unschedulable is None:
            self.plan_by(now)

    def plan_at_resync(self, now: float) -> None:
        """Make a plan due at the next resync, for an event that need not be handled sooner."""
        passed = max(0, math.ceil((now - self._planned) / self.pace.resync))
        self.plan_by(self._planned + passed * self.pace.resync)

    def take(self, now: float, *, urgent: bool) -> bool:
        """Whether a plan is made now, because it is ``urgent`` or due. If so, the next one is due at the next resync."""
        if urgent:
            self.plan_now(now)
        if now < self.due:
            return False
        self.planned(now)
        return True

    def planned(self, now: float, *, resync: bool = True) -> None:
        """Note that a plan is made now; the next one is due at the next resync, unless ``resync`` is False, or when an event needs one."""
        self.due, self._planned = now + self.pace.resync if resync else math.inf, now
        self._first_unschedulable = None


class Consolidation(Struct, frozen=True, gc=False):
    """When consolidation was last computed, ``at``, and the offerings to which no pods could be moved then, ``no_moves_to``."""

    at: float = -math.inf
    no_moves_to: frozenset[OfferingKey] = frozenset()

    def is_due(self, no_moves_to: Set[OfferingKey], now: float, pace: Pace, *, changed: bool) -> bool:
        """Whether to compute consolidation again: after changes only now and then, and still more rarely without any."""
        news = changed or bool(self.no_moves_to - no_moves_to)
        return now >= self.at + (pace.consolidate if news else pace.unchanged)


def next_change(cluster: Cluster, breakers: Breakers, now: float) -> float | None:
    """Return the next time at which other offerings may be bought although nothing happened; None if there is none."""
    timed = any(key.options.spot_wait is not None or key.options.deadline is not None for key in cluster.unbound)
    waiting = (pod for bucket in cluster.unbound.values() for pod in bucket.pods.values()) if timed else ()
    changes = (askable_offerings.next_openness_change(breakers, now), markets.next_market_change(waiting, now))
    return min((at for at in changes if at is not None), default=None)
