"""Bookkeeping of autoscalers of groups and fleets: machines on their way, open orders, groups in back-off.

Source of the back-off: kubernetes/autoscaler, ``cluster-autoscaler/clusterstate`` and ``utils/backoff/exponential_backoff.go``.
"""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.simulation.world.autoscaler import ObservedMachine
from gpuscaler.simulation.world.scheduler import Scheduler


class BackoffSettings(Struct, frozen=True, gc=False):
    """The flags ``--initial-node-group-backoff-duration``, ``--max-…`` and ``--node-group-backoff-reset-timeout``, in seconds."""

    initial: float = 300.0
    longest: float = 1800.0
    reset: float = 3 * 3600.0


class _Failure(Struct, gc=False):
    duration: float
    until: float
    last: float


class Backoff:
    """Groups that are not asked for a while after a failure; each failure after that time doubles it."""

    def __init__(self, settings: BackoffSettings) -> None:
        self._settings = settings
        self._failures: dict[OfferingKey, _Failure] = {}

    def fail(self, group: OfferingKey, now: float) -> None:
        """Record a failed scale-up of ``group``. A failure during a back-off restarts it with the shortest time."""
        failure = self._failures.get(group)
        duration = self._settings.initial
        if failure is not None and failure.until < now:
            duration = min(2 * failure.duration, self._settings.longest)
        self._failures[group] = _Failure(duration, now + duration, now)

    def clear(self, group: OfferingKey) -> None:
        """Record a finished scale-up of ``group``."""
        self._failures.pop(group, None)

    def until(self, group: OfferingKey, now: float) -> float | None:
        """Return when the group may be asked again; None if it may be asked now."""
        failure = self._failures.get(group)
        if failure is None or failure.until < now:
            return None
        return failure.until

    def forget(self, now: float) -> None:
        """Drop failures that are too long ago to count."""
        for group in [group for group, failure in self._failures.items() if failure.last + self._settings.reset < now]:
            del self._failures[group]


class ScaleUp(Struct, gc=False):
    """An increased size of a group: how many of its machines have not been granted, and when it was asked."""

    id: str
    group: OfferingKey
    missing: int
    asked_at: float
    refused: bool = False


def add_upcoming(room: Scheduler, observed: ObservedMachine) -> None:
    """Count a machine that is not ready yet with all resources of its type."""
    if observed.node:
        room.remove(observed.node)
    room.add(observed.machine.id, observed.offering)
    for spec in observed.pods.values():
        room.place(spec, observed.machine.id)
