"""Listening sockets: every connection is counted and limited before any state is kept for it, TLS above all.

asyncio's servers accept up to their backlog at a time, start a handshake with 0.3 MB for each, and give it a minute.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpuscaler.serving.connection_groups import Connection
from gpuscaler.serving.connections import Connections

#: Backlog of connections that the system completes before they are accepted here, if it allows that many. It drops further ones, and these
#: clients retry after a second.
BACKLOG = 4096
#: Maximum connections that are accepted before other work is done. The system returns them in order of arrival, so a client is answered
#: only after all before it are accepted: accepting and closing them is the fastest way.
AT_ONCE = 32
#: Seconds between two checks for expired connections; after accepting failed; and without a closed connection until it is reported again.
LOOK, AGAIN, QUIET = 1.0, 0.5, 300.0
#: Seconds for a client to confirm the TLS shutdown.
GOODBYE = 2.0
#: First byte of every TLS handshake, and the end of the head of an HTTP request.
_HANDSHAKE, _END_OF_HEAD = b"\x16", b"\r\n\r\n"
#: State of a connection at Linux (the first byte of ``struct tcp_info``) if it ended, or if its client sends no more (``CLOSE_WAIT``).
_TCP_INFO, _LEFT = getattr(socket, "TCP_INFO", None), b"\x07\x08"

#: Creates the protocol of a connection; it must call :meth:`Connections.remove` when its connection is lost.
Make = Callable[[Connection], asyncio.Protocol]


@dataclass(slots=True, eq=False)
class Listener:
    """Accepts connections at ``sockets`` from :meth:`start` until :meth:`close`. ``report`` gets each message for operators once."""

    sockets: list[socket.socket]
    connections: Connections
    make: Make
    tls: ssl.SSLContext | None
    report: Callable[[str], None]
    handshakes: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)
    _failing: bool = field(default=False, init=False)
    _counted: int = field(default=0, init=False)
    _reported_at: float = field(default=float("-inf"), init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.connections.turns.wake = lambda at: loop.call_at(at, self.connections.turns.give)
        for listening in self.sockets:
            listening.setblocking(False)
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)
        self._expire()

    def stop(self) -> None:
        """Stop accepting; existing connections continue."""
        if not self._closed:
            self._closed = True
            for listening in self.sockets:
                asyncio.get_running_loop().remove_reader(listening)
                listening.close()

    async def close(self) -> None:
        """Stop accepting and end all connections."""
        self.stop()
        self.connections.close_all()
        await asyncio.gather(*self.handshakes, return_exceptions=True)

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
            self._wait(accepted, address)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Pause accepting without descriptors or memory: the system would report the error thousands of times a second."""
        if not self._failing:
            self._failing = True
            self.report(f"connections cannot be accepted: {error.strerror or error}; idle connections are closed")
        self.connections.make_room()
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(AGAIN, lambda: None if self._closed else loop.add_reader(listening, self._accept, listening))

    def _wait(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """Keep only the socket until its first byte and its turn, and nothing if its client has left while it waited to be accepted."""
        begins = self.begins_request(accepted)
        if begins is False:
            accepted.close()
            return
        accepted.setblocking(False)
        waiting = _Waiting(self, accepted)
        waiting.connection = self.connections.open(peer_of(address), waiting.close)
        if accepted.fileno() >= 0:
            waiting.proceed(begins)

    def begins_request(self, accepted: socket.socket) -> bool | None:
        """Whether a connection begins a request; None if its first byte has not arrived yet. Nothing is read.

        A client that has left, or sends no more, cannot finish a handshake, nor a head that has not arrived as a whole.
        """
        first = _peek(accepted, 1)
        if not first:
            return None if first is None else False
        if self.tls is not None:
            return first == _HANDSHAKE and not _has_left(accepted)
        return not _has_left(accepted) or _END_OF_HEAD in (_peek(accepted, self.connections.bounds.most_bytes) or b"")

    def _expire(self) -> None:
        """Close expired connections; report once that connections are closed because of a limit, and again after a quiet period."""
        if self._closed:
            return
        loop, connections = asyncio.get_running_loop(), self.connections
        connections.expire()
        beyond = {bound: times for bound, times in connections.closed.items() if not bound.startswith("time")}
        if sum(beyond.values()) > self._counted:
            if loop.time() - self._reported_at > QUIET:
                counts = ", ".join(f"{bound} ({times})" for bound, times in beyond.items())
                self.report(f"connections beyond a limit are closed, those idle for longest first; since the start: {counts}")
            self._counted, self._reported_at = sum(beyond.values()), loop.time()
        loop.call_later(LOOK, self._expire)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A connection between being accepted and being passed to its protocol."""

    listener: Listener
    accepted: socket.socket
    connection: Connection = field(init=False)
    _watched: bool = field(default=False, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)

    def close(self) -> None:
        self._unwatch()
        self.accepted.close()

    def proceed(self, begins: bool | None) -> None:
        """Wait for the first byte, or for the turn if the byte has arrived."""
        if begins is None:
            # By its number: asyncio formats sockets as text for errors that it swallows.
            self._loop.add_reader(self.accepted.fileno(), self._arrived)
            self._watched = True
        elif begins:
            self.listener.connections.turn(self.connection, self._begin)
        else:
            self._discard()

    def _arrived(self) -> None:
        self._unwatch()
        self.proceed(self.listener.begins_request(self.accepted))

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self.accepted.fileno())

    def _begin(self) -> bool:
        """Start the protocol when the turn comes, unless the client left while it waited."""
        if not self.listener.begins_request(self.accepted):
            self._discard()
            return False
        task = self._loop.create_task(self._hand_over())
        self.connection.close = task.cancel
        self.listener.handshakes.add(task)
        task.add_done_callback(self._begun)
        self.listener.connections.begin(self.connection)
        return True

    def _begun(self, task: "asyncio.Task[None]") -> None:
        self.listener.handshakes.discard(task)
        if task.cancelled() or task.exception() is not None:
            # It ended before asyncio took over the socket and its closing.
            self._discard()

    def _discard(self) -> None:
        self.listener.connections.remove(self.connection)
        self.accepted.close()

    async def _hand_over(self) -> None:
        """Pass the connection to its protocol, after the TLS handshake if there is one."""
        listener, options = self.listener, dict[str, Any]()
        connections, make = listener.connections, listener.make
        if listener.tls is not None:
            options = {"ssl": listener.tls, "ssl_handshake_timeout": connections.bounds.head, "ssl_shutdown_timeout": GOODBYE}
        transport: asyncio.Transport | None = None
        # Only close() cancels this: the connection is already gone.
        with suppress(OSError, asyncio.CancelledError):
            transport, _ = await self._loop.connect_accepted_socket(lambda: make(self.connection), self.accepted, **options)
        if transport is None:
            connections.remove(self.connection)
        else:
            self.connection.close = transport.abort


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at ``host`` (empty, ``0.0.0.0`` or ``::``: all addresses, IPv4 and IPv6); ``port`` 0 chooses a free one.

    Raises OSError if the address cannot be used.
    """
    if host in {"", "0.0.0.0", "::"}:
        # One socket for IPv4 and IPv6: two would take different free ports. A system may support IPv6 without having an IPv6 address.
        if socket.has_dualstack_ipv6():
            with suppress(OSError):
                return [socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)]
        return [socket.create_server(("0.0.0.0", port), backlog=BACKLOG)]
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in addresses):
            chosen = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((address[0], chosen, *address[2:])[: len(address)], family=family, backlog=BACKLOG))
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def _peek(accepted: socket.socket, most: int) -> bytes | None:
    """Peek at the first ``most`` bytes; None if none has arrived yet, empty if the connection has ended."""
    try:
        return accepted.recv(most, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _has_left(accepted: socket.socket) -> bool:
    """Whether the client has closed the connection, or announced that it sends no more, even if bytes of it wait to be read.

    Other systems than Linux do not say this in advance.
    """
    if _TCP_INFO is None:
        return False
    try:
        return accepted.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1) in _LEFT
    except OSError:
        return False


def peer_of(address: tuple[Any, ...]) -> str:
    """Return the peer of ``address``: for IPv6 the first 64 bits, because a single machine can use all addresses within them."""
    host = str(address[0]).partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        return host[7:]
    return f"{socket.inet_pton(socket.AF_INET6, host)[:8].hex(':', 2)}::/64" if ":" in host else host
