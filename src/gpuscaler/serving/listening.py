"""Sockets that listen: every connection is counted and bounded before anything is kept for it, TLS above all.

asyncio's own servers accept up to their backlog at a time, begin a handshake for each with 0.3 MB, and give it a minute.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpuscaler.serving.connections import Connection, Connections

#: Connections that the system completes before they are accepted here.
BACKLOG = 1024
#: Connections that are accepted before others have their turn: so few that none is closed for newer ones before its request was read.
AT_ONCE = 4
#: Seconds between two looks for what took too long; after accepting failed; and without a closed connection until that is said again.
LOOK, AGAIN, QUIET = 1.0, 0.5, 300.0
#: Seconds that a client gets to confirm the end of TLS.
GOODBYE = 2.0

#: What speaks with a peer; it must say :meth:`Connections.gone` when its connection is lost.
Make = Callable[[Connection], asyncio.Protocol]


@dataclass(slots=True, eq=False)
class Listener:
    """Accepts connections at ``sockets`` from :meth:`start` until :meth:`close`. ``say`` is told, once, what an operator should know."""

    sockets: list[socket.socket]
    connections: Connections
    make: Make
    tls: ssl.SSLContext | None
    say: Callable[[str], None]
    _handshakes: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)
    _failing: bool = field(default=False, init=False)
    _counted: int = field(default=0, init=False)
    _told_at: float = field(default=float("-inf"), init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    def start(self) -> None:
        for one in self.sockets:
            one.setblocking(False)
            asyncio.get_running_loop().add_reader(one, self._accept, one)
        self._look()

    def stop(self) -> None:
        """Accept nothing more; connections go on."""
        if not self._closed:
            self._closed = True
            for one in self.sockets:
                asyncio.get_running_loop().remove_reader(one)
                one.close()

    async def close(self) -> None:
        """End every connection as well."""
        self.stop()
        self.connections.close_all()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            self._failing = False
            accepted.setblocking(False)
            self._wait(accepted, peer_of(address))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Without descriptors or memory: the system would say so thousands of times a second."""
        if not self._failing:
            self._failing = True
            self.say(f"connections cannot be accepted: {error.strerror or error}; those that are idle are closed")
        self.connections.make_room()
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(AGAIN, lambda: None if self._closed else loop.add_reader(listening, self._accept, listening))

    def _wait(self, accepted: socket.socket, peer: str) -> None:
        """Keep nothing but the socket until its first byte."""
        # By its number: asyncio describes sockets in words for errors that it swallows.
        loop, number = asyncio.get_running_loop(), accepted.fileno()

        def close() -> None:
            if accepted.fileno() >= 0:
                loop.remove_reader(number)
            accepted.close()

        def begin() -> None:
            loop.remove_reader(number)
            if _is_over(accepted):
                self.connections.gone(connection)
                accepted.close()
                return
            delay = self.connections.turn(peer)
            if delay:
                loop.call_later(delay, listen)
                return
            self.connections.read(connection, 0)
            task = loop.create_task(self._begin(accepted, connection))
            connection.close = task.cancel
            self._handshakes.add(task)
            task.add_done_callback(begun)

        def begun(task: "asyncio.Task[None]") -> None:
            self._handshakes.discard(task)
            if task.cancelled() or task.exception() is not None:
                # It ended before asyncio had taken the socket, which it closes from then on.
                self.connections.gone(connection)
                accepted.close()

        def listen() -> None:
            if accepted.fileno() >= 0:
                loop.add_reader(number, begin)

        connection = self.connections.open(peer, close)
        listen()

    async def _begin(self, accepted: socket.socket, connection: Connection) -> None:
        """Hand the connection over to its protocol, after the handshake where there is one."""
        loop, options = asyncio.get_running_loop(), dict[str, Any]()
        if self.tls is not None:
            options = {"ssl": self.tls, "ssl_handshake_timeout": self.connections.bounds.head, "ssl_shutdown_timeout": GOODBYE}
        transport: asyncio.Transport | None = None
        # Cancelled by nobody but close(): whom it concerns is gone.
        with suppress(OSError, asyncio.CancelledError):
            transport, _ = await loop.connect_accepted_socket(lambda: self.make(connection), accepted, **options)
        if transport is None:
            self.connections.gone(connection)
        else:
            connection.close = transport.abort

    def _look(self) -> None:
        """Close what took too long; say it once where connections are closed for the sake of others, and again after a quiet while."""
        if self._closed:
            return
        loop, connections = asyncio.get_running_loop(), self.connections
        connections.expire()
        beyond = {bound: times for bound, times in connections.closed.items() if not bound.startswith("time")}
        if sum(beyond.values()) > self._counted:
            if loop.time() - self._told_at > QUIET:
                counts = ", ".join(f"{bound} ({times})" for bound, times in beyond.items())
                self.say(
                    f"connections are closed that are beyond a bound, those that have been idle longest first; since the start: {counts}"
                )
            self._counted, self._told_at = sum(beyond.values()), loop.time()
        loop.call_later(LOOK, self._look)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at ``host`` (empty, ``0.0.0.0`` or ``::``: all addresses of either kind); ``port`` 0 takes a free one.

    Raises OSError where the address cannot be had.
    """
    if host in {"", "0.0.0.0", "::"}:
        # One socket for IPv4 and IPv6: two would each take another free port. A system may have IPv6 and no address of it.
        if socket.has_dualstack_ipv6():
            with suppress(OSError):
                return [socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)]
        return [socket.create_server(("0.0.0.0", port), backlog=BACKLOG)]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            chosen = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((address[0], chosen, *address[2:])[: len(address)], family=family, backlog=BACKLOG))
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets


def _is_over(accepted: socket.socket) -> bool:
    """Whether the peer closed it without a byte, which is no reason to begin a handshake."""
    try:
        return not accepted.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def peer_of(address: tuple[Any, ...]) -> str:
    """Who ``address`` is: of IPv6 the first 64 bits, as one machine has all the others."""
    host = str(address[0]).partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        return host[7:]
    return f"{socket.inet_pton(socket.AF_INET6, host)[:8].hex(':', 2)}::/64" if ":" in host else host
