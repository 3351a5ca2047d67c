"""A proxy that refuses streamed lists, as API servers before 1.32 do, and servers where they are turned off."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from gpuscaler.embedded.controlplane.flags import Layout

_REFUSAL = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
    "reason": "Invalid",
    "code": 422,
}
#: Headers to forward. The others belong to the connection.
_ASKED = ("authorization", "accept", "accept-encoding", "content-type", "user-agent")
_ANSWERED = ("content-type", "content-encoding", "retry-after")


@asynccontextmanager
async def without_streams(url: str, there: Layout) -> AsyncIterator[str]:
    """The address of a proxy for the server at ``url``, and its certificate."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=there.file("ca.crt")))
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(there.file("server.crt"), there.file("server.key"))
    forever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=forever, auto_decompress=False) as session:

        async def passed(request: web.Request) -> web.StreamResponse:
            if "sendInitialEvents" in request.query:
                return web.json_response(_REFUSAL, status=422)
            headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
            body = await request.read()
            async with session.request(request.method, request.rel_url, headers=headers, data=body or None) as client_response:
                answer = web.StreamResponse(
                    status=client_response.status,
                    headers={name: client_response.headers[name] for name in _ANSWERED if name in client_response.headers},
                )
                await answer.prepare(request)
                async for piece in client_response.content.iter_any():
                    await answer.write(piece)
            return answer

        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", passed)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served).start()
        try:
            yield f"https://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
