"""A small HTTP server over routes."""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

#: Seconds that requests get to end when the server stops.
SHUTDOWN = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens on ``port`` until :meth:`close`."""

    port: int
    runner: web.AppRunner

    async def close(self) -> None:
        await self.runner.cleanup()


async def serve(routes: Iterable[web.RouteDef], *, host: str, port: int, tls: ssl.SSLContext | None = None) -> Server:
    """Serve ``routes`` at ``host`` (empty: all addresses); ``port`` 0 takes a free one. Raises OSError where it cannot be had."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port, ssl_context=tls).start()
    except OSError:
        await runner.cleanup()
        raise
    return Server(runner.addresses[0][1], runner)
