"""Limits on a server's connections: in number, per peer, in bytes and in time. Independent of sockets and HTTP.

A connection waits as a bare socket until its first byte, and then for its :mod:`turn <gpuscaler.serving.turns>`; only then are TLS and HTTP
state kept for it. When a limit of either stage is exceeded, the connection with the oldest activity is closed, not the newest. Because
turns are given at a limited rate, a connection that has taken one has time to be answered, regardless of how many others exist. Connections
wait in three groups, so that a crowd of one kind does not displace the others: of peers that were answered within the hour, of peers that
took a turn within the hour without an answer, as those do that abort handshakes, and of new peers. So clients that hold connections, or
reopen them continuously, cannot lock out others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuscaler.serving.connection_groups import Connection, ConnectionGroup, Stage
from gpuscaler.serving.turns import Go, TurnRate, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits: numbers of connections, seconds, and bytes.

    A TLS handshake takes 0.3 MB, and a head several times its length, so unauthenticated clients can use ``connections`` times both.
    """

    #: Connections without a verified client certificate: waiting ones (separately for peers that were answered within the hour, that only
    #: took a turn, and others), active ones, and the maximum per peer in either stage.
    waiting: int = 256
    connections: int = 64
    by_peer: int = 32
    #: Connections with a certificate, or from addresses that had one within the hour: front proxies hold many, from one address.
    trusted: int = 256
    #: Turns without a certificate, per second and at once: in total, and per peer. Each takes one or two milliseconds of processor time.
    turns: float = 100.0
    turns_at_once: int = 20
    peer_turns: float = 20.0
    peer_turns_at_once: int = 40
    #: Time until the first byte and the turn; from there until the end of the head, including the TLS handshake.
    first_byte: float = 5.0
    head: float = 10.0
    #: Time from the end of the head until the answer is received, including the body of the request.
    answer: float = 60.0
    #: Time between two requests: longer than Prometheus' scrape interval, and than front proxies keep connections (90 s in Go). Otherwise
    #: they would send a request into a connection that is being closed.
    idle: float = 75.0
    idle_trusted: float = 120.0
    #: Maximum bytes of a request, head and body.
    most_bytes: int = 65_536
    most_trusted_bytes: int = 2**20


#: Seconds for which an address that showed a certificate is remembered, and the maximum number of such addresses.
KNOWN, MOST_KNOWN = 3600.0, 1024


