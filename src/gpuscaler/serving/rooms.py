"""A connection as it is counted, and the places where connections are kept. Neither sockets nor HTTP are known here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from gpuscaler.serving.turns import Go


class Stage(Enum):
    WAITING = "no byte, or no turn"
    READING = "no whole head"
    ANSWERING = "an answer that was not taken"
    KEPT = "no further request"


@dataclass(slots=True, eq=False)
class Connection:
    """``close`` ends it at once. ``moved_at`` is when it was opened, took a turn or was answered last, ``until`` when it is closed."""

    peer: str
    close: Callable[[], object]
    moved_at: float
    until: float
    stage: Stage = Stage.WAITING
    #: Counted among those with a certificate, and whether this one has shown its own.
    trusted: bool = False
    verified: bool = False
    #: Bytes since the last request.
    unread: int = 0
    #: What is to be called when its turn comes, while it waits for one.
    turn: Go | None = None
    #: Whether the turn that let it in has served no request yet.
    fresh: bool = False
    room: "Room | None" = None


@dataclass(slots=True, eq=False)
class Room:
    """Connections in the order in which they moved last, all of them and those of each peer."""

    held: dict[Connection, None] = field(default_factory=dict, init=False)
    by_peer: dict[str, dict[Connection, None]] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self.held)

    def of(self, peer: str) -> int:
        return len(self.by_peer.get(peer, ()))

    def enter(self, connection: Connection) -> None:
        """As the one that moved last, from wherever it was."""
        if connection.room is not None:
            connection.room.leave(connection)
        connection.room = self
        self.held[connection] = None
        self.by_peer.setdefault(connection.peer, {})[connection] = None

    def leave(self, connection: Connection) -> None:
        connection.room = None
        del self.held[connection]
        own = self.by_peer[connection.peer]
        del own[connection]
        if not own:
            del self.by_peer[connection.peer]

    def first(self) -> Connection:
        return next(iter(self.held))

    def first_of(self, peer: str) -> Connection:
        """Of ``peer`` the one that can be missed best: one without a request where there is one, else the one that moved longest ago."""
        own = self.by_peer[peer]
        return next((one for one in own if one.stage is Stage.KEPT), next(iter(own)))

    def dispensable(self) -> Connection:
        """The same of the peer that has most; of several such the one that moved longest ago."""
        most = max(map(len, self.by_peer.values()))
        return min((self.first_of(peer) for peer, own in self.by_peer.items() if len(own) == most), key=_missed)


def _missed(connection: Connection) -> tuple[bool, float]:
    return connection.stage is not Stage.KEPT, connection.moved_at
