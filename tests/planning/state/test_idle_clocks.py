"""Idle clocks of nodes."""

from functools import reduce

import msgspec
from tests.planning.building import NOW, node, offering, planned, pool

from gpuscaler.planning.state import State
from gpuscaler.planning.state.idle_clocks import IdleClocks, IdleObservation, idle_seconds, step


def after(*looks: tuple[float, str]) -> IdleClocks:
    """Clocks after observations of (time, names of the idle nodes)."""
    return reduce(step, [IdleObservation(frozenset(names.split()), at) for at, names in looks], IdleClocks())


def test_a_node_is_idle_since_the_first_of_consecutive_idle_observations() -> None:
    assert idle_seconds(after((0.0, "a"), (10.0, "a b"), (20.0, "a b")), 25.0) == {"a": 25.0, "b": 15.0}


def test_an_observation_of_a_busy_node_resets_its_idle_time() -> None:
    assert idle_seconds(after((0.0, "a"), (10.0, ""), (20.0, "a")), 25.0) == {"a": 5.0}


def test_the_idle_time_of_a_deleted_node_is_forgotten() -> None:
    assert idle_seconds(after((0.0, "a b"), (10.0, "b")), 10.0) == {"b": 10.0}


def test_the_idle_time_is_zero_at_times_before_the_first_observation() -> None:
    assert idle_seconds(after((10.0, "a")), 5.0) == {"a": 0.0}


def test_idle_times_survive_a_restart() -> None:
    clocks = after((0.0, "a"), (10.0, "a b"))

    assert msgspec.json.decode(msgspec.json.encode(clocks), type=IdleClocks) == clocks


def test_the_planner_removes_nodes_that_have_been_idle_long_enough() -> None:
    clocks = after((NOW - 700.0, "a"), (NOW - 60.0, "a b"))
    made = planned([node("a"), node("b")], pool(offering()), state=State(idle_seconds=idle_seconds(clocks, NOW)))

    assert [removal.node for removal in made.removals] == ["a"]
