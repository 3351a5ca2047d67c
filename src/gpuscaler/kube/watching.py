"""One watch: what is asked, and its events as they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

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
        pieces = aiter(answer.pieces)
        while True:
            try:
                limit = silence()
                async with asyncio.timeout(limit):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                break
            except TimeoutError:
                raise SilentError(f"{request.path}: nothing came for {limit:g} s") from None
            yield splitter.feed(piece)
    if splitter.rest():
        raise Unreachable(f"{request.path}: the watch ended in the middle of an event")
