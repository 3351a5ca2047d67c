"""The optimiser on problems whose optimum can be worked out by hand."""

import pytest

from gpuscaler.planning.mix import Item, Kind, Limits, Problem, solve

GIB = 1 << 30


def test_gpu_pods_get_one_small_machine_each_when_prices_are_linear() -> None:
    kinds = (
        Kind("small", {"cpu": 3920, "memory": 14 * GIB, "pods": 29, "gpu": 1}, 1.0),
        Kind("large", {"cpu": 47000, "memory": 180 * GIB, "pods": 200, "gpu": 4}, 5.7),
    )
    found = solve(Problem((Item("a", 8, {"cpu": 2000, "memory": 13 * GIB, "pods": 1, "gpu": 1}),), kinds))
    assert [(p.kind, dict(p.pods), p.times) for p in found.machines] == [(0, {0: 1}, 8)]
    assert found.cost == pytest.approx(8.0)
    assert found.lower_bound == pytest.approx(8.0)


def test_a_limit_leaves_the_pods_of_lower_priority_unmet() -> None:
    kinds = (Kind("only", {"cpu": 1000, "pods": 10}, 1.0),)
    items = (Item("low", 3, {"cpu": 1000, "pods": 1}), Item("high", 2, {"cpu": 1000, "pods": 1}, priority=5))
    found = solve(Problem(items, kinds, limits=Limits(machines=3)))
    assert found.unmet == {0: 2}
    assert found.cost == pytest.approx(3.0)
