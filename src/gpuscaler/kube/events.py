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
        said = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "namespace": self.namespace, "uid": self.uid}
        return {key: value for key, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class Happened:
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
    told: int = 0
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
    _series: OrderedDict[Happened, _Series] = field(default_factory=OrderedDict, init=False, repr=False)
    _limits: OrderedDict[Reference, RateLimit] = field(default_factory=OrderedDict, init=False, repr=False)
    _due: list[tuple[float, int, Happened]] = field(default_factory=list, init=False, repr=False)
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
        what = Happened(regarding, shortened(reason, _WORD), shortened(action, _WORD), shortened(note, _NOTE), warning, related)
        now = self.now()
        known = self._series.get(what)
        if known is not None and now - known.last < self.window:
            known.count += 1
            known.last = now
            self._series.move_to_end(what)
            self._queue(what, known, self.refresh if known.told else 0.0)
            return
        if not self._admitted(regarding):
            self.dropped += 1
            return
        self._number += 1
        self._series[what] = series = _Series(_name(regarding.name, now, self._number), now, now)
        self._series.move_to_end(what)
        self._queue(what, series, 0.0)
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
            await self._next()

    async def flush(self) -> None:
        """Write all pending Events without waiting for their time; for use at shutdown, under a time-out of the caller."""
        while self._due:
            await self._next()

    def _queue(self, what: Happened, series: _Series, delay: float) -> None:
        if not series.queued:
            series.queued = True
            self._number += 1
            heapq.heappush(self._due, (asyncio.get_running_loop().time() + delay, self._number, what))
            self._woken.set()

    def _admitted(self, regarding: Reference) -> bool:
        limit = self._limits.setdefault(regarding, RateLimit(1 / self.refill, self.burst))
        self._limits.move_to_end(regarding)
        if len(self._limits) > self.most:
            self._limits.popitem(last=False)
        if limit.reserve(asyncio.get_running_loop().time()) > 0:
            limit.give_back()
            return False
        return True

    async def _next(self) -> None:
        _, _, what = heapq.heappop(self._due)
        series = self._series.get(what)
        if series is None or not series.queued:
            return
        series.queued = False
        if series.told == series.count:
            return
        count = series.count
        try:
            await self._write(what, series)
        except (Unreachable, TooManyRequests, ServerError) as error:
            self._failed(what, series, error)
        except (ApiError, NotLeaderError) as error:
            # Forbidden, a namespace that is being deleted, lost leadership: trying again would not help.
            self._drop(series, error)
        else:
            self.written += 1
            series.told, series.failures = count, 0
            if series.count > count:
                self._queue(what, series, self.refresh)

    async def _write(self, what: Happened, series: _Series) -> None:
        # An Event about an object without a namespace belongs into "default", where kubectl looks for it.
        namespace = what.regarding.namespace or "default"
        if series.told:
            try:
                await self.client.merge_patch(EVENTS, series.name, {"series": _told(series)}, namespace=namespace)
            except NotFound:
                pass  # The server keeps Events for an hour; a series that continues after that gets a new one.
            else:
                return
        try:
            await self.client.create(EVENTS, self._body(what, series, namespace), namespace=namespace)
        except AlreadyExists:
            # An earlier try arrived after all. The next refresh brings its count up to date.
            return

    def _body(self, what: Happened, series: _Series, namespace: str) -> dict[str, Any]:
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": namespace},
            "eventTime": _time(series.first),
            "reportingController": self.component,
            "reportingInstance": shortened(self.instance, _WORD),
            "type": "Warning" if what.warning else "Normal",
            "reason": what.reason,
            "action": what.action,
            "note": what.note,
            "regarding": what.regarding.body(),
        }
        if what.related is not None:
            body["related"] = what.related.body()
        if series.count > 1:
            body["series"] = _told(series)
        return body

    def _failed(self, what: Happened, series: _Series, error: ApiError | Unreachable) -> None:
        series.failures += 1
        if series.failures >= self.tries:
            self._drop(series, error)
            return
        pause = max(2.0 ** (series.failures - 1), getattr(error, "retry_after", None) or 0.0)
        self._queue(what, series, min(pause, self.refresh))

    def _drop(self, series: _Series, error: Exception) -> None:
        self.dropped += 1
        series.failures = 0
        series.told = max(series.told, series.count)
        _LOG.warning("an Event could not be written", event_name=series.name, problem=str(error))


def shortened(text: str, most: int) -> str:
    """``text`` cut to at most ``most`` bytes of UTF-8, with an ellipsis if something is left out."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    mark: Final = "…"
    return encoded[: most - len(mark.encode())].decode(errors="ignore") + mark


def _name(regarding: str, now: float, number: int) -> str:
    """A unique name: the object's name, the time in nanoseconds, and a number that distinguishes simultaneous Events."""
    suffix = f".{int(now * 1e9) + number:x}"
    return regarding[: _NAME - len(suffix)].rstrip("-.") + suffix


def _told(series: _Series) -> dict[str, Any]:
    return {"count": series.count, "lastObservedTime": _time(series.last)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
