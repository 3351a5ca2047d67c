"""An attacker without credentials that reaches a port: plays one attack until it is ended. No call here waits for the server.

``python -m benchmarks.attacker '{"name": …, "port": …, "tls": …}'``. 127.0.0.0/8 stands in for many peers.
"""

import json
import os
import resource
import selectors
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

#: Number of connections opened again at each step, and the length of a step in seconds: 500 a second.
REOPENED_PER_STEP, STEP_SECONDS = 50, 0.1
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_HEAD_START = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
REQUEST = _HEAD_START + b"\r\n"
_UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
_POST_START = b"POST /healthz HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Attack:
    """``count`` connections of ``peers``. ``first`` is sent at once, ``drip`` ten times a second, both inside TLS if the port uses TLS.

    Without ``handshake`` they are sent as plain bytes to a TLS port, too, after ``hello``, a part of a handshake.
    """

    name: str
    count: int
    peers: int
    first: bytes = b""
    drip: bytes = b""
    handshake: bool = True
    #: Bytes of a genuine first message of TLS: 0 is none, and -1 all of it.
    hello: int = 0
    #: Closed as soon as everything was sent, or with ``reads_answers`` as soon as an answer came; then opened again without a pause.
    churn: bool = False
    #: Whether answers are read.
    reads_answers: bool = True
    #: Announces at once that no more data follows.
    half_closed: bool = False


def unfinished_head(headers: int, length: int) -> bytes:
    """The head of a request without its end."""
    return _HEAD_START + b"".join(b"X-%05d: %s\r\n" % (number, b"a" * length) for number in range(headers))


