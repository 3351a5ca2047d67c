"""One watch: its request, and its events as they come."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.lines import LineSplitter
from gpuscaler.kube.resources import Resource
from gpuscaler.kube.transport import Request
from gpuscaler.model.decoding.objects import Data

#: An API server's spelling of the relevant events. Cutting out the object by position avoids a parsing pass over every object.
_EVENT_PREFIXES = tuple((f'{{"type":"{kind}","object":'.encode(), kind) for kind in ("ADDED", "MODIFIED", "DELETED"))


_SLACK = 15.0


class SilentError(Exception):
    """A watch was open and nothing came for longer than a bookmark takes. It may be quiet, or its connection may be dead."""


class WatchEvent(NamedTuple):
    type: str
    object: Data


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_Event).decode


def event_of(line: bytes) -> WatchEvent:
    """The event in ``line``.

    If the line has the server's usual spelling, its object is cut out unparsed and may not be JSON: then use :func:`checked_event`.
    """
    for prefix, kind in _EVENT_PREFIXES:
        if line.startswith(prefix) and line.endswith(b"}"):
            return WatchEvent(kind, memoryview(line)[len(prefix) : -1])
    return checked_event(line)


def checked_event(line: bytes) -> WatchEvent:
    """The event in ``line``, parsed as JSON. Raises :class:`msgspec.MsgspecError` if it is not an event."""
    event = _event(line)
    return WatchEvent(event.type, event.object)


def watch_request(resource: Resource, *, version: str | None, seconds: int, silence: float, bookmarks: bool = True) -> Request:
    """The request for the events after ``version``, or, if it is None, for all existing objects and the events after that.

    The server ends the watch after ``seconds``. The transport's time-out only covers connections that never answer: :func:`watch_lines`
    enforces ``silence``, and comes first.
    """
    query = {"watch": "true", "timeoutSeconds": str(seconds)}
    if bookmarks:
        query["allowWatchBookmarks"] = "true"
    if version is None:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    else:
        query["resourceVersion"] = version
    return Request("GET", resource.path(), query, {"accept": "application/json"}, timeout=silence + _SLACK)


async def watch_lines(client: Client, request: Request, *, silence: Callable[[], float]) -> AsyncGenerator[list[bytes], None]:
    """The lines of a watch, in groups as they arrive; first an empty list, once the server has accepted the watch.

    Raises :class:`~gpuscaler.kube.errors.ApiError`, :class:`~gpuscaler.kube.errors.Unreachable`, and :class:`SilentError` when nothing
    comes for ``silence()`` seconds. Ends when the server ends it. Close it (``contextlib.aclosing``) to end it earlier.
    """
    splitter = LineSplitter()
    async with client.exchange(request) as answer:
        yield []
        pieces, patience = aiter(answer.pieces), _SilenceTimer()
        try:
            while True:
                try:
                    limit = silence()
                    piece = await patience.next_of(pieces, limit)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    raise SilentError(f"{request.path}: nothing came for {limit:g} s") from None
                yield splitter.feed(piece)
        finally:
            patience.close()
    if splitter.rest():
        raise Unreachable(f"{request.path}: the watch ended in the middle of an event")


class _SilenceTimer:
    """Ends too long a wait for the next piece, as ``asyncio.timeout`` does, with one timer for all waits of a watch.

    One timer per wait costs as much as reading the event that ends it. This one fires, sees that something came in between, and is set
    again to the time-out of the current wait.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: The waiting task, and its time limit.
        self._task: asyncio.Task[Any] | None = None
        self._until = self._fires_at = 0.0
        self._expired = False

    async def next_of(self, pieces: AsyncIterator[bytes], limit: float) -> bytes:
        """The next piece. Raises :class:`TimeoutError` after ``limit`` seconds."""
        task = self._task = asyncio.current_task()
        assert task is not None
        cancelled, self._until = task.cancelling(), self._loop.time() + limit
        if self._timer is None or self._fires_at > self._until:
            self._set()
        try:
            return await anext(pieces)
        except asyncio.CancelledError:
            if self._expired and task.uncancel() <= cancelled:
                raise TimeoutError from None
            raise
        finally:
            self._task = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self.close()
        self._fires_at = self._until
        self._timer = self._loop.call_at(self._fires_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._task is None:
            return  # The last piece is still being processed: the next wait sets the timer.
        if self._until > self._fires_at:
            self._set()
            return
        self._expired = True
        self._task.cancel()
