"""Results of a purchase, as events for breakers."""

from collections.abc import Iterable

from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.offering_events import Absent, Asked, Event, Failed, Granted, Refused


def of_answer(granted: Iterable[OfferingKey], refused: Iterable[Refused], now: float, *, missing: int) -> tuple[Event, ...]:
    """Return the events of an answer: the offering of each ``granted`` machine, the ``refused`` offerings, and how many are ``missing``.

    Each refusal also gets whether other offerings of the request filled the gap, and whether the refusing offering granted some itself.
    """
    given = dict.fromkeys(granted)
    events: list[Event] = [Granted(key, now) for key in given]
    for one in refused:
        events += [Asked(one.offering, now), replace(one, filled=missing <= 0, partial=one.offering in given)]
    return tuple(events)


def of_absence(offering: OfferingKey, asked: float, now: float, why: str) -> tuple[Event, ...]:
    """Return the events of a machine that was ``asked`` for and never became a node."""
    return Absent(offering, asked, now, why), Failed(offering, now, why)
