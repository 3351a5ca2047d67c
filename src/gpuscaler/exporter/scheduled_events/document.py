"""The document of scheduled events, as Azure's metadata service answers (api-version 2020-07-01). Pure.

The document goes to all machines of a placement group: ``Resources`` of an event has the names of the machines that it concerns.
"""

from collections.abc import Iterator, Set
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec
from msgspec import Struct

from gpuscaler.model.scheduled_events import KINDS, LATEST, ScheduledEvent, is_event_id, printable

SCHEDULED, STARTED = STATUSES = ("Scheduled", "Started")
#: The only type of resource, and the most names and characters of names that are read.
_MACHINE: Final = "VirtualMachine"
_MOST_RESOURCES, _LONGEST_NAME = 5000, 256


class DocumentError(Exception):
    """The answer is no document of scheduled events; the text says what was seen and expected."""


class MachineEvent(Struct, frozen=True):
    """An event, and the machines that it concerns, by their names in Azure in lower case. ``oddity`` says what in it was not readable."""

    event: ScheduledEvent
    started: bool
    machines: frozenset[str]
    oddity: str = ""


class Document(Struct, frozen=True):
    """All events; two documents with the same ``incarnation`` are equal. ``set_aside`` says why events were not readable."""

    incarnation: int
    events: tuple[MachineEvent, ...] = ()
    set_aside: tuple[str, ...] = ()


class _Document(Struct):
    incarnation: int = msgspec.field(name="DocumentIncarnation")
    events: list[msgspec.Raw] = msgspec.field(name="Events", default_factory=list)


class _Event(Struct, rename="pascal"):
    event_id: str
    event_type: str
    resources: list[str]
    event_status: str = SCHEDULED
    resource_type: str = _MACHINE
    not_before: str | None = None
    description: str | None = None


def parse_document(body: bytes, *, known: int | None = None) -> Document | None:
    """Read a document; None if it has the incarnation ``known``. Raises :class:`DocumentError`; an odd event is set aside."""
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeError):
        raise DocumentError(f"saw an answer of {len(body)} bytes, expected JSON with DocumentIncarnation and Events") from None
    if document.incarnation == known:
        return None
    events: list[MachineEvent] = []
    set_aside: list[str] = []
    for number, raw in enumerate(document.events):
        try:
            events.append(_read(raw))
        except ValueError as error:
            set_aside.append(f"Events[{number}]: {error}")
    return Document(document.incarnation, tuple(events), tuple(set_aside))


def events_of(document: Document, names: Set[str]) -> Iterator[MachineEvent]:
    """The events of the machine that has any of ``names``, in lower case."""
    return (event for event in document.events if event.machines & names)


def _read(raw: msgspec.Raw) -> MachineEvent:
    """Read an event; a ValueError says what was seen and expected, without repeating values that may be anything."""
    try:
        event = msgspec.json.decode(raw, type=_Event)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"saw an event that is not readable ({error})") from None
    if event.event_type not in KINDS:
        raise ValueError(f"saw EventType {_shown(event.event_type)}, expected one of {', '.join(KINDS)}")
    if not is_event_id(event.event_id):
        raise ValueError(f"saw EventId {_shown(event.event_id)}, expected up to 128 letters, digits and dashes")
    if event.event_status not in STATUSES:
        raise ValueError(f"saw EventStatus {_shown(event.event_status)}, expected {SCHEDULED} or {STARTED}")
    if event.resource_type != _MACHINE:
        raise ValueError(f"saw ResourceType {_shown(event.resource_type)}, expected {_MACHINE}")
    if len(event.resources) > _MOST_RESOURCES or any(len(name) > _LONGEST_NAME for name in event.resources):
        raise ValueError(f"saw {len(event.resources)} Resources, expected at most {_MOST_RESOURCES} names of {_LONGEST_NAME} characters")
    at, oddity = _seconds(event.not_before or "")
    scheduled = ScheduledEvent(event.event_type, event.event_id, at, printable(event.description or ""))
    machines = frozenset(name.strip().lower() for name in event.resources)
    return MachineEvent(scheduled, event.event_status == STARTED, machines - {""}, oddity)


def _seconds(text: str) -> tuple[float, str]:
    """The time of an HTTP date, and what is odd about it. An event whose time cannot be read still happens: its time is unknown."""
    if not text.strip():
        return 0.0, ""
    try:
        moment = parsedate_to_datetime(text)
        seconds = moment.timestamp() if moment.tzinfo is not None else -1.0
    except (ValueError, OverflowError, TypeError, IndexError):
        seconds = -1.0
    if not 0.0 < seconds < LATEST:
        return 0.0, f"saw NotBefore {_shown(text)}, expected a date such as Mon, 19 Sep 2016 18:29:47 GMT"
    return seconds, ""


def _shown(text: str) -> str:
    return repr(printable(text)[:40])