#: The baseline of the machine itself.
QUIET = Attack("no attack", 0, 1)
ATTACKS = (
    Attack("1,600 connections without a byte", 1600, 1, handshake=False),
    Attack("10,000 connections without a byte, of 5 peers", 10_000, 5, handshake=False),
    Attack("100 unfinished heads of 4,000 lines", 100, 1, unfinished_head(4000, 240)),
    Attack("560 unfinished heads of 120 long lines, of 40 peers", 560, 40, unfinished_head(120, 8000)),
    Attack("400 unfinished heads of 60 kB, of 100 peers", 400, 100, unfinished_head(7, 8000)),
    Attack("200 slow heads, of 10 peers", 200, 10, _HEAD_START, b"X-A: b\r\n"),
    Attack("200 requests without their body, of 10 peers", 200, 10, _POST_START + b"Content-Length: 100000\r\n\r\nabc", b"x"),
    Attack("200 slow bodies in chunks, of 10 peers", 200, 10, _POST_START + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    Attack(
        "200 requests that expect 100-continue, of 50 peers", 200, 50, _POST_START + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    ),
    Attack(
        "200 WebSockets requested and held, of 50 peers",
        *(200, 50),
        _HEAD_START + _UPGRADE,
        b"\x81\x81\0\0\0\0x",
    ),
    Attack("200 requests half-closed at once, of 50 peers", 200, 50, REQUEST, half_closed=True),
    Attack("pipelined requests over 200 connections, of 50 peers", 200, 50, REQUEST * 50, REQUEST * 50),
    Attack("pipelined requests with unread answers, of 50 peers", 200, 50, REQUEST * 500, REQUEST * 50, reads_answers=False),
    Attack("500 slow first messages, of 250 peers", 500, 250, hello=20, drip=b"\0", handshake=False),
    Attack("handshakes begun and aborted, of 250 peers", 250, 250, _HEAD_START, hello=-1, handshake=False, churn=True, reads_answers=False),
    Attack("connections opened and closed, of 250 peers", 250, 250, handshake=False, churn=True, reads_answers=False),
    Attack("whole requests over connections of their own, of 250 peers", 250, 250, REQUEST, churn=True),
)


@dataclass(slots=True, eq=False)
class HeldConnection:
    sock: socket.socket
    secured: bool
    #: Bytes not sent yet.
    unsent: bytes


@dataclass(slots=True)
class Attacker:
    attack: Attack
    port: int
    tls: bool
    context: ssl.SSLContext | None = field(init=False)
    first: bytes = field(init=False)
    connections: set[HeldConnection] = field(default_factory=set, init=False)
    opened: int = field(default=0, init=False)
    _ready: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)

    def __post_init__(self) -> None:
        attack = self.attack
        self.context = unverified_tls() if self.tls and attack.handshake else None
        self.first = attack.first
        if self.tls and attack.hello:
            hello = first_tls_message()
            self.first = hello if attack.hello < 0 else hello[: attack.hello]

    def play(self) -> None:
        self._open(self.attack.count)
        while True:
            end = time.monotonic() + STEP_SECONDS
            if not self.attack.churn:
                self._open(REOPENED_PER_STEP)
            while (remaining := end - time.monotonic()) > 0:
                for key, _ in self._ready.select(remaining):
                    self._step(key.data)
                    if time.monotonic() > end:
                        break
                if self.attack.churn:
                    self._open(self.attack.count)
            for connection in list(self.connections):
                if not connection.unsent and self.attack.drip:
                    connection.unsent = self.attack.drip
                    self._watch(connection)

    def _open(self, limit: int) -> None:
        for _ in range(min(limit, self.attack.count - len(self.connections))):
            sock = socket.socket()
            sock.setblocking(False)
            try:
                sock.bind((f"127.0.0.{2 + self.opened % self.attack.peers}", 0))
                sock.connect_ex(("127.0.0.1", self.port))
            except OSError:
                sock.close()
                continue
            self.opened += 1
            if self.context is not None:
                sock = self.context.wrap_socket(sock, do_handshake_on_connect=False)
            connection = HeldConnection(sock, self.context is None, self.first)
            self.connections.add(connection)
            self._ready.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _watch(self, connection: HeldConnection) -> None:
        """Wait for the next possible step: to send, to read if answers are read, or nothing at all."""
        events = selectors.EVENT_WRITE if connection.unsent else 0
        if self.attack.reads_answers or not connection.secured:
            events |= selectors.EVENT_READ
        watched = connection.sock in self._ready.get_map()
        if events and watched:
            self._ready.modify(connection.sock, events, connection)
        elif events:
            self._ready.register(connection.sock, events, connection)
        elif watched:
            self._ready.unregister(connection.sock)

    def _step(self, connection: HeldConnection) -> None:
        attack, sock = self.attack, connection.sock
        try:
            if not connection.secured:
                assert isinstance(sock, ssl.SSLSocket)
                sock.do_handshake()
                connection.secured = True
            if connection.unsent:
                connection.unsent = connection.unsent[sock.send(connection.unsent) :]
                if not connection.unsent and attack.half_closed:
                    # Below TLS, so that it ends without a closing message.
                    socket.socket.shutdown(sock, socket.SHUT_WR)
            answer = sock.recv(65536) if attack.reads_answers else None
            if answer == b"" or (answer and attack.churn):
                self._close(connection)
                return
        except _WOULD_BLOCK:
            pass
        except OSError:
            self._close(connection)
            return
        if attack.churn and not attack.reads_answers and not connection.unsent:
            self._close(connection)
            return
        self._watch(connection)

    def _close(self, connection: HeldConnection) -> None:
        if connection.sock in self._ready.get_map():
            self._ready.unregister(connection.sock)
        connection.sock.close()
        self.connections.discard(connection)


def unverified_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def first_tls_message() -> bytes:
    """The first message of a handshake; sending it repeatedly costs the attacker no computation."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        unverified_tls().wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    # A real attacker is on another machine, and takes no processor time from the server.
    os.nice(5)
    arguments = json.loads(sys.argv[1])
    attacker = Attacker(
        next(attack for attack in (QUIET, *ATTACKS) if attack.name == arguments["name"]), arguments["port"], arguments["tls"]
    )
    try:
        attacker.play()
    finally:
        print(attacker.opened)
