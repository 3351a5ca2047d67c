"""The API server over HTTP."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aiohttp import ClientConnectionResetError, web

from gpuscaler.control.records.guarding import is_addressed_by_loopback
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.objects.forwarding import forward
from gpuscaler.embedded.apiserver.wire.failures import Failure, Severed
from gpuscaler.embedded.apiserver.wire.replies import reply
from gpuscaler.kube.portforward import PodPort
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.settings.run_settings import is_loopback

#: The largest body that is read, in bytes. It is larger than the accepted size, so that a client gets to read why it was refused.
_LARGEST_READ: Final = 64 * 1024 * 1024
#: Seconds that requests get to end when the server stops; watches would never end.
_SHUTDOWN: Final = 0.1
#: The refusal for requests from web sites.
_ELSEWHERE: Final = Failure(403, "Forbidden", "saw a request from a web site, or to another host name; expected one to a loopback address")


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server, reachable at ``url`` until :meth:`close`."""

    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        await self.runner.cleanup()


async def serve(api: ApiServer, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> Serving:
    """Serve ``api`` at ``host``; port 0 takes a free one. Raises OSError if the address is not available.

    At a loopback address without TLS, all programs on this machine may send requests; those that a web site has a browser send are refused.
    """
    for_this_machine = tls is None and is_loopback(host)

    async def handle(request: web.Request) -> web.StreamResponse:
        if for_this_machine and not is_addressed_by_loopback(request):
            return await _send(request, reply(_ELSEWHERE.body(), status=_ELSEWHERE.code, headers=_ELSEWHERE.headers()))
        return await _handle(api, request)

    app = web.Application(client_max_size=_LARGEST_READ)
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
    headers = {name.lower(): value for name, value in request.headers.items()}
    api_request = Request(request.method, request.rel_url.raw_path, dict(request.query), headers, await request.read())
    try:
        forwarded = await api.forwarded(api_request)
        if isinstance(forwarded, PodPort):
            return await forward(request, forwarded, api.forwards.local(forwarded))
        if forwarded is not None:
            return await _send(request, forwarded)
        async with api.handle(api_request) as answer:
            return await _send(request, answer)
    except Severed:
        if request.transport is not None:
            request.transport.abort()
        # Nothing reads it: aiohttp sees that the connection is gone, and does not report it.
        return web.Response()


async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
    # A client that has hung up needs no answer, and aiohttp would log it as an error of the server.
    with suppress(ClientConnectionResetError):
        await response.prepare(request)
        async for piece in answer.pieces:
            await response.write(piece)
        await response.write_eof()
    return response


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {"-".join(word.capitalize() for word in name.split("-")): value for name, value in headers.items()}
