"""Which connections a server keeps: bounded in number, by peer, in bytes and in time. Neither sockets nor HTTP are known here.

Beyond a bound the connection that has been idle longest is closed, not the newest: whoever holds connections and uses none locks nobody
out. It is one of the peer that has most, so that a peer with few keeps them however many others open.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Numbers of connections, seconds, and bytes.

    A handshake of TLS takes 0.3 MB and a head several times its length, so that ``connections`` times both is what strangers can take.
    """

    #: Without a client certificate that was verified: altogether, and of one peer.
    connections: int = 64
    by_peer: int = 32
    #: With one, and of addresses that had one within the hour: front proxies hold many, and come from one address.
    trusted: int = 256
    #: Connections of a stranger's address that go on to a handshake or to HTTP, a second and at once: each takes a millisecond or two of
    #: our processor.
    begun: float = 20.0
    begun_at_once: int = 40
    #: Until the first byte; from there to the end of the head, the handshake of TLS included.
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


class Stage(Enum):
    OPENED = "no byte"
    READING = "no whole head"
    ANSWERING = "an answer that was not taken"
    KEPT = "no further request"


@dataclass(slots=True, eq=False)
class Connection:
    """One connection. ``close`` ends it at once; ``idle_since`` is when it was opened or last answered, ``until`` when it is closed."""

    peer: str
    close: Callable[[], object]
    idle_since: float
    until: float
    stage: Stage = Stage.OPENED
    #: Counted among those with a certificate, and whether this one has shown its own.
    trusted: bool = False
    verified: bool = False
    #: Bytes since the last request.
    unread: int = 0


@dataclass(slots=True)
class Connections:
    """``clock`` is monotonic, in seconds. ``closed`` counts what was closed here, by the bound that it was beyond."""

    bounds: Bounds
    clock: Callable[[], float]
    closed: dict[str, int] = field(default_factory=dict, init=False)
    _strangers: dict[str, dict[Connection, None]] = field(default_factory=dict, init=False)
    _trusted: dict[str, dict[Connection, None]] = field(default_factory=dict, init=False)
    #: Until when an address is known by a certificate, and when the last connection of one would have begun at an even pace.
    _known: dict[str, float] = field(default_factory=dict, init=False)
    _paced: dict[str, float] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return _count(self._strangers) + _count(self._trusted)

    def open(self, peer: str, close: Callable[[], object]) -> Connection:
        """A new connection of ``peer``; one that is beyond the bounds is closed, which is the new one where all others are in use."""
        now = self.clock()
        connection = Connection(peer, close, now, now + self.bounds.first_byte)
        if self._known.get(peer, now) > now:
            self._join_trusted(connection)
            return connection
        own = self._strangers.setdefault(peer, {})
        own[connection] = None
        if len(own) > self.bounds.by_peer:
            self._end(_longest_idle(own), "connections of one peer")
        elif _count(self._strangers) > self.bounds.connections:
            self.make_room()
        return connection

    def make_room(self) -> None:
        """Close the stranger's connection that can be missed best, if there is any."""
        if self._strangers:
            self._end(_dispensable(self._strangers), "connections")

    def turn(self, peer: str) -> float:
        """Seconds that the next connection of ``peer`` must wait to go on; with 0 it has taken its turn."""
        now, pace = self.clock(), 1 / self.bounds.begun
        if self._known.get(peer, now) > now:
            return 0.0
        due = max(self._paced.get(peer, now), now)
        wait = due - now - (self.bounds.begun_at_once - 1) * pace
        # Less than a microsecond is the rounding of the sums above.
        if wait > 1e-6:
            return wait
        if len(self._paced) >= MOST_KNOWN:
            self._paced = {one: at for one, at in self._paced.items() if at > now}
        self._paced[peer] = due + pace
        return 0.0

    def trust(self, connection: Connection) -> None:
        """The certificate of this peer was verified."""
        connection.verified = True
        self._known.pop(connection.peer, None)
        self._known[connection.peer] = self.clock() + KNOWN
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if connection in self._strangers.get(connection.peer, {}):
            self.gone(connection)
            self._join_trusted(connection)

    def _join_trusted(self, connection: Connection) -> None:
        connection.trusted = True
        self._trusted.setdefault(connection.peer, {})[connection] = None
        if _count(self._trusted) > self.bounds.trusted:
            self._end(_dispensable(self._trusted), "connections with a certificate")

    def read(self, connection: Connection, count: int) -> bool:
        """Bytes came; False where they are too many for one request, and the connection is closed."""
        if connection.stage in {Stage.OPENED, Stage.KEPT}:
            connection.stage, connection.until = Stage.READING, self.clock() + self.bounds.head
        connection.unread += count
        fits = connection.unread <= (self.bounds.most_trusted_bytes if connection.verified else self.bounds.most_bytes)
        if not fits:
            self._end(connection, "bytes of a request")
        return fits

    def asked(self, connection: Connection) -> None:
        """The head of a request is complete."""
        connection.stage, connection.unread = Stage.ANSWERING, 0
        connection.until = self.clock() + self.bounds.answer

    def answered(self, connection: Connection) -> None:
        """The answer was written."""
        connection.stage, connection.idle_since = Stage.KEPT, self.clock()
        connection.until = connection.idle_since + (self.bounds.idle_trusted if connection.verified else self.bounds.idle)
        own = (self._trusted if connection.trusted else self._strangers).get(connection.peer, {})
        if connection in own:
            # Those that have been idle longest stay the first.
            del own[connection]
            own[connection] = None

    def gone(self, connection: Connection) -> None:
        """It was closed, by whomever; may be said more than once."""
        among = self._trusted if connection.trusted else self._strangers
        own = among.get(connection.peer, {})
        own.pop(connection, None)
        if not own:
            among.pop(connection.peer, None)

    def expire(self) -> None:
        """Close what has taken too long for what it is at."""
        now = self.clock()
        late = [one for among in (self._strangers, self._trusted) for own in among.values() for one in own if one.until <= now]
        for connection in late:
            self._end(connection, f"time: {connection.stage.value}")

    def close_all(self) -> None:
        """Without counting them."""
        for among in (self._strangers, self._trusted):
            for connection in [one for own in among.values() for one in own]:
                self.gone(connection)
                connection.close()

    def _end(self, connection: Connection, bound: str) -> None:
        self.closed[bound] = self.closed.get(bound, 0) + 1
        self.gone(connection)
        connection.close()


def _count(among: dict[str, dict[Connection, None]]) -> int:
    return sum(map(len, among.values()))


def _dispensable(among: dict[str, dict[Connection, None]]) -> Connection:
    """Of the peer that has most; of several such the one that has been idle longest."""
    most = max(map(len, among.values()))
    return min((_longest_idle(own) for own in among.values() if len(own) == most), key=_idleness)


def _longest_idle(own: dict[Connection, None]) -> Connection:
    """What is being answered only where nothing else is left. Sending bytes makes a connection no younger, only a whole request does."""
    return next((one for one in own if one.stage is not Stage.ANSWERING), next(iter(own)))


def _idleness(connection: Connection) -> tuple[bool, float]:
    return connection.stage is Stage.ANSWERING, connection.idle_since
