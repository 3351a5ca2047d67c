"""Watches the events that Azure schedules for this machine, and reports the most urgent one on the machine's own Node.

A spot machine may have 30 s left when its event appears, so it is read every two seconds. One failure delays nothing else: events that
cannot be written on the Node stand on the exporter's page, and a service that does not answer leaves the last report in place.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
from msgspec.structs import replace

from gpuscaler.exporter.exposition import Page, format_labels, format_number
from gpuscaler.exporter.scheduled_events.document import (
    SCHEDULED,
    STARTED,
    Document,
    DocumentError,
    MachineEvent,
    events_of,
    parse_document,
)
from gpuscaler.exporter.scheduled_events.metadata_service import MetadataError
from gpuscaler.kube.errors import ApiError, Forbidden, Unreachable
from gpuscaler.model.azure_names import event_resource
from gpuscaler.model.scheduled_events import format_scheduled_event, urgency

#: The pause after failures grows to at most this many seconds: every second of a notice counts.
LONGEST_PAUSE = 10.0
#: How often a report is written again although nothing changed, in case something else removed it, and how long a forbidden write is not
#: repeated, in seconds.
REPEAT_SECONDS, FORBIDDEN_SECONDS = 30.0, 60.0
#: How long the check whether the node is drained may take, in seconds.
CHECK_SECONDS = 5.0
#: How often the machine's name is asked for again after a failure, in seconds.
NAME_SECONDS = 60.0


class Service(Protocol):
    """The machine's metadata service; every call may raise :class:`MetadataError`."""

    async def events(self) -> bytes: ...

    async def machine_name(self) -> str: ...

    async def start(self, event_id: str) -> None: ...


class NodeWriter(Protocol):
    """The machine's Node; every call may raise ``ApiError`` and ``Unreachable``."""

    async def annotate(self, value: str | None) -> None: ...

    async def is_drained(self) -> bool: ...


