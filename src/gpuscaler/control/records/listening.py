"""The HTTP servers: metrics and health for everyone, pages for this machine, and pages for other machines with authentication."""

import asyncio
import errno
import os
import ssl
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
from aiohttp import web

from gpuscaler.control.process.running import UnusableError
from gpuscaler.control.records.guarding import TokenGuard, require_loopback, with_guard
from gpuscaler.kube.client import Client, no_fence
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.reviews import Reviews
from gpuscaler.serving.server import serve
from gpuscaler.serving.tls import CertificateError, LiveTls
from gpuscaler.settings.run_settings import AuthenticatedSettings, HttpSettings, PagesSettings

_LOG = structlog.get_logger(__name__)
#: The rate limit for token and access reviews: requests per second, burst, and the time-out of one in seconds.
QPS, BURST, REVIEW_SECONDS = 20.0, 100, 10.0
#: Descriptions of the servers, by their keys in the settings.
_SERVED = {
    "http": "metrics and health",
    "pages": "status, explanations and decisions, to this machine",
    "pages.authenticated": "status, explanations and decisions, to authorized users",
}


@dataclass(slots=True)
class Listeners:
    """Servers by the keys of their settings, until :meth:`close`. ``ports`` are those on which they listen."""

    ports: dict[str, int] = field(default_factory=dict, init=False)
    tls: list[LiveTls] = field(default_factory=list, init=False)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    @property
    def trouble(self) -> tuple[str, ...]:
        """Problems of certificates, a sentence each."""
        return tuple(live_tls.trouble for live_tls in self.tls if live_tls.trouble)

    async def serve_metrics(self, http: HttpSettings, routes: Iterable[web.RouteDef]) -> None:
        """Serve ``routes`` to everyone who can connect. Raises :class:`UnusableError`, like the methods below."""
        tls = self._tls_context("http", http.certificate, http.key) if http.certificate else None
        await self._listen("http", routes, host=http.host, port=http.port, tls=tls)

    async def serve_pages(self, pages: PagesSettings, routes: Iterable[web.RouteDef]) -> None:
        """Serve ``routes`` to this machine; in a pod, to everyone who may forward a port to it."""
        await self._listen("pages", with_guard(routes, require_loopback), host=pages.host, port=pages.port)

    async def serve_authenticated(self, settings: AuthenticatedSettings, routes: Iterable[web.RouteDef], client: Client) -> None:
        """Serve ``routes`` to users who may read them according to the API server; ``client`` asks it."""
        # Reviews change nothing, so they are also allowed for a process that does not lead, and on a dry run.
        asking = replace(client, fence=no_fence, dry_run=False, limit=RateLimit(qps=QPS, burst=BURST), write_timeout=REVIEW_SECONDS)
        reviews = Reviews(asking, asking, clock=asyncio.get_running_loop().time, always=frozenset())
        tls = self._tls_context("pages.authenticated", settings.certificate, settings.key)
        await self._listen(
            "pages.authenticated", with_guard(routes, TokenGuard(reviews)), host=settings.host, port=settings.port or 0, tls=tls
        )

    async def close(self) -> None:
        await self._open.aclose()

    def _tls_context(self, group: str, certificate: str, key: str) -> ssl.SSLContext:
        try:
            tls = LiveTls(Path(certificate), Path(key))
        except CertificateError as error:
            raise UnusableError(f"{group}.certificate: {error}") from error
        self.tls.append(tls)
        return tls.context

    async def _listen(self, key: str, routes: Iterable[web.RouteDef], *, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        try:
            server = await serve(routes, host=host, port=port, tls=tls)
        except OSError as error:
            where, instead = f"{host or 'all addresses'}, port {port}", "remove it" if "." in key else f"{key}.enabled: false"
            # asyncio adds the address to some errors' texts, in a form of its own in each release of Python.
            seen = os.strerror(error.errno) if error.errno is not None and error.errno in errno.errorcode else error.strerror or error
            # Two controllers on one machine, as on a laptop, have the same default addresses.
            other = "another gpuscaler may run on this machine already; " if error.errno == errno.EADDRINUSE else ""
            raise UnusableError(
                f"{key}: saw {seen} for {where}, expected to listen there; {other}set {key}.address, or {instead}"
            ) from error
        self._open.push_async_callback(server.close)
        self.ports[key] = server.port
        _LOG.info(f"serves {_SERVED[key]}", host=host or "all addresses", port=server.port, tls=tls is not None)
