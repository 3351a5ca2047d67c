"""HTTP for simulated endpoints: all requests go to one function."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

#: The largest body that is read, in bytes. It is larger than any accepted size, so that a client gets to read why it was refused.
_LARGEST_READ: Final = 64 * 1024 * 1024
#: Seconds that requests get to end when the server stops; watches would never end.
_SHUTDOWN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server, reachable at ``url`` until :meth:`close`."""

    url: str
    runner: web.AppRunner

    async def close(self) -> None:
        await self.runner.cleanup()


async def listen(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    handler_cancellation: bool = False,
) -> Serving:
    """Answer requests to ``host`` with ``handle``; port 0 takes a free one. Raises OSError if the address is not available.

    With ``handler_cancellation`` a handler is cancelled when its client disconnects.
    """
    app = web.Application(client_max_size=_LARGEST_READ)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN, handler_cancellation=handler_cancellation)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError:
        await runner.cleanup()
        raise
    shown = f"[{host}]" if ":" in host else host
    return Serving(f"{'https' if tls else 'http'}://{shown}:{runner.addresses[0][1]}", runner)
