"""Hundreds of pod classes on large machines."""

import random

import pytest
from tests.planning.mix.checking import assert_valid

from gpuscaler.planning.mix import Item, Limits, MixKind, Problem, SharedCap, solve

GIB, MIB = 1 << 30, 1 << 20


def linear(pods: int, items: int, kinds: int) -> Problem:
    """Random requests over kinds with prices that grow with their size."""
    draw = random.Random(5)
    offered = tuple(
        MixKind(f"k{n:03}", {"cpu": n * 1000 - 100, "memory": 2 * n * GIB, "pods": 10 * n}, n * 0.0275) for n in range(1, kinds + 1)
    )
    shapes = [
        Item(f"i{n:03}", pods // items, {"cpu": draw.randint(100, 1500), "memory": draw.randint(100, 4096) * MIB, "pods": 1})
        for n in range(items)
    ]
    return Problem(tuple(shapes), offered)


def capped(problem: Problem, cap: int) -> Problem:
    """The problem with caps: every fifth item at most twice on a machine, another fifth in a group with at most ``cap`` per machine."""
    items = [Item(item.key, item.count, item.request, per_machine=2) if n % 5 == 0 else item for n, item in enumerate(problem.items)]
    group = SharedCap(tuple(n for n in range(len(items)) if n % 5 == 1), cap)
    return Problem(tuple(items), problem.kinds, (group,))


def test_a_mix_of_many_items_costs_little_more_than_its_lower_bound() -> None:
    problem = linear(8000, 120, 100)
    solution = solve(problem)
    assert_valid(problem, solution)
    assert not solution.unplaced
    assert solution.cost <= solution.lower_bound * 1.01


def test_caps_and_shared_caps_hold_for_many_items() -> None:
    problem = capped(linear(1200, 80, 30), 4)
    solution = solve(problem)
    assert_valid(problem, solution)
    assert not solution.unplaced
    assert solution.cost <= solution.lower_bound * 1.15


def test_exclusive_pairs_hold_for_many_items() -> None:
    problem = linear(700, 70, 30)
    exclusive_pairs = tuple((n, n + 1) for n in range(0, 40, 2))
    problem = Problem(problem.items, problem.kinds, exclusive_pairs=exclusive_pairs)
    solution = solve(problem)
    assert_valid(problem, solution)
    assert not solution.unplaced


@pytest.mark.parametrize("limits", [Limits(machines=5), Limits(dollars_per_hour=8.0)])
def test_limits_hold_for_many_items(limits: Limits) -> None:
    problem = linear(1400, 70, 30)
    problem = Problem(problem.items, problem.kinds, limits=limits)
    solution = solve(problem)
    assert_valid(problem, solution)
    assert solution.groups
    assert solution.unplaced
