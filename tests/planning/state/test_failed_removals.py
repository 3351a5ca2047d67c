"""Nodes whose removal could not be finished are not removed for a while."""

from tests.planning.building import NOW

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.failed_removals import FIRST_SECONDS, MOST_SECONDS, GivenUp, SparedNodes, prune, spared_reasons, step

WHY = "it could not be drained within 600 s: the budget web"


def given_up(at: float = NOW, *, instance: str = "i-1") -> GivenUp:
    return GivenUp("n", instance, OfferingKey("pool", "spot", "g.1", "z1"), WHY, at)


def test_after_a_failed_removal_a_node_is_kept_for_a_while_with_the_reason() -> None:
    sparing = step(SparedNodes(), given_up())

    assert spared_reasons(sparing, NOW) == {"n": f"{WHY}; its removal was abandoned and will be retried later"}
    assert spared_reasons(sparing, NOW + FIRST_SECONDS) == {}


def test_each_failed_removal_doubles_the_time_until_the_next_up_to_four_hours() -> None:
    sparing, spans = SparedNodes(), []
    for _ in range(12):
        sparing = step(sparing, given_up())
        spans.append(sparing.nodes[0].until - NOW)

    assert spans[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert spans[-1] == MOST_SECONDS


def test_a_new_machine_with_the_same_node_name_may_be_removed_without_a_pause() -> None:
    sparing = step(step(SparedNodes(), given_up()), given_up(instance="i-2"))

    assert [(spared.instance, spared.times) for spared in sparing.nodes] == [("i-2", 1)]


def test_failed_removals_of_deleted_nodes_and_old_failures_are_forgotten() -> None:
    sparing = step(SparedNodes(), given_up())

    assert prune(sparing, ["i-1"], NOW + FIRST_SECONDS + 1.0) == sparing
    assert prune(sparing, [], NOW) == SparedNodes()
    assert prune(sparing, ["i-1"], NOW + FIRST_SECONDS + MOST_SECONDS) == SparedNodes()
