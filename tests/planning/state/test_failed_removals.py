"""Nodes whose removal could not be finished are left alone for a while."""

from tests.planning.building import NOW

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.failed_removals import FIRST_SECONDS, MOST_SECONDS, GivenUp, Sparing, remaining, spared, step

WHY = "it could not be drained within 600 s: the budget web"


def given_up(at: float = NOW, *, instance: str = "i-1") -> GivenUp:
    return GivenUp("n", instance, OfferingKey("pool", "spot", "g.1", "z1"), WHY, at)


def test_a_node_is_spared_for_a_while_and_says_why() -> None:
    known = step(Sparing(), given_up())

    assert spared(known, NOW) == {"n": f"{WHY}; its removal was abandoned and will be retried later"}
    assert spared(known, NOW + FIRST_SECONDS) == {}


def test_each_time_it_is_spared_for_twice_as_long_up_to_some_hours() -> None:
    known, spans = Sparing(), []
    for _ in range(12):
        known = step(known, given_up())
        spans.append(known.nodes[0].until - NOW)

    assert spans[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert spans[-1] == MOST_SECONDS


def test_a_new_machine_of_an_old_name_begins_anew() -> None:
    known = step(step(Sparing(), given_up()), given_up(instance="i-2"))

    assert [(one.instance, one.times) for one in known.nodes] == [("i-2", 1)]


def test_what_is_gone_or_long_ago_is_forgotten() -> None:
    known = step(Sparing(), given_up())

    assert remaining(known, ["i-1"], NOW + FIRST_SECONDS + 1.0) == known
    assert remaining(known, [], NOW) == Sparing()
    assert remaining(known, ["i-1"], NOW + FIRST_SECONDS + MOST_SECONDS) == Sparing()
