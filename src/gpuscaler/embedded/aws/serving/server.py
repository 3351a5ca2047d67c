"""The endpoint over HTTP."""

import asyncio
from typing import Final

from aiohttp import web

from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.wire.errors import BrokenError
from gpuscaler.embedded.aws.wire.reading import Request
from gpuscaler.embedded.aws.wire.writing import Answer
from gpuscaler.embedded.serving.listening import Serving, listen

#: Seconds between two checks of a queue without messages while a client waits.
ASK_AGAIN: Final = 0.05


async def serve(endpoint: Endpoint, host: str = "127.0.0.1", port: int = 0, *, speed: float = 1.0) -> Serving:
    """Serve ``endpoint`` at ``host``; ``port`` 0 takes a free one. ``speed`` seconds of its account's clock pass in one second.

    Raises OSError if the address is not available.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _handle(endpoint, request, speed)

    return await listen(handle, host, port)


async def _answer(endpoint: Endpoint, request: Request, speed: float) -> Answer:
    """The answer, when it is due; if it was empty, with what has come in while waiting."""
    answer = endpoint.handle(request)
    end = endpoint.account.now() + answer.wait
    while answer.wait and endpoint.account.now() < end:
        await asyncio.sleep(ASK_AGAIN)
        answer = endpoint.handle(request)
    if answer.after:
        await asyncio.sleep(answer.after / speed)
    return answer


async def _handle(endpoint: Endpoint, request: web.Request, speed: float) -> web.StreamResponse:
    headers = {name.lower(): value for name, value in request.headers.items()}
    aws_request = Request(request.method, request.rel_url.raw_path, headers, await request.read(), request.rel_url.raw_query_string)
    try:
        answer = await _answer(endpoint, aws_request, speed)
    except BrokenError:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
