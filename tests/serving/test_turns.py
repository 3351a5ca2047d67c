"""Order and rate of turns, with a manual clock and manual wake-ups."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuscaler.serving.turns import KNOWN, MOST, TurnRate, Turns


@dataclass
class Queue:
    """Ten turns per second in total, three of them at once; two per second for each peer, two at once."""

    now: float = 1000.0
    given: list[str] = field(default_factory=list)
    woken: list[float] = field(default_factory=list)
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Turns(lambda: self.now, TurnRate(10, 3), lambda: TurnRate(2, 2))
        self.turns.wake = self.woken.append

    def ask(self, *peers: str) -> None:
        for peer in peers:
            self.turns.ask(peer, self.go(peer))

    def go(self, peer: str) -> Callable[[], bool]:
        def go() -> bool:
            self.given.append(peer)
            return True

        return go

    def after(self, seconds: float) -> list[str]:
        """Advance the clock and return the peers that got turns. It is woken only at the times it requested."""
        end, before = self.now + seconds, len(self.given)
        while self.woken and min(self.woken) <= end + 1e-9:
            self.now = max(self.now, min(self.woken))
            self.woken.remove(min(self.woken))
            self.turns.give()
        self.now = end
        return self.given[before:]


def acquainted(*peers: str) -> Queue:
    """Record an answer to each of ``peers``, one second apart."""
    here = Queue()
    for peer in peers:
        here.ask(peer)
        here.turns.answered(peer)
        here.now += 1
    here.given.clear()
    return here


def test_turns_are_given_immediately_up_to_a_burst_then_at_an_even_rate() -> None:
    here = Queue()
    here.ask(*"abcdefg")
    assert here.given == list("abc")
    assert len(here.after(0.21)) == 2
    assert len(here.after(1)) == 2
    assert here.woken == []


def test_a_peer_beyond_its_rate_waits_without_delaying_others() -> None:
    here = Queue()
    here.ask("flood", "flood", "flood")
    assert here.given == ["flood", "flood"]
    here.ask("probe")
    assert here.given[2:] == ["probe"]
    assert here.after(0.45) == []
    assert here.after(0.1) == ["flood"]


def test_a_known_peer_does_not_wait_behind_many_new_ones() -> None:
    here = acquainted("probe")
    here.ask(*(f"new{number}" for number in range(200)))
    for _ in range(10):
        here.ask("probe")
        assert "probe" in here.after(0.21)
        here.after(0.79)


def test_the_longest_known_peer_does_not_wait_behind_later_known_ones() -> None:
    here = acquainted("probe", *(f"flood{number}" for number in range(200)))
    here.ask(*(f"flood{number}" for number in range(200)))
    here.ask("probe")
    assert "probe" in here.after(0.21)


def test_a_new_peer_does_not_wait_behind_many_peers_that_have_had_turns() -> None:
    crowd = [f"flood{number}" for number in range(40)]
    here = acquainted(*crowd)
    here.ask(*crowd, *crowd)
    here.after(1)
    here.ask("new")
    assert "new" in here.after(0.21)


def test_withdrawn_requests_use_no_turn() -> None:
    here = Queue()
    here.ask("a", "a", "b")
    withdrawn = here.go("withdrawn")
    here.turns.ask("c", withdrawn)
    here.turns.withdraw("c", withdrawn)
    here.turns.withdraw("c", withdrawn)
    here.turns.ask("d", lambda: False)
    here.ask("e")
    assert here.after(0.11) == ["e"]


def test_a_known_peer_is_forgotten_an_hour_after_its_last_answer() -> None:
    here = acquainted("probe")
    here.now += KNOWN - 10
    assert here.turns.knows("probe")
    here.turns.answered("probe")
    here.now += KNOWN - 1
    assert here.turns.knows("probe")
    here.now += 2
    assert not here.turns.knows("probe")
    assert not here.turns.knows("stranger")


def test_a_peer_has_had_a_turn_only_if_it_took_one_within_the_hour() -> None:
    here = Queue(now=10.0)
    here.turns.ask("left", lambda: False)
    here.ask("took")
    assert here.turns.has_had_turn("took")
    assert not here.turns.knows("took")
    assert not here.turns.has_had_turn("left")
    assert not here.turns.has_had_turn("stranger")
    here.now += KNOWN
    assert not here.turns.has_had_turn("took")


def test_very_many_new_peers_neither_fill_memory_nor_displace_known_ones() -> None:
    here = acquainted("probe")
    for number in range(MOST + 500):
        here.now += 0.1
        here.ask(f"new{number}")
        here.turns.answered(f"new{number}")
    assert len(here.turns._peers) <= MOST
    assert here.turns.knows("probe")
    here.ask("another", "another")
    assert here.given[-2:] == ["another", "another"]
