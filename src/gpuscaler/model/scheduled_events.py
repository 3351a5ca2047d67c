"""Events that a cloud schedules for a machine, as an annotation of its node that an agent there writes and the controller reads. Pure.

The kinds are those of Azure's Scheduled Events (api-version 2020-07-01). An agent on machines of any other cloud may write the same.
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from gpuscaler.model.well_known import OWN_PREFIX

#: The annotation: the most urgent event of the node's own machine, as JSON with ``kind``, ``id``, ``at`` and ``description``.
SCHEDULED_EVENT: Final = f"{OWN_PREFIX}scheduled-event"
#: The spot machine is deleted; the machine is deleted by its owner; it moves to other hardware and loses its local disks; it restarts; it
#: pauses for seconds and loses nothing.
PREEMPT, TERMINATE, REDEPLOY, REBOOT, FREEZE = KINDS = ("Preempt", "Terminate", "Redeploy", "Reboot", "Freeze")
#: The kinds after which the machine does not exist any more, and those after which its pods have lost their work.
INTERRUPTIONS: Final = frozenset({PREEMPT, TERMINATE})
RESTARTS: Final = frozenset({REDEPLOY, REBOOT})
#: The longest value of the annotation, and the longest description in it, in characters. An account that may write the annotation could
#: otherwise fill every copy of the node.
LONGEST_VALUE, LONGEST_DESCRIPTION = 2048, 512
#: Seconds from 1970 to 2200.
LATEST: Final = 7_258_118_400.0
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class ScheduledEvent(Struct, frozen=True, gc=False):
    """An event. ``at`` is the time before which it does not happen, in seconds since the epoch; 0 if unknown, as once it has started."""

    kind: str
    id: str
    at: float = 0.0
    description: str = ""


class _Value(Struct):
    """The value of the annotation; ``at`` is an RFC 3339 time, or empty."""

    kind: str
    id: str
    at: str = ""
    description: str = ""


def urgency(event: ScheduledEvent) -> tuple[int, float, str]:
    """The order of events, the most urgent first: by kind, then by time."""
    return KINDS.index(event.kind), event.at, event.id


def is_event_id(text: str) -> bool:
    """Whether ``text`` can be the id of an event: up to 128 letters, digits, dots, colons, dashes and underscores."""
    return _ID.fullmatch(text) is not None


def printable(text: str) -> str:
    """Return ``text`` on one line, cut to the longest description: it comes from outside, and goes into annotations and reports."""
    words = " ".join("".join(character if character.isprintable() else " " for character in text[: 2 * LONGEST_DESCRIPTION]).split())
    return words if len(words) <= LONGEST_DESCRIPTION else f"{words[: LONGEST_DESCRIPTION - 1]}…"


def format_scheduled_event(event: ScheduledEvent) -> str:
    """Return the value of the annotation for ``event``."""
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if event.at else ""
    return msgspec.json.encode(_Value(event.kind, event.id, at, printable(event.description))).decode()


def parse_scheduled_event(text: str) -> ScheduledEvent:
    """Read a value of the annotation. Raises ValueError with what was expected."""
    if len(text) > LONGEST_VALUE:
        raise ValueError(f"at most {LONGEST_VALUE} characters")
    try:
        value = msgspec.json.decode(text, type=_Value)
    except (msgspec.DecodeError, UnicodeError):
        raise ValueError('JSON such as {"kind":"Preempt","id":"…","at":"2026-01-31T12:00:00Z","description":"…"}') from None
    if value.kind not in KINDS:
        raise ValueError(f"a kind of {', '.join(KINDS)}")
    if not is_event_id(value.id):
        raise ValueError("an id of at most 128 letters, digits, dots, colons, dashes and underscores")
    return ScheduledEvent(value.kind, value.id, _seconds(value.at), printable(value.description))


def _seconds(text: str) -> float:
    if not text:
        return 0.0
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp() if moment.tzinfo is not None else -1.0
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0.0 <= seconds < LATEST:
        raise ValueError("a time such as 2026-01-31T12:00:00Z as at, or none")
    return seconds
