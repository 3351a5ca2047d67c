"""A transport straight to the handlers: no sockets, so it runs in virtual time too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gpuscaler.embedded.api import ApiServer, close
from gpuscaler.embedded.failures import Severed
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.transport import Answer, Request


class MemoryTransport:
    """Carries requests to ``api``, with ``token`` where one is given; each takes ``delay`` seconds to get there.

    ``cut()`` makes the server unreachable through this transport until ``mend()``: a partition of the network.
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

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        sent = replace(request, headers={**self._extra, **request.headers})
        try:
            # Even without a delay, as a socket would: whoever asks in a loop lets others run.
            await asyncio.sleep(0)
            if self._delay or not self._whole.is_set() or not self._api.prompt:
                answer = await self._late(sent)
            else:
                answer = await self._api.answer(sent)
        except (TimeoutError, Severed) as error:
            raise _unreachable(request, error) from error
        try:
            yield replace(answer, pieces=self._carried(answer.pieces, request))
        finally:
            await close(answer)

    async def _late(self, request: Request) -> Answer:
        """The answer to a request that may have to wait. Time-outs are a third of what a request costs: others have none."""
        async with asyncio.timeout(request.timeout):
            await asyncio.sleep(self._delay)
            await self._whole.wait()
            return await self._api.answer(request)

    async def _carried(self, pieces: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
        # The server itself is never stuck: a watch that says nothing for long is quiet, and its bookmarks are the reader's to miss.
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
        """Nothing is held open."""


def _unreachable(request: Request, error: Exception) -> Unreachable:
    why = "the connection broke" if isinstance(error, Severed) else f"no answer came in {request.timeout:g} s"
    return Unreachable(f"{request.method} {request.path}: {why}")
