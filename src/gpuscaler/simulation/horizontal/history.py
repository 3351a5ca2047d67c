"""State of a HorizontalPodAutoscaler between two steps. Source: ``pkg/controller/podautoscaler/horizontal.go``."""

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.simulation.horizontal.arithmetic import wrapped32
from gpuscaler.simulation.horizontal.specs import Condition, ScalingRules, Status

_Entry = TypeVar("_Entry")


class Recommendation(Struct, frozen=True, gc=False):
    """The replicas that the metrics alone asked for."""

    replicas: int
    at: float


class ScaleEvent(Struct, frozen=True, gc=False):
    """A change of the target's replicas, up or down. An ``outdated`` event may be overwritten."""

    change: int
    at: float
    outdated: bool = False


class History(Struct, frozen=True, gc=False):
    """Recommendations before stabilisation, scale events in both directions, and the object's conditions.

    As in Kubernetes, entries too old to matter stay until new ones take their place: a longer window makes them count again.
    """

    recommendations: tuple[Recommendation, ...] = ()
    ups: tuple[ScaleEvent, ...] = ()
    downs: tuple[ScaleEvent, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def with_recommendation(self, replicas: int, now: float, *, replace_index: int | None) -> "History":
        """Return the history with one more recommendation, replacing the entry at ``replace_index``, if given (that entry has expired)."""
        return replace(self, recommendations=_with_entry(self.recommendations, Recommendation(replicas, now), replace_index))

    def with_scale_event(self, rules: ScalingRules, *, change: int, now: float) -> "History":
        """Return the history with one more scale event, up if ``change`` is positive; ``rules`` are those of its direction."""
        cutoff = now - max((policy.period for policy in rules.policies), default=0)
        events = tuple(
            replace(event, outdated=True) if event.at < cutoff and not event.outdated else event
            for event in (self.ups if change > 0 else self.downs)
        )
        replace_index = max((number for number, event in enumerate(events) if event.outdated), default=None)
        events = _with_entry(events, ScaleEvent(abs(change), now), replace_index)
        return replace(self, ups=events) if change > 0 else replace(self, downs=events)

    def with_condition(self, kind: str, status: Status, reason: str, message: str, *, now: float) -> "History":
        """Return the history with a condition set. An existing one keeps its place, and its time if the status is unchanged."""
        previous = self.condition(kind)
        since = previous.since if previous is not None and previous.status == status else now
        new = Condition(kind, status, reason, message, since)  # type: ignore[arg-type]  # the callers' literals
        if previous is None:
            return replace(self, conditions=(*self.conditions, new))
        return replace(self, conditions=tuple(new if condition.type == kind else condition for condition in self.conditions))


def changed_within(events: tuple[ScaleEvent, ...], period: int, now: float) -> int:
    """Replicas by which the target was scaled in the last ``period`` seconds."""
    return wrapped32(sum(event.change for event in events if event.at > now - period))


def _with_entry(entries: tuple[_Entry, ...], entry: _Entry, replace_index: int | None) -> tuple[_Entry, ...]:
    return (*entries, entry) if replace_index is None else (*entries[:replace_index], entry, *entries[replace_index + 1 :])
