"""The API server over HTTP."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from aiohttp import ClientConnectionResetError, web

from gpuscaler.control.records.guarding import is_addressed_by_loopback
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.objects.forwarding import forward
from gpuscaler.embedded.apiserver.wire.failures import Failure, Severed
from gpuscaler.embedded.apiserver.wire.replies import reply
from gpuscaler.embedded.serving.listening import Serving, listen
from gpuscaler.kube.portforward import PodPort
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.settings.run_settings import is_loopback

#: The refusal for requests from web sites.
_ELSEWHERE: Final = Failure(403, "Forbidden", "saw a request from a web site, or to another host name; expected one to a loopback address")


async def serve(api: ApiServer, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> Serving:
    """Serve ``api`` at ``host``; port 0 takes a free one. Raises OSError if the address is not available.

    At a loopback address without TLS, all programs on this machine may send requests; those that a web site has a browser send are refused.
    """
    for_this_machine = tls is None and is_loopback(host)

    async def handle(request: web.Request) -> web.StreamResponse:
        if for_this_machine and not is_addressed_by_loopback(request):
            return await _send(request, reply(_ELSEWHERE.body(), status=_ELSEWHERE.code, headers=_ELSEWHERE.headers()))
        return await _handle(api, request)

    return await listen(handle, host, port, tls=tls, handler_cancellation=True)


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
