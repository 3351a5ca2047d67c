"""Which connections are kept: by number, peer, bytes and time. The clock is by hand."""

from dataclasses import dataclass, field

from gpuscaler.serving.connections import Bounds, Connection, Connections

BOUNDS = Bounds(connections=6, by_peer=4, trusted=3, first_byte=5, head=10, answer=60, idle=75, most_bytes=100, most_trusted_bytes=1000)


@dataclass
class Door:
    now: float = 0.0
    closed: list[str] = field(default_factory=list)
    connections: Connections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(BOUNDS, lambda: self.now)

    def open(self, peer: str, name: str) -> Connection:
        self.now += 0.001
        return self.connections.open(peer, lambda: self.closed.append(name))

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        self.connections.expire()
        return self.closed


def test_beyond_the_bound_of_a_peer_its_own_connection_that_is_idle_longest_is_closed() -> None:
    door = Door()
    door.open("probe", "probe")
    for number in range(6):
        door.open("flood", str(number))

    assert door.closed == ["0", "1"]
    assert door.connections.closed == {"connections of one peer": 2}


def test_beyond_all_connections_the_peer_with_most_loses_one() -> None:
    door = Door()
    door.open("probe", "probe")
    for number in range(3):
        door.open("a", f"a{number}")
    for number in range(3):
        door.open("b", f"b{number}")

    assert door.closed == ["a0"]


def test_bytes_make_a_connection_no_younger_and_an_answer_does() -> None:
    door = Door()
    asks, drips, *_ = [door.open("flood", name) for name in ("asks", "drips", "idle", "late")]
    door.connections.asked(asks)
    door.connections.answered(asks)
    door.now += 1
    door.connections.read(drips, 1)
    door.open("flood", "new")

    assert door.closed == ["drips"]


def test_what_is_being_answered_is_closed_only_where_nothing_else_is_left() -> None:
    door = Door()
    busy = [door.open("clients", f"busy{number}") for number in range(3)]
    door.open("clients", "idle")
    for connection in busy:
        door.connections.asked(connection)
    newer = door.open("clients", "newer")
    assert door.closed == ["idle"]
    door.connections.asked(newer)
    door.open("clients", "newest")
    assert door.closed == ["idle", "newest"]


def test_peers_with_a_certificate_have_a_bound_of_their_own() -> None:
    door = Door()
    proxies = [door.open("proxy", f"proxy{number}") for number in range(3)]
    for connection in proxies:
        door.connections.trust(connection)
    for number in range(30):
        door.open("stranger", f"stranger{number}")
    assert not any(name.startswith("proxy") for name in door.closed)

    door.connections.trust(door.open("other", "another"))
    assert door.closed[-1] == "proxy0"


def test_an_address_that_had_a_certificate_within_the_hour_is_none_of_a_stranger() -> None:
    door = Door()
    known = door.open("proxy", "known")
    door.connections.trust(known)
    for _ in range(2):
        door.open("proxy", "again")
    for number in range(30):
        door.open(f"flood{number}", "flood")
    assert set(door.closed) == {"flood"}
    assert all(door.connections.turn("proxy") == 0 for _ in range(1000))

    assert not door.connections.read(door.open("proxy", "large"), 101)
    assert door.connections.read(known, 101)

    door.now += 3601
    for number in range(5):
        door.open("proxy", f"later{number}")
    assert door.closed[-1].startswith("later")


def test_handshakes_of_one_address_begin_at_a_pace_and_those_of_others_do_not_wait() -> None:
    door = Door()
    began = [door.connections.turn("flood") for _ in range(45)]
    assert began[:40] == [0.0] * 40
    assert all(0 < wait <= 0.051 for wait in began[40:])
    assert door.connections.turn("probe") == 0
    door.now += 1
    assert [door.connections.turn("flood") for _ in range(30)].count(0.0) == 20


def test_each_step_of_a_request_has_its_time() -> None:
    door = Door()
    silent, drips, kept, answering = (door.open("peer", name) for name in ("silent", "drips", "kept", "answering"))
    door.now = 0
    for connection in (drips, kept, answering):
        assert door.connections.read(connection, 1)
    for connection in (kept, answering):
        door.connections.asked(connection)
    door.connections.answered(kept)
    assert door.after(4) == []
    assert door.connections.read(drips, 1)
    assert door.after(2) == ["silent"]
    assert door.after(5) == ["silent", "drips"]
    assert door.after(50) == ["silent", "drips", "answering"]
    assert door.after(15) == ["silent", "drips", "answering", "kept"]
    assert len(door.connections) == 0
    assert set(door.connections.closed) == {
        "time: no byte",
        "time: no whole head",
        "time: an answer that was not taken",
        "time: no further request",
    }
    door.connections.gone(silent)


def test_proxies_keep_a_connection_for_longer_than_they_would_themselves() -> None:
    door = Door()
    proxy, stranger = door.open("proxy", "proxy"), door.open("stranger", "stranger")
    door.connections.trust(proxy)
    for connection in (proxy, stranger):
        door.connections.asked(connection)
        door.connections.answered(connection)
    assert door.after(100) == ["stranger"]
    assert door.after(21) == ["stranger", "proxy"]


def test_a_request_has_its_bytes_and_each_one_anew() -> None:
    door = Door()
    connection = door.open("peer", "greedy")
    for _ in range(5):
        assert door.connections.read(connection, 90)
        door.connections.asked(connection)
        door.connections.answered(connection)
    assert door.connections.read(connection, 90)
    assert not door.connections.read(connection, 11)
    assert door.closed == ["greedy"]


def test_without_connections_there_is_nothing_to_close() -> None:
    door = Door()
    door.connections.make_room()
    door.connections.gone(door.open("peer", "one"))
    door.connections.make_room()
    assert door.closed == []
