"""What came of a purchase, as events for breakers."""

from collections.abc import Iterable

from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.offering_events import Absent, Asked, Event, Failed, Granted, Refused


def of_answer(granted: Iterable[OfferingKey], refused: Iterable[Refused], now: float, *, missing: int) -> tuple[Event, ...]:
    """The events of an answer: an offering for each machine that was ``granted``, what was ``refused``, and how many are ``missing``.

    Whether other offerings of the request gave what one had not, and whether that gave some itself, is filled in here.
    """
    given = dict.fromkeys(granted)
    events: list[Event] = [Granted(key, now) for key in given]
    for one in refused:
        events += [Asked(one.offering, now), replace(one, filled=missing <= 0, partial=one.offering in given)]
    return tuple(events)


def of_absence(offering: OfferingKey, asked: float, now: float, why: str) -> tuple[Event, ...]:
    """The events of a machine that was ``asked`` for and never became a node."""
    return Absent(offering, asked, now, why), Failed(offering, now, why)
