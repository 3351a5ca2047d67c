"""Limits on connections by number, peer, bytes and time, with a manual clock."""

from dataclasses import dataclass, field

from gpuscaler.serving.connection_groups import Connection
from gpuscaler.serving.connections import Bounds, Connections
from gpuscaler.serving.turns import Go

BOUNDS = Bounds(
    waiting=6, connections=6, by_peer=4, trusted=3, first_byte=5, head=10, answer=60, idle=75, most_bytes=100, most_trusted_bytes=1000
)


def noting(begun: list[object], what: object) -> Go:
    """Take a turn and record it."""

    def go() -> bool:
        begun.append(what)
        return True

    return go


@dataclass
class Peers:
    now: float = 0.0
    bounds: Bounds = BOUNDS
    closed: list[str] = field(default_factory=list)
    connections: Connections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(self.bounds, lambda: self.now)

    def open(self, peer: str, name: str) -> Connection:
        """Open a connection that sends nothing."""
        self.now += 0.001
        return self.connections.open(peer, lambda: self.closed.append(name))

    def enter(self, peer: str, name: str) -> Connection:
        """Open a connection that has sent something and got its turn."""
        connection = self.open(peer, name)

        def go() -> bool:
            self.connections.begin(connection)
            return True

        self.now += 1
        self.connections.turn(connection, go)
        return connection

    def answer(self, connection: Connection) -> None:
        self.connections.asked(connection)
        self.connections.answered(connection)

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        self.connections.expire()
        return self.closed


def test_above_the_limit_of_a_peer_its_longest_waiting_connection_is_closed() -> None:
    door = Peers()
    door.open("probe", "probe")
    for number in range(6):
        door.open("flood", str(number))

    assert door.closed == ["0", "1"]
    assert door.connections.closed == {"connections per peer": 2}


def test_above_the_waiting_limit_the_longest_waiting_connection_is_closed() -> None:
    door = Peers()
    for number in range(3):
        door.enter("inside", f"inside{number}")
    for number in range(9):
        door.open(f"flood{number}", str(number))

    assert door.closed == ["0", "1", "2"]
    assert door.connections.closed == {"waiting connections": 3}


def test_new_and_known_peers_do_not_displace_each_others_waiting_connections() -> None:
    for peers in (("probe", "new"), ("new", "probe")):
        door = Peers()
        door.answer(door.enter("probe", "before"))
        door.open(peers[0], "one")
        for number in range(20):
            door.open(peers[1], str(number))
        assert "one" not in door.closed


def test_peers_that_abort_what_they_begin_do_not_displace_waiting_connections_of_new_peers() -> None:
    door = Peers()
    crowd = [f"aborts{number}" for number in range(10)]
    for peer in crowd:
        door.connections.remove(door.enter(peer, "aborted"))
    door.open("new", "new")
    for _ in range(3):
        for peer in crowd:
            door.open(peer, peer)

    assert len(door.closed) == 3 * len(crowd) - BOUNDS.waiting
    assert "new" not in door.closed
    # Without descriptors, they lose theirs first.
    for _ in range(BOUNDS.waiting):
        door.connections.make_room()
    assert "new" not in door.closed
    door.connections.make_room()
    assert door.closed[-1] == "new"


def test_above_the_limit_of_active_connections_the_peer_with_the_most_loses_one() -> None:
    door = Peers()
    door.enter("probe", "probe")
    for number in range(3):
        door.enter("a", f"a{number}")
    for number in range(3):
        door.enter("b", f"b{number}")

    assert door.closed == ["a0"]


def test_a_peer_above_its_own_limit_of_active_connections_loses_its_oldest_ones() -> None:
    door = Peers()
    for number in range(6):
        door.enter("flood", str(number))
    assert door.closed == ["0", "1"]


def test_requests_renew_the_age_of_a_connection_and_single_bytes_do_not() -> None:
    door = Peers()
    asks, drips, *_ = [door.enter("flood", name) for name in ("asks", "drips", "idle", "late")]
    door.connections.asked(asks)
    door.now += 1
    door.connections.read(drips, 1)
    door.enter("flood", "new")

    assert door.closed == ["drips"]


