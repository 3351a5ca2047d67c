"""Refusals: nodes that are avoided for pods which seem to fit there."""

from functools import reduce

from gpuscaler.planning.state.node_refusals import (
    AVOIDED_SECONDS,
    MOST,
    Cleared,
    Event,
    NodeRefused,
    Planned,
    Refusals,
    Suspected,
    Wait,
    avoided_nodes,
    step,
)


def after(*events: Event) -> Refusals:
    return reduce(step, events, Refusals())


def refused(node: str = "n", *, pod: str = "p", pods: str = "class", at: float = 100.0) -> NodeRefused:
    return NodeRefused(pod, pods, node, "face", at, "0/1 nodes")


def test_the_wait_for_a_placement_starts_at_the_first_of_consecutive_plans_with_it() -> None:
    refusals = after(Planned((("p", "n"), ("q", "n")), 1.0), Planned((("p", "n"), ("q", "m")), 9.0))

    assert refusals.waits == (Wait("p", "n", 1.0), Wait("q", "m", 9.0))
    assert after(Planned((("p", "n"),), 1.0), Planned((), 5.0), Planned((("p", "n"),), 9.0)).waits == (Wait("p", "n", 9.0),)


def test_an_equal_plan_does_not_change_the_waits() -> None:
    refusals = after(Planned((("p", "n"),), 1.0))

    assert step(refusals, Planned((("p", "n"),), 9.0)) is refusals


def test_a_suspected_refusal_counts_from_its_start_if_the_next_plan_places_the_pod_there() -> None:
    suspected = after(Suspected("p", "n", 3.0))

    assert suspected.waits == (Wait("p", "n", 3.0, suspected=True),)
    assert step(suspected, Planned((("p", "n"),), 70.0)).waits == (Wait("p", "n", 3.0),)
    assert step(suspected, Planned((("p", "other"),), 70.0)).waits == (Wait("p", "other", 70.0),)


def test_a_refusal_ends_the_wait_and_the_pod_class_avoids_the_node_for_an_hour() -> None:
    refusals = after(Planned((("p", "n"), ("q", "n")), 1.0), refused())

    assert refusals.waits == (Wait("q", "n", 1.0),)
    assert avoided_nodes(refusals, 100.0 + AVOIDED_SECONDS - 1.0) == {"class": frozenset({"n"})}
    assert avoided_nodes(refusals, 100.0 + AVOIDED_SECONDS) == {}


def test_several_pod_classes_can_each_avoid_several_nodes() -> None:
    refusals = after(refused("n"), refused("m"), refused("n", pods="other"))

    assert avoided_nodes(refusals, 101.0) == {"class": frozenset({"n", "m"}), "other": frozenset({"n"})}


def test_a_changed_node_is_no_longer_avoided() -> None:
    assert avoided_nodes(after(refused("n"), refused("n", pods="other"), refused("m"), Cleared("n")), 101.0) == {"class": frozenset({"m"})}


def test_a_second_refusal_extends_the_time_for_which_a_node_is_avoided() -> None:
    (refusal,) = after(refused(at=100.0), refused(at=500.0)).avoided

    assert refusal.until == 500.0 + AVOIDED_SECONDS


def test_expired_refusals_are_dropped_and_their_number_is_limited() -> None:
    assert [refusal.node for refusal in after(refused("old", at=0.0), refused("new", at=AVOIDED_SECONDS + 1.0)).avoided] == ["new"]
    many = after(*(refused(f"n{number}") for number in range(MOST + 5)))
    assert [many.avoided[0].node, many.avoided[-1].node, len(many.avoided)] == ["n5", f"n{MOST + 4}", MOST]
    assert len(after(Planned(tuple((f"p{number}", "n") for number in range(MOST + 5)), 1.0)).waits) == MOST
