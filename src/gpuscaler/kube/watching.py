"""One watch: what is asked, and its events as they come."""

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

#: How an API server spells the events that matter. Cutting the object out by position spares a pass over every object.
_SPELLED = tuple((f'{{"type":"{kind}","object":'.encode(), kind) for kind in ("ADDED", "MODIFIED", "DELETED"))


_SLACK = 15.0


class SilentError(Exception):
    """A watch was opened and nothing came for longer than a bookmark takes. It may be quiet, or its connection may be dead."""


class WatchEvent(NamedTuple):
    type: str
    object: Data


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_Event).decode


def event_of(line: bytes) -> WatchEvent:
    """The event that ``line`` holds.

    The object of one in the server's usual spelling is cut out unread and may turn out not to be JSON: :func:`checked_event` tells.
    """
    for prefix, kind in _SPELLED:
        if line.startswith(prefix) and line.endswith(b"}"):
            return WatchEvent(kind, memoryview(line)[len(prefix) : -1])
    return checked_event(line)


def checked_event(line: bytes) -> WatchEvent:
    """The event that ``line`` holds, read as JSON. Raises :class:`msgspec.MsgspecError` where it is no event."""
    found = _event(line)
    return WatchEvent(found.type, found.object)


def watch_request(resource: Resource, *, version: str | None, seconds: int, silence: float) -> Request:
    """The request for the events after ``version``, or for everything there is and the events after that where it is None.

    The server ends the watch after ``seconds``. The transport's time-out is only there for connections that never answer: ``silence`` is
    watched by :func:`watch_lines`, and comes first.
    """
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
    if version is None:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    else:
        query["resourceVersion"] = version
    return Request("GET", resource.path(), query, {"accept": "application/json"}, timeout=silence + _SLACK)


async def watch_lines(client: Client, request: Request, *, silence: Callable[[], float]) -> AsyncGenerator[list[bytes], None]:
    """The lines of a watch, as many at a time as came together; an empty list first, once the server has agreed.

    Raises :class:`~gpuscaler.kube.errors.ApiError`, :class:`~gpuscaler.kube.errors.Unreachable`, and :class:`SilentError` when nothing
    comes for ``silence()`` seconds. Ends where the server ends it. Close it (``contextlib.aclosing``) to end it before.
    """
    splitter = LineSplitter()
    async with client.exchange(request) as answer:
        yield []
        pieces, patience = aiter(answer.pieces), _Patience()
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


class _Patience:
    """Ends a wait for the next piece that takes too long, as ``asyncio.timeout`` does, with one timer for all waits of a watch.

    A timer for each costs as much as reading the event that ends it. This one goes off, sees that something came meanwhile, and is set
    again for when the wait that is under way would be too long.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: Who waits now, and until when.
        self._task: asyncio.Task[Any] | None = None
        self._until = self._rings = 0.0
        self._over = False

    async def next_of(self, pieces: AsyncIterator[bytes], limit: float) -> bytes:
        """The next piece. Raises :class:`TimeoutError` after ``limit`` seconds."""
        task = self._task = asyncio.current_task()
        assert task is not None
        cancelled, self._until = task.cancelling(), self._loop.time() + limit
        if self._timer is None or self._rings > self._until:
            self._set()
        try:
            return await anext(pieces)
        except asyncio.CancelledError:
            if self._over and task.uncancel() <= cancelled:
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
        self._rings = self._until
        self._timer = self._loop.call_at(self._rings, self._rung)

    def _rung(self) -> None:
        self._timer = None
        if self._task is None:
            return  # What came last is being read: the next wait sets it.
        if self._until > self._rings:
            self._set()
            return
        self._over = True
        self._task.cancel()
