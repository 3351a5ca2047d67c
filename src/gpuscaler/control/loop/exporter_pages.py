"""Scheduled events from the pages of exporters that may not write them on their nodes.

Each exporter is believed only about the node that its pod runs on, and only pods of DaemonSets in one namespace count: others can have any
labels. Exporters that write events on their nodes are rarely asked.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import PODS
from gpuscaler.model.scheduled_events import LONGEST_VALUE, ScheduledEvent, parse_scheduled_event

_LOG = structlog.get_logger(__name__)
#: The path of the page, and the label that the chart gives to pods with it, whatever the release is called.
PATH, SELECTOR = "/scheduled-events", "app.kubernetes.io/component=exporter"
#: How often the pods are listed, and how often exporters are asked that write on their nodes, or that have no such page, in seconds.
LIST_SECONDS, RARELY_SECONDS = 10.0, 60.0
#: How long one answer may take, in seconds, its greatest size in bytes, and the most requests in progress.
ANSWER_SECONDS, MOST_BYTES, CONCURRENT = 1.5, 4 * LONGEST_VALUE, 64
#: How long an event of an exporter counts that does not answer any more, in seconds.
KEPT_SECONDS = 60.0


class _Owner(msgspec.Struct):
    kind: str = ""
    controller: bool = False


class _Metadata(msgspec.Struct):
    uid: str = ""
    owners: list[_Owner] | None = msgspec.field(default=None, name="ownerReferences")


class _Spec(msgspec.Struct):
    node: str = msgspec.field(default="", name="nodeName")


class _Status(msgspec.Struct):
    address: str = msgspec.field(default="", name="podIP")


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Page(msgspec.Struct):
    """The page: whether the exporter writes the event on its node, and the event as in the annotation."""

    written: bool = False
    event: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


@dataclass(slots=True)
class _Exporter:
    """An exporter at ``address`` on ``node``; ``due`` is when it is asked next, ``read_at`` when it answered last (event loop's time)."""

    address: str
    node: str
    due: float = 0.0
    event: ScheduledEvent | None = None
    read_at: float = 0.0
    trouble: str = ""


@dataclass(slots=True)
class ExporterPages:
    """Reads the pages of the exporters in ``namespace`` every ``interval`` seconds while :meth:`run` runs.

    ``events`` are the events by node. ``trouble`` says, in a sentence, which exporters cannot be read; empty if all can.
    """

    client: Client
    namespace: str
    port: int
    interval: float
    list_seconds: float = LIST_SECONDS
    events: Mapping[str, ScheduledEvent] = field(default_factory=dict)
    trouble: str = ""
    _exporters: dict[str, _Exporter] = field(default_factory=dict)
    _listed_at: float | None = None

    async def run(self, changed: Callable[[], None]) -> None:
        """Read until cancelled; ``changed`` is called when there are other events."""
        loop = asyncio.get_running_loop()
        # No proxy of the environment may see these requests, or answer them.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONCURRENT), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as session:
            while True:
                due = loop.time() + self.interval
                await self.read(session, changed)
                await asyncio.sleep(max(0.0, due - loop.time()))

    async def read(self, session: aiohttp.ClientSession, changed: Callable[[], None]) -> None:
        """Read each page that is due once. An event counts at once, and does not wait for slower exporters."""
        now = asyncio.get_running_loop().time()
        listing = ""
        if self._listed_at is None or now >= self._listed_at + self.list_seconds:
            listing = await self._list(now)
        due = [exporter for exporter in self._exporters.values() if now >= exporter.due]
        await asyncio.gather(*(self._ask(session, exporter, changed) for exporter in due))
        self._collect(changed)
        self._note_trouble(listing)

    async def _list(self, now: float) -> str:
        """Find the exporters; returns why that failed, empty if it did not."""
        try:
            listed = await self.client.list_all(PODS, namespace=self.namespace, query={"labelSelector": SELECTOR})
        except (ApiError, Unreachable) as error:
            return f"the exporters in namespace {self.namespace} cannot be listed: {error}"
        self._listed_at = now
        exporters: dict[str, _Exporter] = {}
        for raw in listed:
            try:
                pod = msgspec.json.decode(raw, type=_Pod)
            except msgspec.DecodeError:
                continue
            daemon = any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owners or ())
            if daemon and pod.spec.node and pod.status.address:
                known = self._exporters.get(pod.metadata.uid)
                same = known is not None and (known.address, known.node) == (pod.status.address, pod.spec.node)
                exporters[pod.metadata.uid] = known if known is not None and same else _Exporter(pod.status.address, pod.spec.node)
        self._exporters = exporters
        return ""

    async def _ask(self, session: aiohttp.ClientSession, exporter: _Exporter, changed: Callable[[], None]) -> None:
        now = asyncio.get_running_loop().time()
        host = f"[{exporter.address}]" if ":" in exporter.address else exporter.address
        url = f"http://{host}:{self.port}{PATH}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS), session.get(url, allow_redirects=False) as answer:
                if answer.status == 404:
                    # An exporter that was not asked to read scheduled events.
                    exporter.event, exporter.trouble, exporter.due = None, "", now + RARELY_SECONDS
                    return
                body = await _bounded(answer)
            if answer.status != 200:
                raise ValueError(f"saw HTTP status {answer.status}")
            page = msgspec.json.decode(body, type=_Page)
            event = None if bytes(page.event) == b"null" else parse_scheduled_event(bytes(page.event).decode())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            exporter.trouble = f"{url} on node {exporter.node}: {type(error).__name__}: {str(error)[:200]}"
            if now > exporter.read_at + KEPT_SECONDS:
                exporter.event = None
            return
        exporter.event, exporter.read_at, exporter.trouble = event, now, ""
        exporter.due = now + RARELY_SECONDS if page.written else 0.0
        if event is not None and self.events.get(exporter.node) != event:
            self._collect(changed)

    def _collect(self, changed: Callable[[], None]) -> None:
        """Update ``events``."""
        events = {exporter.node: exporter.event for exporter in self._exporters.values() if exporter.event is not None}
        if events != self.events:
            self.events = events
            changed()

    def _note_trouble(self, listing: str) -> None:
        failing = [exporter.trouble for exporter in self._exporters.values() if exporter.trouble]
        trouble = listing
        if failing and not listing:
            trouble = f"{len(failing)} of {len(self._exporters)} exporters cannot be read for scheduled events, such as {failing[0]}"
        if bool(trouble) != bool(self.trouble):
            if trouble:
                _LOG.warning("scheduled events of some machines are unknown", problem=trouble)
            else:
                _LOG.info("the scheduled events of all exporters can be read again")
        self.trouble = trouble


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """The body. Raises ValueError if it is too large."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MOST_BYTES:
            raise ValueError(f"saw more than {MOST_BYTES} bytes")
    return bytes(body)
