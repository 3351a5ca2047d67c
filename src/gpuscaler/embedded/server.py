"""The API server over HTTP."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from gpuscaler.embedded.api import ApiServer
from gpuscaler.embedded.failures import Severed
from gpuscaler.kube.transport import Answer, Request

#: The largest body that is taken, in bytes: as much as etcd takes, twice.
LARGEST_BODY = 3 * 1024 * 1024
#: Seconds that requests get to end when the server stops; watches never would.
_SHUTDOWN = 0.1


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that runs: reachable at ``url`` until :meth:`close`."""

    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        await self.runner.cleanup()


async def serve(api: ApiServer, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> Serving:
    """Serve ``api`` at ``host``; ``port`` 0 takes a free one. Raises OSError where the address cannot be had."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _handle(api, request)

    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError:
        await runner.cleanup()
        raise
    bound = runner.addresses[0][1]
    shown = f"[{host}]" if ":" in host else host
    return Serving(f"{'https' if tls else 'http'}://{shown}:{bound}", runner)


async def _handle(api: ApiServer, request: web.Request) -> web.StreamResponse:
    asked = Request(
        request.method,
        request.rel_url.raw_path,
        dict(request.query),
        {name.lower(): value for name, value in request.headers.items()},
        await request.read(),
    )
    try:
        async with api.handle(asked) as answer:
            return await _send(request, answer)
    except Severed:
        _break(request)
        raise ConnectionResetError("the connection was broken on demand") from None


async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
    await response.prepare(request)
    async for piece in answer.pieces:
        await response.write(piece)
    await response.write_eof()
    return response


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {"-".join(word.capitalize() for word in name.split("-")): value for name, value in headers.items()}


def _break(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