@dataclass(slots=True)
class Connections:
    """The connections of a server. ``clock`` is monotonic, in seconds. ``closed`` counts closed connections by the exceeded limit."""

    bounds: Bounds
    clock: Callable[[], float]
    turns: Turns = field(init=False)
    closed: dict[str, int] = field(default_factory=dict, init=False)
    _newcomers: ConnectionGroup = field(default_factory=ConnectionGroup, init=False)
    _unanswered: ConnectionGroup = field(default_factory=ConnectionGroup, init=False)
    _acquaintances: ConnectionGroup = field(default_factory=ConnectionGroup, init=False)
    _strangers: ConnectionGroup = field(default_factory=ConnectionGroup, init=False)
    _trusted: ConnectionGroup = field(default_factory=ConnectionGroup, init=False)
    #: When a remembered address with a certificate expires.
    _known: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.turns = Turns(
            self.clock, TurnRate(bounds.turns, bounds.turns_at_once), lambda: TurnRate(bounds.peer_turns, bounds.peer_turns_at_once)
        )

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    @property
    def _groups(self) -> tuple[ConnectionGroup, ...]:
        return self._unanswered, self._newcomers, self._acquaintances, self._strangers, self._trusted

    def open(self, peer: str, close: Callable[[], object]) -> Connection:
        """Add a connection of ``peer``, which waits unless the peer is remembered with a certificate."""
        now = self.clock()
        connection = Connection(peer, close, now, now + self.bounds.first_byte)
        if self._is_trusted(peer, now):
            self._join_trusted(connection)
            return connection
        group = self._waiting_group(peer)
        group.enter(connection)
        if group.of(peer) > self.bounds.by_peer:
            self._end(group.first_of(peer), "connections per peer")
        elif len(group) > self.bounds.waiting:
            self._end(group.first(), "waiting connections")
        return connection

    def _waiting_group(self, peer: str) -> ConnectionGroup:
        if self.turns.knows(peer):
            return self._acquaintances
        return self._unanswered if self.turns.has_had_turn(peer) else self._newcomers

    def turn(self, connection: Connection, go: Go) -> None:
        """Call ``go`` when it is this connection's turn, now or later, if the connection still exists."""
        if connection.trusted:
            go()
            return

        def take_turn() -> bool:
            connection.turn = None
            return go()

        connection.turn = take_turn
        self.turns.ask(connection.peer, take_turn)

    def request(self, connection: Connection, go: Go) -> None:
        """Call ``go`` when it is the turn of a request; the first request uses the turn of its connection."""
        if connection.fresh:
            connection.fresh = False
            go()
        else:
            self.turn(connection, go)

    def begin(self, connection: Connection) -> None:
        """Make a connection active: its turn has come."""
        connection.fresh = True
        self._move(connection, Stage.READING, self.bounds.head)
        if connection.trusted:
            return
        self._strangers.enter(connection)
        if self._strangers.of(connection.peer) > self.bounds.by_peer:
            self._end(self._strangers.first_of(connection.peer), "connections per peer")
        elif len(self._strangers) > self.bounds.connections:
            self._end(self._strangers.dispensable(), "connections")

    def make_room(self) -> None:
        """Close the least valuable connection without a certificate, if there is one."""
        for group in (self._unanswered, self._newcomers, self._acquaintances):
            if group:
                self._end(group.first(), "waiting connections")
                return
        if self._strangers:
            self._end(self._strangers.dispensable(), "connections")

    def trust(self, connection: Connection) -> None:
        """Record that the certificate of this peer was verified."""
        connection.verified = True
        self._known.pop(connection.peer, None)
        self._known[connection.peer] = self.clock() + KNOWN
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if connection.group is not None and not connection.trusted:
            self._join_trusted(connection)

    def _is_trusted(self, peer: str, now: float) -> bool:
        return self._known.get(peer, now) > now

    def _join_trusted(self, connection: Connection) -> None:
        connection.trusted = True
        self._trusted.enter(connection)
        if len(self._trusted) > self.bounds.trusted:
            self._end(self._trusted.dispensable(), "connections with a certificate")

    def read(self, connection: Connection, count: int) -> bool:
        """Count received bytes; close the connection and return False if they are too many for one request."""
        if connection.stage is Stage.KEPT:
            connection.stage, connection.until = Stage.READING, self.clock() + self.bounds.head
        connection.unread += count
        fits = connection.unread <= (self.bounds.most_trusted_bytes if connection.verified else self.bounds.most_bytes)
        if not fits:
            self._end(connection, "bytes of a request")
        return fits

    def asked(self, connection: Connection) -> None:
        """Record that the head of a request is complete and its turn has come."""
        connection.unread = 0
        self._move(connection, Stage.ANSWERING, self.bounds.answer)

    def answered(self, connection: Connection) -> None:
        """Record that the answer was written."""
        self._move(connection, Stage.KEPT, self.bounds.idle_trusted if connection.verified else self.bounds.idle)
        if not connection.trusted:
            self.turns.answered(connection.peer)

    def _move(self, connection: Connection, stage: Stage, seconds: float) -> None:
        """Move a connection to a stage, behind all others: the one with the oldest activity stays first."""
        connection.stage, connection.moved_at = stage, self.clock()
        connection.until = connection.moved_at + seconds
        if connection.group is not None:
            connection.group.enter(connection)

    def remove(self, connection: Connection) -> None:
        """Remove a connection that was closed by either side; may be called more than once."""
        if connection.turn is not None:
            self.turns.withdraw(connection.peer, connection.turn)
            connection.turn = None
        if connection.group is not None:
            connection.group.leave(connection)

    def expire(self) -> None:
        """Close connections that have exceeded the time of their stage."""
        now = self.clock()
        for connection in [connection for group in self._groups for connection in group if connection.until <= now]:
            self._end(connection, f"time: {connection.stage.value}")

    def close_all(self) -> None:
        """Close all connections without counting them."""
        for connection in [connection for group in self._groups for connection in group]:
            self.remove(connection)
            connection.close()

    def _end(self, connection: Connection, bound: str) -> None:
        self.closed[bound] = self.closed.get(bound, 0) + 1
        self.remove(connection)
        connection.close()
