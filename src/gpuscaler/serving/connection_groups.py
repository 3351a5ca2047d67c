"""Bookkeeping of connections: a counted connection, and ordered groups of them. Independent of sockets and HTTP."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from gpuscaler.serving.turns import Go


class Stage(Enum):
    WAITING = "no byte, or no turn"
    READING = "no complete head"
    ANSWERING = "answer not received"
    KEPT = "no further request"


@dataclass(slots=True, eq=False)
class Connection:
    """A connection. ``close`` ends it. ``moved_at`` is when it last opened, took a turn or was answered, ``until`` when it expires."""

    peer: str
    close: Callable[[], object]
    moved_at: float
    until: float
    stage: Stage = Stage.WAITING
    #: Whether it counts among those with a certificate, and whether it has shown its own.
    trusted: bool = False
    verified: bool = False
    #: Bytes since the last request.
    unread: int = 0
    #: The callback for its turn, while it waits for one.
    turn: Go | None = None
    #: Whether the turn that made it active has not served a request yet.
    fresh: bool = False
    group: "ConnectionGroup | None" = None


@dataclass(slots=True, eq=False)
class ConnectionGroup:
    """Connections in order of their last activity, in total and per peer."""

    held: dict[Connection, None] = field(default_factory=dict, init=False)
    by_peer: dict[str, dict[Connection, None]] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self.held)

    def of(self, peer: str) -> int:
        return len(self.by_peer.get(peer, ()))

    def enter(self, connection: Connection) -> None:
        """Add a connection as the most recent one, removing it from its previous place."""
        if connection.group is not None:
            connection.group.leave(connection)
        connection.group = self
        self.held[connection] = None
        self.by_peer.setdefault(connection.peer, {})[connection] = None

    def leave(self, connection: Connection) -> None:
        connection.group = None
        del self.held[connection]
        of_peer = self.by_peer[connection.peer]
        del of_peer[connection]
        if not of_peer:
            del self.by_peer[connection.peer]

    def first(self) -> Connection:
        return next(iter(self.held))

    def first_of(self, peer: str) -> Connection:
        """Return the least valuable connection of ``peer``: one without a request if there is one, else the least recently active."""
        of_peer = self.by_peer[peer]
        return next((connection for connection in of_peer if connection.stage is Stage.KEPT), next(iter(of_peer)))

    def dispensable(self) -> Connection:
        """Return the least valuable connection of the peer with most connections; among several such peers, the oldest."""
        largest = max(map(len, self.by_peer.values()))
        return min((self.first_of(peer) for peer, of_peer in self.by_peer.items() if len(of_peer) == largest), key=_missed)


def _missed(connection: Connection) -> tuple[bool, float]:
    return connection.stage is not Stage.KEPT, connection.moved_at
