"""Which connections a server keeps: bounded in number, by peer, in bytes and in time. Neither sockets nor HTTP are known here.

A connection waits, as a socket and no more, until its first byte and then for its :mod:`turn <gpuscaler.serving.turns>`; only then it is
inside, where TLS and HTTP are kept for it. Beyond a bound of either place the connection is closed that moved longest ago, not the newest.
Since turns are given at a pace, whoever has taken one has time to be answered, however many others there are: whoever holds connections, or
opens them again and again, keeps nobody out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuscaler.serving.rooms import Connection, Room, Stage
from gpuscaler.serving.turns import Go, Pace, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Numbers of connections, seconds, and bytes.

    A handshake of TLS takes 0.3 MB and a head several times its length, so that ``connections`` times both is what strangers can take.
    """

    #: Without a client certificate that was verified: those that wait, of peers that were answered within the hour and of others; those
    #: inside; and of one peer in either place.
    waiting: int = 256
    connections: int = 64
    by_peer: int = 32
    #: With one, and of addresses that had one within the hour: front proxies hold many, and come from one address.
    trusted: int = 256
    #: Turns of strangers, a second and at once: of all, and of one peer. Each takes a millisecond or two of our processor.
    turns: float = 100.0
    turns_at_once: int = 20
    peer_turns: float = 20.0
    peer_turns_at_once: int = 40
    #: Until the first byte and the turn; from there to the end of the head, the handshake of TLS included.
    first_byte: float = 5.0
    head: float = 10.0
    #: From the end of the head until the answer is taken, the body of the request included.
    answer: float = 60.0
    #: Between two requests: longer than Prometheus waits between two scrapes, and than front proxies keep theirs (90 s in Go), which would
    #: otherwise send a request into a connection that is being closed.
    idle: float = 75.0
    idle_trusted: float = 120.0
    #: Bytes of a request, head and body.
    most_bytes: int = 65_536
    most_trusted_bytes: int = 2**20


#: Seconds for which an address is known by a certificate, and how many addresses are remembered.
KNOWN, MOST_KNOWN = 3600.0, 1024


