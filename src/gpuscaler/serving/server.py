"""aiohttp servers behind limited connections."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from gpuscaler.serving.connection_groups import Connection
from gpuscaler.serving.connections import Bounds, Connections
from gpuscaler.serving.counted import Counted
from gpuscaler.serving.listening import Listener, bind

_LOG = structlog.get_logger(__name__)
#: Seconds for requests to finish when the server stops.
SHUTDOWN = 2.0
BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens on ``port`` until :meth:`close`."""

    port: int
    listener: Listener
    runner: web.BaseRunner

    async def close(self) -> None:
        self.listener.stop()
        await self.runner.cleanup()
        await self.listener.close()


async def serve(
    routes: Iterable[web.RouteDef], *, host: str, port: int, tls: ssl.SSLContext | None = None, bounds: Bounds = BOUNDS
) -> Server:
    """Serve ``routes`` at ``host`` (empty: all addresses); ``port`` 0 chooses a free one. Raises OSError if it cannot be used."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN, handle_signals=False)
    return await serve_runner(runner, host=host, port=port, tls=tls, bounds=bounds)


async def serve_runner(
    runner: web.BaseRunner, *, host: str, port: int, tls: ssl.SSLContext | None, bounds: Bounds = BOUNDS, **options: Any
) -> Server:
    """Serve ``runner``; ``options`` are those of aiohttp's protocol. Raises OSError if the address cannot be used."""
    await runner.setup()
    assert runner.server is not None
    try:
        sockets = await bind(host, port)
    except OSError:
        await runner.cleanup()
        raise
    connections = Connections(bounds, asyncio.get_running_loop().time)
    listener = Listener(sockets, connections, _protocol_factory(runner.server, connections, options), tls, _warn)
    listener.start()
    return Server(listener.port, listener, runner)


def _protocol_factory(server: Any, connections: Connections, options: dict[str, Any]) -> Callable[[Connection], asyncio.Protocol]:
    answer: Callable[[BaseRequest], Awaitable[web.StreamResponse]] = server.request_handler

    async def handle(request: BaseRequest) -> web.StreamResponse:
        if isinstance(request.protocol, _RequestHandler):
            await request.protocol.wait_for_turn()
        return await answer(request)

    server.request_handler = handle
    return lambda connection: _RequestHandler(server, connection, connections, options)


def _warn(text: str) -> None:
    _LOG.warning(text)


class _RequestHandler(Counted, RequestHandler):
    """aiohttp's side of a connection, which reports the progress of its requests."""

    def __init__(self, server: Any, connection: Connection, connections: Connections, options: dict[str, Any]) -> None:
        loop, bounds = asyncio.get_running_loop(), connections.bounds
        # Connections decides when a connection is closed; aiohttp starts counting only with a request.
        patience = max(bounds.idle, bounds.idle_trusted)
        super().__init__(server, loop=loop, keepalive_timeout=patience, access_log=None, **options)  # type: ignore[arg-type]
        self.count(connection, connections)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if transport.get_extra_info("peercert"):
            # Before the first byte: proxies may send larger heads than unauthenticated clients.
            self.connections.trust(self.connection)
        super().connection_made(transport)

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        done = await super().finish_response(request, resp, start_time)
        self.connections.answered(self.connection)
        return done

    def log_exception(self, *args: Any, **kw: Any) -> None:
        # Clients that do not send HTTP get an error, and write nothing into the log.
        if not isinstance(kw.get("exc_info"), HttpProcessingError):
            super().log_exception(*args, **kw)