def test_idle_connections_are_closed_before_active_ones() -> None:
    door = Peers()
    busy = [door.enter("clients", f"busy{number}") for number in range(3)]
    for connection in busy:
        door.connections.asked(connection)
    door.answer(door.enter("clients", "idle"))
    door.enter("clients", "newer")
    assert door.closed == ["idle"]


def test_a_peer_that_does_not_receive_answers_locks_out_no_other() -> None:
    door = Peers()
    for number in range(6):
        door.connections.asked(door.enter(f"flood{number}", f"holds{number}"))
    newcomer = door.enter("newcomer", "newcomer")
    assert door.closed == ["holds0"]
    door.answer(newcomer)
    assert door.closed == ["holds0"]


def test_each_further_request_of_a_connection_takes_a_turn() -> None:
    door = Peers(bounds=Bounds(peer_turns=2, peer_turns_at_once=3))
    connection, begun = door.enter("client", "client"), list[object]()
    for number in range(4):
        door.connections.request(connection, noting(begun, number))
    # The first request uses the turn of its connection.
    assert begun == [0, 1, 2]
    door.now += 0.5
    door.connections.turns.give()
    assert begun == [0, 1, 2, 3]


def test_a_connection_that_ends_while_it_waits_takes_no_turn() -> None:
    door = Peers(bounds=Bounds(peer_turns=2, peer_turns_at_once=1))
    door.enter("client", "first")
    begun = list[object]()
    ended, next_one = door.open("client", "ended"), door.open("client", "next")
    for name, connection in {"ended": ended, "next": next_one}.items():
        door.connections.turn(connection, noting(begun, name))
    door.connections.remove(ended)
    door.now += 0.5
    door.connections.turns.give()
    assert begun == ["next"]


def test_peers_with_a_certificate_have_a_separate_limit() -> None:
    door = Peers()
    proxies = [door.open("proxy", f"proxy{number}") for number in range(3)]
    for connection in proxies:
        door.connections.trust(connection)
    for number in range(30):
        door.open("stranger", f"stranger{number}")
    assert not any(name.startswith("proxy") for name in door.closed)

    door.connections.trust(door.open("other", "another"))
    assert door.closed[-1] == "proxy0"


def test_an_address_stays_trusted_for_an_hour_after_a_client_certificate() -> None:
    door = Peers()
    connection = door.open("proxy", "known")
    door.connections.trust(connection)
    again = [door.open("proxy", "again") for _ in range(2)]
    for number in range(30):
        door.enter(f"flood{number}", "flood")
    assert set(door.closed) == {"flood"}
    begun = list[object]()
    for number in range(1000):
        door.connections.turn(again[0], noting(begun, number))
    assert len(begun) == 1000

    assert not door.connections.read(door.open("proxy", "large"), 101)
    assert door.connections.read(connection, 101)

    door.now += 3601
    for number in range(5):
        door.open("proxy", f"later{number}")
    assert door.closed[-1].startswith("later")


def test_each_stage_of_a_request_has_a_time_limit() -> None:
    door = Peers()
    drips, kept, answering = (door.enter("peer", name) for name in ("drips", "kept", "answering"))
    silent = door.open("other", "silent")
    for connection in (drips, kept, answering):
        connection.until = door.now + 10
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
        "time: no byte, or no turn",
        "time: no complete head",
        "time: answer not received",
        "time: no further request",
    }
    door.connections.remove(silent)


def test_connections_are_kept_open_longer_than_proxies_keep_them() -> None:
    door = Peers()
    stranger, proxy = door.enter("stranger", "stranger"), door.open("proxy", "proxy")
    door.connections.trust(proxy)
    for connection in (proxy, stranger):
        door.connections.asked(connection)
        door.connections.answered(connection)
    assert door.after(100) == ["stranger"]
    assert door.after(21) == ["stranger", "proxy"]


def test_each_request_has_its_own_limit_of_bytes() -> None:
    door = Peers()
    connection = door.open("peer", "greedy")
    for _ in range(5):
        assert door.connections.read(connection, 90)
        door.connections.asked(connection)
        door.connections.answered(connection)
    assert door.connections.read(connection, 90)
    assert not door.connections.read(connection, 11)
    assert door.closed == ["greedy"]


def test_with_no_connections_closing_idle_ones_does_nothing() -> None:
    door = Peers()
    door.connections.make_room()
    door.connections.remove(door.open("peer", "one"))
    door.connections.make_room()
    assert door.closed == []