@dataclass(slots=True)
class Connections:
    """``clock`` is monotonic, in seconds. ``closed`` counts what was closed here, by the bound that it was beyond."""

    bounds: Bounds
    clock: Callable[[], float]
    turns: Turns = field(init=False)
    closed: dict[str, int] = field(default_factory=dict, init=False)
    _newcomers: Room = field(default_factory=Room, init=False)
    _acquaintances: Room = field(default_factory=Room, init=False)
    _strangers: Room = field(default_factory=Room, init=False)
    _trusted: Room = field(default_factory=Room, init=False)
    #: Until when an address is known by a certificate.
    _known: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.turns = Turns(self.clock, Pace(bounds.turns, bounds.turns_at_once), lambda: Pace(bounds.peer_turns, bounds.peer_turns_at_once))

    def __len__(self) -> int:
        return sum(map(len, self._rooms))

    @property
    def _rooms(self) -> tuple[Room, ...]:
        return self._newcomers, self._acquaintances, self._strangers, self._trusted

    def open(self, peer: str, close: Callable[[], object]) -> Connection:
        """A new connection of ``peer``, which waits, unless the peer is known by a certificate."""
        now = self.clock()
        connection = Connection(peer, close, now, now + self.bounds.first_byte)
        if self._is_trusted(peer, now):
            self._join_trusted(connection)
            return connection
        room = self._acquaintances if self.turns.knows(peer) else self._newcomers
        room.enter(connection)
        if room.of(peer) > self.bounds.by_peer:
            self._end(room.first_of(peer), "connections of one peer")
        elif len(room) > self.bounds.waiting:
            self._end(room.first(), "connections that wait")
        return connection

    def turn(self, connection: Connection, go: Go) -> None:
        """``go`` is called when it is this connection's turn, if it is there still: now, or later."""
        if connection.trusted:
            go()
            return

        def taken() -> bool:
            connection.turn = None
            return go()

        connection.turn = taken
        self.turns.ask(connection.peer, taken)

    def request(self, connection: Connection, go: Go) -> None:
        """The same for a request; the first one comes with the turn of its connection."""
        if connection.fresh:
            connection.fresh = False
            go()
        else:
            self.turn(connection, go)

    def begin(self, connection: Connection) -> None:
        """Its turn came: from now on it is inside."""
        connection.fresh = True
        self._move(connection, Stage.READING, self.bounds.head)
        if connection.trusted:
            return
        self._strangers.enter(connection)
        if self._strangers.of(connection.peer) > self.bounds.by_peer:
            self._end(self._strangers.first_of(connection.peer), "connections of one peer")
        elif len(self._strangers) > self.bounds.connections:
            self._end(self._strangers.dispensable(), "connections")

    def make_room(self) -> None:
        """Close the stranger's connection that can be missed best, if there is any."""
        for room in (self._newcomers, self._acquaintances):
            if room:
                self._end(room.first(), "connections that wait")
                return
        if self._strangers:
            self._end(self._strangers.dispensable(), "connections")

    def trust(self, connection: Connection) -> None:
        """The certificate of this peer was verified."""
        connection.verified = True
        self._known.pop(connection.peer, None)
        self._known[connection.peer] = self.clock() + KNOWN
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if connection.room is not None and not connection.trusted:
            self._join_trusted(connection)

    def _is_trusted(self, peer: str, now: float) -> bool:
        return self._known.get(peer, now) > now

    def _join_trusted(self, connection: Connection) -> None:
        connection.trusted = True
        self._trusted.enter(connection)
        if len(self._trusted) > self.bounds.trusted:
            self._end(self._trusted.dispensable(), "connections with a certificate")

    def read(self, connection: Connection, count: int) -> bool:
        """Bytes came; False where they are too many for one request, and the connection is closed."""
        if connection.stage is Stage.KEPT:
            connection.stage, connection.until = Stage.READING, self.clock() + self.bounds.head
        connection.unread += count
        fits = connection.unread <= (self.bounds.most_trusted_bytes if connection.verified else self.bounds.most_bytes)
        if not fits:
            self._end(connection, "bytes of a request")
        return fits

    def asked(self, connection: Connection) -> None:
        """The head of a request is complete, and its turn has come."""
        connection.unread = 0
        self._move(connection, Stage.ANSWERING, self.bounds.answer)

    def answered(self, connection: Connection) -> None:
        """The answer was written."""
        self._move(connection, Stage.KEPT, self.bounds.idle_trusted if connection.verified else self.bounds.idle)
        if not connection.trusted:
            self.turns.answered(connection.peer)

    def _move(self, connection: Connection, stage: Stage, seconds: float) -> None:
        """Those that moved longest ago stay the first."""
        connection.stage, connection.moved_at = stage, self.clock()
        connection.until = connection.moved_at + seconds
        if connection.room is not None:
            connection.room.enter(connection)

    def gone(self, connection: Connection) -> None:
        """It was closed, by whomever; may be said more than once."""
        if connection.turn is not None:
            self.turns.withdraw(connection.peer, connection.turn)
            connection.turn = None
        if connection.room is not None:
            connection.room.leave(connection)

    def expire(self) -> None:
        """Close what has taken too long for what it is at."""
        now = self.clock()
        for connection in [one for room in self._rooms for one in room if one.until <= now]:
            self._end(connection, f"time: {connection.stage.value}")

    def close_all(self) -> None:
        """Without counting them."""
        for connection in [one for room in self._rooms for one in room]:
            self.gone(connection)
            connection.close()

    def _end(self, connection: Connection, bound: str) -> None:
        self.closed[bound] = self.closed.get(bound, 0) + 1
        self.gone(connection)
        connection.close()
