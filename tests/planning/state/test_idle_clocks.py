"""Idle clocks."""

from functools import reduce

import msgspec
from tests.planning.building import NOW, node, offering, planned, pool

from gpuscaler.planning.state import State
from gpuscaler.planning.state.idle_clocks import IdleClocks, Observed, idle_seconds, step


def after(*looks: tuple[float, str]) -> IdleClocks:
    """Clocks after looks at (a moment, the nodes that were idle)."""
    return reduce(step, [Observed(frozenset(names.split()), at) for at, names in looks], IdleClocks())


def test_a_node_is_idle_since_the_first_of_the_looks_in_a_row() -> None:
    assert idle_seconds(after((0.0, "a"), (10.0, "a b"), (20.0, "a b")), 25.0) == {"a": 25.0, "b": 15.0}


def test_a_look_at_which_it_was_busy_starts_the_clock_anew() -> None:
    assert idle_seconds(after((0.0, "a"), (10.0, ""), (20.0, "a")), 25.0) == {"a": 5.0}


def test_a_node_that_is_gone_has_no_clock() -> None:
    assert idle_seconds(after((0.0, "a b"), (10.0, "b")), 10.0) == {"b": 10.0}


def test_a_moment_before_the_first_look_is_no_idle_time() -> None:
    assert idle_seconds(after((10.0, "a")), 5.0) == {"a": 0.0}


def test_clocks_survive_a_restart() -> None:
    clocks = after((0.0, "a"), (10.0, "a b"))

    assert msgspec.json.decode(msgspec.json.encode(clocks), type=IdleClocks) == clocks


def test_the_planner_gives_back_what_the_clocks_say_is_idle_long_enough() -> None:
    clocks = after((NOW - 700.0, "a"), (NOW - 60.0, "a b"))
    made = planned([node("a"), node("b")], pool(offering()), state=State(idle_seconds=idle_seconds(clocks, NOW)))

    assert [removal.node for removal in made.removals] == ["a"]
