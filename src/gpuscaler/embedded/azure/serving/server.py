"""The endpoint over HTTP."""

import asyncio

from aiohttp import web

from gpuscaler.embedded.azure.serving.endpoint import Endpoint
from gpuscaler.embedded.azure.wire.errors import BrokenError
from gpuscaler.embedded.azure.wire.requests import Request
from gpuscaler.embedded.serving.listening import Serving, listen


async def serve(endpoint: Endpoint, host: str = "127.0.0.1", port: int = 0, *, speed: float = 1.0) -> Serving:
    """Serve ``endpoint`` at ``host``; ``port`` 0 takes a free one. ``speed`` seconds of its account's clock pass in one second.

    Raises OSError if the address is not available.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _handle(endpoint, request, speed)

    return await listen(handle, host, port)


async def _handle(endpoint: Endpoint, request: web.Request, speed: float) -> web.StreamResponse:
    headers = {name.lower(): value for name, value in request.headers.items()}
    call = Request(
        request.method,
        request.rel_url.raw_path,
        headers,
        await request.read(),
        request.rel_url.raw_query_string,
        f"{request.scheme}://{request.host}",
    )
    try:
        answer = endpoint.handle(call)
    except BrokenError:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
    if answer.after:
        await asyncio.sleep(answer.after / speed)
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
