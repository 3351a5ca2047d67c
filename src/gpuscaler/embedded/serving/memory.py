"""A transport that calls the handlers directly, without sockets, so that it also works in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from gpuscaler.embedded.apiserver.api import ApiServer, close
from gpuscaler.embedded.apiserver.wire.failures import Severed
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.transport import Answer, Request, WholeBody


class MemoryTransport:
    """Carries requests to ``api``, with ``token`` if one is given; each takes ``delay`` seconds to arrive.

    ``cut()`` makes the server unreachable through this transport until ``mend()``: a network partition.
    """

    def __init__(self, api: ApiServer, *, token: str = "", delay: float = 0.0) -> None:
        self._api, self._delay = api, delay
        self._extra = {"authorization": f"Bearer {token}"} if token else {}
        self._whole = asyncio.Event()
        self._whole.set()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        return _Exchange(self, request)

    async def ask(self, request: Request) -> Answer:
        """The answer to ``request``; the caller closes it. Raises :class:`Unreachable`."""
        sent = replace(request, headers={**self._extra, **request.headers}) if self._extra else request
        try:
            # Yield even without a delay, as a socket would, so that a caller in a loop lets other tasks run.
            await asyncio.sleep(0)
            if self._delay or not self._whole.is_set() or not self._api.answers_at_once:
                return await self._late(sent)
            return await self._api.answer(sent)
        except (TimeoutError, Severed) as error:
            raise _unreachable(request, error) from error

    def carried(self, answer: Answer, request: Request) -> Answer:
        """``answer`` as it arrives; if its body is complete already, at once."""
        if self._whole.is_set() and isinstance(answer.pieces, WholeBody):
            return answer
        return Answer(answer.status, answer.headers, self._carried(answer.pieces, request))

    async def _late(self, request: Request) -> Answer:
        """The answer to a request that may have to wait. Only these have a time-out, which costs a third of the whole request."""
        async with asyncio.timeout(request.timeout):
            await asyncio.sleep(self._delay)
            await self._whole.wait()
            return await self._api.answer(request)

    async def _carried(self, pieces: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
        # The server itself never hangs: a silent watch is only quiet, and noticing missing bookmarks is up to the reader.
        while True:
            try:
                piece = await anext(pieces, None)
                if not self._whole.is_set():
                    async with asyncio.timeout(request.timeout):
                        await self._whole.wait()
            except (TimeoutError, Severed) as error:
                raise _unreachable(request, error) from error
            if piece is None:
                return
            yield piece

    async def close(self) -> None:
        """There is nothing to close."""


class _Exchange(AbstractAsyncContextManager[Answer]):
    """One exchange. Not a generator, because tests make hundreds of thousands of them."""

    __slots__ = ("_answer", "_request", "_transport")

    def __init__(self, transport: MemoryTransport, request: Request) -> None:
        self._transport, self._request = transport, request
        self._answer: Answer | None = None

    async def __aenter__(self) -> Answer:
        self._answer = await self._transport.ask(self._request)
        return self._transport.carried(self._answer, self._request)

    async def __aexit__(self, *_: object) -> None:
        if self._answer is not None:
            await close(self._answer)


def _unreachable(request: Request, error: Exception) -> Unreachable:
    why = "the connection broke" if isinstance(error, Severed) else f"no answer came in {request.timeout:g} s"
    return Unreachable(f"{request.method} {request.path}: {why}")
