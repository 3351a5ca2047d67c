"""Writes Kubernetes Events about actions and their reasons, for ``kubectl describe``. Repeated ones are counted; recording never blocks."""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, ApiError, NotFound, ServerError, TooManyRequests, Unreachable
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import EVENTS

_LOG = structlog.get_logger(__name__)
#: Length limits of the API server (pkg/apis/core/validation/events.go), in bytes.
_NOTE, _WORD, _NAME = 1024, 128, 253


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an Event is about. ``kubectl describe`` searches by ``uid``; a node's is its name, by convention of the kubelet."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"

    def body(self) -> dict[str, str]:
        fields = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "namespace": self.namespace, "uid": self.uid}
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class EventContent:
    """One event. Equal ones are repetitions of the same event.

    ``reason`` is a CamelCase word for machines, ``action`` what was done or attempted, ``note`` a sentence for people.
    """

    regarding: Reference
    reason: str
    action: str
    note: str
    warning: bool = False
    related: Reference | None = None


@dataclass(slots=True)
class _Series:
    """How often an event happened, and how many of these the server knows."""

    name: str
    first: float
    last: float
    count: int = 1
    reported: int = 0
    failures: int = 0
    queued: bool = False


@dataclass(slots=True)
class EventRecorder:
    """Writes events.k8s.io/v1 Events. ``record`` never waits or fails; ``run`` does the writing and must be kept running.

    Repetitions within ``window`` seconds are one Event with a count, which is written at most every ``refresh`` seconds. One object gets
    ``burst`` Events at once and then one every ``refill`` seconds, so that a flapping object does not crowd out others. What cannot be
    written after a few tries is dropped and counted. ``now`` is the wall clock in seconds since the epoch. ``client`` should have a rate
    limit of its own: thousands of pods may get an Event at once, and no purchase may wait behind them.
    """

    client: Client
    now: Callable[[], float]
    component: str = "gpuscaler"
    instance: str = "gpuscaler"
    window: float = 600.0
    refresh: float = 60.0
    burst: int = 25
    refill: float = 300.0
    tries: int = 5
    #: The most events that are remembered; the oldest are forgotten.
    most: int = 10_000
    written: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    _series: OrderedDict[EventContent, _Series] = field(default_factory=OrderedDict, init=False, repr=False)
    _limits: OrderedDict[Reference, RateLimit] = field(default_factory=OrderedDict, init=False, repr=False)
    _due: list[tuple[float, int, EventContent]] = field(default_factory=list, init=False, repr=False)
    _number: int = field(default=0, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False, repr=False)

    def record(
        self,
        regarding: Reference,
        reason: str,
        note: str,
        *,
        action: str,
        warning: bool = False,
        related: Reference | None = None,
    ) -> None:
        """Record that something happened to ``regarding``; ``run`` writes it soon."""
        content = EventContent(
            regarding, cut_to_bytes(reason, _WORD), cut_to_bytes(action, _WORD), cut_to_bytes(note, _NOTE), warning, related
        )
        now = self.now()
        existing = self._series.get(content)
        if existing is not None and now - existing.last < self.window:
            existing.count += 1
            existing.last = now
            self._series.move_to_end(content)
            self._queue(content, existing, self.refresh if existing.reported else 0.0)
            return
        if not self._is_admitted(regarding):
            self.dropped += 1
            return
        self._number += 1
        self._series[content] = series = _Series(_event_name(regarding.name, now, self._number), now, now)
        self._series.move_to_end(content)
        self._queue(content, series, 0.0)
        if len(self._series) > self.most:
            self.dropped += self._series.popitem(last=False)[1].queued

    async def run(self) -> None:
        """Write recorded Events, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            if not self._due:
                await self._woken.wait()
                continue
            wait = self._due[0][0] - loop.time()
            if wait > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                except TimeoutError:
                    pass
                continue
            await self._write_next()

    async def flush(self) -> None:
        """Write all pending Events without waiting for their time; for use at shutdown, under a time-out of the caller."""
        while self._due:
            await self._write_next()

    def _queue(self, content: EventContent, series: _Series, delay: float) -> None:
        if not series.queued:
            series.queued = True
            self._number += 1
            heapq.heappush(self._due, (asyncio.get_running_loop().time() + delay, self._number, content))
            self._woken.set()

    def _is_admitted(self, regarding: Reference) -> bool:
        limit = self._limits.setdefault(regarding, RateLimit(1 / self.refill, self.burst))
        self._limits.move_to_end(regarding)
        if len(self._limits) > self.most:
            self._limits.popitem(last=False)
        if limit.reserve(asyncio.get_running_loop().time()) > 0:
            limit.give_back()
            return False
        return True

    async def _write_next(self) -> None:
        _, _, content = heapq.heappop(self._due)
        series = self._series.get(content)
        if series is None or not series.queued:
            return
        series.queued = False
        if series.reported == series.count:
            return
        count = series.count
        try:
            await self._write(content, series)
        except (Unreachable, TooManyRequests, ServerError) as error:
            self._failed(content, series, error)
        except (ApiError, NotLeaderError) as error:
            # Forbidden, a namespace that is being deleted, lost leadership: trying again would not help.
            self._drop(series, error)
        else:
            self.written += 1
            series.reported, series.failures = count, 0
            if series.count > count:
                self._queue(content, series, self.refresh)

    async def _write(self, content: EventContent, series: _Series) -> None:
        # An Event about an object without a namespace belongs into "default", where kubectl looks for it.
        namespace = content.regarding.namespace or "default"
        if series.reported:
            try:
                await self.client.merge_patch(EVENTS, series.name, {"series": _series_body(series)}, namespace=namespace)
            except NotFound:
                pass  # The server keeps Events for an hour; a series that continues after that gets a new one.
            else:
                return
        try:
            await self.client.create(EVENTS, self._body(content, series, namespace), namespace=namespace)
        except AlreadyExists:
            # An earlier try arrived after all. The next refresh brings its count up to date.
            return

    def _body(self, content: EventContent, series: _Series, namespace: str) -> dict[str, Any]:
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": namespace},
            "eventTime": _format_time(series.first),
            "reportingController": self.component,
            "reportingInstance": cut_to_bytes(self.instance, _WORD),
            "type": "Warning" if content.warning else "Normal",
            "reason": content.reason,
            "action": content.action,
            "note": content.note,
            "regarding": content.regarding.body(),
        }
        if content.related is not None:
            body["related"] = content.related.body()
        if series.count > 1:
            body["series"] = _series_body(series)
        return body

    def _failed(self, content: EventContent, series: _Series, error: ApiError | Unreachable) -> None:
        series.failures += 1
        if series.failures >= self.tries:
            self._drop(series, error)
            return
        pause = max(2.0 ** (series.failures - 1), getattr(error, "retry_after", None) or 0.0)
        self._queue(content, series, min(pause, self.refresh))

    def _drop(self, series: _Series, error: Exception) -> None:
        self.dropped += 1
        series.failures = 0
        series.reported = max(series.reported, series.count)
        _LOG.warning("an Event could not be written", event_name=series.name, problem=str(error))


def cut_to_bytes(text: str, limit: int) -> str:
    """``text`` cut to at most ``limit`` bytes of UTF-8, with an ellipsis if something is left out."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    ellipsis: Final = "…"
    return encoded[: limit - len(ellipsis.encode())].decode(errors="ignore") + ellipsis


def _event_name(regarding: str, now: float, number: int) -> str:
    """A unique name: the object's name, the time in nanoseconds, and a number that distinguishes simultaneous Events."""
    suffix = f".{int(now * 1e9) + number:x}"
    return regarding[: _NAME - len(suffix)].rstrip("-.") + suffix


def _series_body(series: _Series) -> dict[str, Any]:
    return {"count": series.count, "lastObservedTime": _format_time(series.last)}


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