class EventWatcher:
    """Reads the events every ``interval`` seconds and reports those of node ``node``.

    Without ``writer`` they are only on the exporter's page. With ``acknowledges``, Azure may go on with an event as soon as the node
    is drained, unless the event also concerns other machines. ``log`` takes a level and a sentence; ``clock`` is monotonic, in seconds.

    ``events`` are the current events of this machine, the most urgent first; ``reading`` and ``writing`` say what fails now, empty if
    nothing does; ``set_aside`` counts unreadable events, and ``has_read`` is whether there was any answer yet.
    """

    def __init__(
        self,
        service: Service,
        writer: NodeWriter | None,
        node: str,
        *,
        interval: float,
        log: Callable[[str, str], None],
        clock: Callable[[], float],
        acknowledges: bool = False,
    ) -> None:
        self.events: tuple[MachineEvent, ...] = ()
        self.reading = self.writing = ""
        self.set_aside = 0
        self.has_read = False
        self.writer, self.node = writer, node
        self._service, self._interval, self._log, self._clock, self._acknowledges = service, interval, log, clock, acknowledges
        #: The names of the machine in Azure, in lower case: as its node name says, and as the service says.
        self._names = {node.lower(), event_resource(node.lower())}
        self._name_due: float | None = 0.0
        self._incarnation: int | None = None
        #: The times of current events, by id: once an event has started, it has none.
        self._times: dict[str, float] = {}
        #: What is on the Node: None for nothing, and the time of the last write. Nothing is known about an earlier process's report.
        self._written: str | None = None
        self._written_at: float | None = None
        #: The value that was refused last, and the time until which it is not written again.
        self._refused: str | None = None
        self._no_write_before = 0.0
        self._acknowledged: set[str] = set()
        self._failures = 0

    async def run(self) -> None:
        """Watch until cancelled. The report stays: this process may end because its machine does."""
        while True:
            due = self._clock() + await self.poll()
            await asyncio.sleep(max(0.0, due - self._clock()))

    async def poll(self) -> float:
        """Read, write and acknowledge once; return the seconds from the beginning of this call to the next one."""
        await self._learn_name(self._clock())
        try:
            document = parse_document(await self._service.events(), known=self._incarnation)
        except (MetadataError, DocumentError) as error:
            self._note_reading(str(error))
            self._failures += 1
            return max(self._interval, min(self._interval * 2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE))
        self._failures = 0
        if document is not None:
            self._take(document)
        self.has_read = True
        self._note_reading("")
        if self.writer is not None:
            await self._report(self.writer)
            await self._acknowledge(self.writer)
        return self._interval

    def troubles(self) -> Iterator[str]:
        """The events of this machine, and what fails now, as sentences."""
        for event in self.events:
            yield f"scheduled events: {event.event.kind} of this machine, {event.event.id}: {event.event.description}"
        yield from (f"scheduled events: {trouble}" for trouble in (self.reading, self.writing) if trouble)

    def page(self) -> bytes:
        """The most urgent event as JSON, for a controller that cannot see it on the Node, and whether it is ``written`` there.

        Raises no error; before the first answer of the service there is no event.
        """
        value = format_scheduled_event(self.events[0].event) if self.events else None
        written = self._written_at is not None and self._written == value and not self.writing
        return msgspec.json.encode({"written": written, "event": None if value is None else msgspec.Raw(value.encode())})

    def add_metrics(self, page: Page) -> None:
        """Add the events of this machine, and whether they can be read and reported."""
        working = page.add("gpuscaler_exporter_working", "1 while the part works")
        working.append(f'gpuscaler_exporter_working{{part="events"}} {int(self.has_read and not self.reading)}')
        if self.writer is not None:
            working.append(f'gpuscaler_exporter_working{{part="node"}} {int(self._written_at is not None and not self.writing)}')
        metric = "gpuscaler_exporter_scheduled_events_set_aside_total"
        page.add(metric, "Events of the cloud that were not readable", "counter").append(f"{metric} {self.set_aside}")
        metric = "gpuscaler_exporter_scheduled_event_timestamp_seconds"
        for event in self.events:
            labels = {
                "node_name": self.node,
                "kind": event.event.kind,
                "event_id": event.event.id,
                "status": STARTED if event.started else SCHEDULED,
            }
            lines = page.add(metric, "When the cloud does at the earliest what it has scheduled for the machine; 0 if unknown")
            lines.append(f"{metric}{{{','.join(format_labels(labels))}}} {format_number(event.event.at)}")

    async def _learn_name(self, now: float) -> None:
        """Ask for the machine's name until it is known: in a scale set with its own prefix of host names, node names do not tell it."""
        if self._name_due is None or now < self._name_due:
            return
        try:
            name = (await self._service.machine_name()).lower()
            self._name_due = None
            if name not in self._names:
                self._names.add(name)
                # The events that are known may concern this machine after all.
                self._incarnation = None
        except MetadataError as error:
            self._name_due = None if error.missing else now + NAME_SECONDS

    def _take(self, document: Document) -> None:
        """Take a new document."""
        self._incarnation = document.incarnation
        own = [self._with_time(event) for event in events_of(document, self._names)]
        odd = [*document.set_aside, *(event.oddity for event in own if event.oddity)]
        self.set_aside += len(odd)
        for text in odd[:3]:
            self._log("warning", f"scheduled events: {text}")
        before = {event.event.id for event in self.events}
        self.events = tuple(sorted(own, key=lambda event: urgency(event.event)))
        self._times = {event.event.id: event.event.at for event in own}
        self._acknowledged &= self._times.keys()
        for event in self.events:
            if event.event.id not in before:
                self._log("warning", f"scheduled events: {event.event.kind} of this machine, {event.event.id}: {event.event.description}")
        if before - self._times.keys():
            self._log("info", f"scheduled events: over or cancelled: {', '.join(sorted(before - self._times.keys()))}")

    def _with_time(self, event: MachineEvent) -> MachineEvent:
        """``event`` with the time that it had before it started."""
        at = event.event.at or self._times.get(event.event.id, 0.0)
        return replace(event, event=replace(event.event, at=at))

    def _note_reading(self, trouble: str) -> None:
        if trouble != self.reading or not self.has_read:
            if trouble:
                self._log("warning", f"scheduled events: {trouble}")
            elif self.reading:
                self._log("info", "scheduled events: they can be read again")
        self.reading = trouble

    async def _report(self, writer: NodeWriter) -> None:
        """Write the most urgent event on the Node, or remove it; an earlier process's report is removed as well."""
        now = self._clock()
        value = format_scheduled_event(self.events[0].event) if self.events else None
        due = self._written_at is None or value != self._written or (value is not None and now >= self._written_at + REPEAT_SECONDS)
        if not due or (now < self._no_write_before and value == self._refused):
            return
        try:
            await writer.annotate(value)
        except (ApiError, Unreachable) as error:
            trouble = f"the node cannot be annotated: {error}"
            if trouble != self.writing:
                self._log("warning", f"scheduled events: {trouble}; they are only on this exporter's page")
            self.writing, self._refused = trouble, value
            self._no_write_before = now + (FORBIDDEN_SECONDS if isinstance(error, Forbidden) else 0.0)
        else:
            self.writing = ""
            self._written, self._written_at = value, now

    async def _acknowledge(self, writer: NodeWriter) -> None:
        """Approve events of this machine alone, once its node is drained: an approval is for all machines of the event."""
        waiting = list(self._unacknowledged()) if self._acknowledges else []
        if not waiting:
            return
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                if not await writer.is_drained():
                    return
            for event_id in waiting:
                await self._service.start(event_id)
                self._acknowledged.add(event_id)
                self._log("info", f"scheduled events: the node is drained, so {event_id} is acknowledged")
        except TimeoutError:
            self._log("warning", f"scheduled events: no acknowledgement: no answer of the API server within {CHECK_SECONDS:g} s")
        except (ApiError, Unreachable, MetadataError) as error:
            self._log("warning", f"scheduled events: no acknowledgement: {error}")

    def _unacknowledged(self) -> Iterator[str]:
        for event in self.events:
            if not event.started and event.machines <= self._names and event.event.id not in self._acknowledged:
                yield event.event.id
