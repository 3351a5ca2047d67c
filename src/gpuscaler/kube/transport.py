"""One HTTP exchange with an API server, over a socket or directly with handlers in the same process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """A request: ``path`` without the query, ``query`` decoded, header names in lower case.

    ``timeout`` is the limit in seconds until the head of the answer arrives, and between two pieces of its body; None means no limit.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout: float | None = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, header names in lower case, and its body in pieces of any size as they come."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class WholeBody:
    """A complete body, in one piece. Not a generator: an event loop keeps track of each generator until it has ended."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        body, self._body = self._body, b""
        if not body:
            raise StopAsyncIteration
        return body


class Transport(Protocol):
    """Carries requests.

    ``exchange`` raises :class:`gpuscaler.kube.errors.Unreachable` when no answer comes, on entering or while its pieces are read.
    Leaving the context ends the exchange, even if a part of the body is unread.
    """

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Answer]: ...

    async def close(self) -> None: ...
