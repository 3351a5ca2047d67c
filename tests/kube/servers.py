"""Servers for tests over real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import trustme
from aiohttp import web

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """Data that arrived at a server."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> list[str]:
        return [headers.get("authorization", "") for headers in self.headers]


def server_context(ca: trustme.CA, *names: str, clients: bool = False) -> ssl.SSLContext:
    """A server's context with a certificate for ``names``; ``clients`` requires a client certificate of the same authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert(*(names or ("localhost", "127.0.0.1"))).configure_cert(context)
    if clients:
        ca.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@asynccontextmanager
async def served(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, Seen]]:
    """Serve ``handler`` on a free port; yields the URL and what arrives."""
    seen = Seen()

    async def noting(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.BaseRequest)
        seen.requests.append((request.method, request.path_qs))
        seen.headers.append({name.lower(): value for name, value in request.headers.items()})
        seen.bodies.append(await request.read())
        certificate = request.get_extra_info("peercert")
        seen.certificates.append(dict(part[0] for part in certificate["subject"]).get("organizationalUnitName", "") if certificate else "")
        return await handler(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(noting, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}", seen
    finally:
        await runner.cleanup()


async def ok(_: web.Request) -> web.Response:
    return web.json_response({"kind": "Node"})


@asynccontextmanager
async def connect_proxy(*, refuse: bool = False, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[str]]]:
    """An HTTP proxy that tunnels; yields its port and the heads of all requests it received."""
    heads: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heads.append(head)
        if refuse:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = head.split()[1].partition(":")
        proxied_reader, proxied_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pump(reader, proxied_writer), pump(proxied_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
