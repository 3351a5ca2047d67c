"""The results of a purchase as events for breakers."""

from collections.abc import Iterable

from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.offering_events import Absent, Asked, Event, Failed, Granted, Refused


def events_of_answer(granted: Iterable[OfferingKey], refused: Iterable[Refused], now: float, *, missing: int) -> tuple[Event, ...]:
    """Return the events for an answer of the cloud: ``granted`` has the offering of each machine, ``refused`` the refusals.

    ``missing`` is how many machines of the order were not granted. Each refusal event also states whether other offerings of the request
    supplied all machines, and whether the offering itself granted some of them.
    """
    granting = dict.fromkeys(granted)
    events: list[Event] = [Granted(key, now) for key in granting]
    for refusal in refused:
        events += [Asked(refusal.offering, now), replace(refusal, filled=missing <= 0, partial=refusal.offering in granting)]
    return tuple(events)


def events_of_absence(offering: OfferingKey, asked_at: float, now: float, why: str) -> tuple[Event, ...]:
    """Return the events for a machine that was requested at ``asked_at`` and never became a node."""
    return Absent(offering, asked_at, now, why), Failed(offering, now, why)
