"""Work, early stops, and independence of order."""

import random

import pytest
from tests.planning.mix.checking import assert_valid, small_problem

from gpuscaler.planning.mix import Item, Limits, MixKind, Problem, SharedCap, Solution, solve

GIB = 1 << 30


def catalogue_like(seed: int, *, items: int = 7, kinds: int = 40) -> Problem:
    """Shapes of GPU and CPU pods over families of machines with nearly linear prices."""
    draw = random.Random(seed)
    offered = []
    for n in range(kinds):
        size, gpus = draw.choice((2, 4, 8, 16, 32, 48)), draw.choice((0, 0, 1, 2, 4, 8))
        ratio = draw.choice((2, 4, 8))
        capacity = {"cpu": size * 1000 - 90, "memory": size * ratio * GIB * 9 // 10, "pods": 58, "gpu": gpus}
        offered.append(
            MixKind(f"k{n}", capacity, round(size * 0.03 + size * ratio * 0.004 + gpus * 0.6 + draw.random() / 20, 4), gpus_counted=gpus)
        )
    shapes = []
    for n in range(items):
        gpus = draw.choice((0, 0, 1, 2, 4))
        cpus = draw.choice((1, 2, 3, 5)) * max(gpus, 1)
        shapes.append(
            Item(f"i{n}", draw.randint(1, 40), {"cpu": cpus * 1000, "memory": cpus * draw.randint(1, 6) * GIB, "pods": 1, "gpu": gpus})
        )
    return Problem(tuple(shapes), tuple(offered))


def shuffled(problem: Problem, seed: int) -> tuple[Problem, list[int], list[int]]:
    """The same problem in another order; also the old index of every item and kind."""
    draw = random.Random(seed)
    items, kinds = list(range(len(problem.items))), list(range(len(problem.kinds)))
    draw.shuffle(items)
    draw.shuffle(kinds)
    moved = []
    for i in items:
        item = problem.items[i]
        allowed = None if item.allowed is None else tuple(kinds.index(k) for k in item.allowed)
        moved.append(Item(item.key, item.count, dict(reversed(list(item.request.items()))), allowed, item.per_machine, item.priority))
    shared_caps = tuple(SharedCap(tuple(items.index(i) for i in t.items), t.cap) for t in reversed(problem.shared_caps))
    exclusive_pairs = tuple((items.index(b), items.index(a)) for a, b in problem.exclusive_pairs)
    return Problem(tuple(moved), tuple(problem.kinds[k] for k in kinds), shared_caps, exclusive_pairs, problem.limits), items, kinds


def by_key(problem: Problem, solution: Solution) -> tuple[list[tuple[str, tuple[tuple[str, int], ...], int]], dict[str, int], float]:
    machines = [
        (problem.kinds[p.kind].key, tuple(sorted((problem.items[i].key, n) for i, n in p.pods.items())), p.times) for p in solution.groups
    ]
    return sorted(machines), {problem.items[i].key: n for i, n in solution.unplaced.items()}, round(solution.lower_bound, 9)


@pytest.mark.parametrize("seed", range(12))
def test_the_solution_does_not_depend_on_the_order_of_items_kinds_or_resources(seed: int) -> None:
    problem = small_problem(seed, limited=seed % 2 == 1) if seed < 8 else catalogue_like(seed)
    other, _, _ = shuffled(problem, seed)
    first, second = solve(problem), solve(other)
    assert by_key(problem, first) == by_key(other, second)
    assert first.work_used == second.work_used


@pytest.mark.parametrize("work", [1, 20_000, 200_000, 1_000_000])
def test_the_same_work_budget_gives_the_same_solution_and_every_budget_a_valid_one(work: int) -> None:
    problem = catalogue_like(3)
    first, second = solve(problem, work=work), solve(problem, work=work)
    assert first == second
    assert_valid(problem, first)
    assert not first.unplaced


def test_a_larger_work_budget_never_gives_a_more_expensive_mix() -> None:
    for seed in range(4):
        costs = [solve(catalogue_like(seed), work=work).cost for work in (1, 50_000, 1_000_000)]
        assert costs == sorted(costs, reverse=True)


def test_a_search_that_is_stopped_early_returns_a_valid_mix_and_says_so() -> None:
    problem = catalogue_like(3)
    asked = []

    def after_two() -> bool:
        asked.append(True)
        return len(asked) > 2

    solution = solve(problem, should_stop=after_two)
    assert solution.stopped_early
    assert not solution.unplaced
    assert_valid(problem, solution)


def test_a_stop_condition_that_never_applies_does_not_change_the_solution() -> None:
    problem = catalogue_like(3)
    assert solve(problem, should_stop=lambda: False) == solve(problem)


def test_a_search_that_is_stopped_early_still_respects_limits() -> None:
    problem = catalogue_like(4)
    limited = Problem(problem.items, problem.kinds, limits=Limits(machines=9, dollars_per_hour=12.0))
    solution = solve(limited, should_stop=lambda: True)
    assert solution.stopped_early
    assert_valid(limited, solution)


@pytest.mark.parametrize("seed", range(6))
def test_mixes_of_medium_problems_cost_at_most_half_a_percent_above_their_lower_bound(seed: int) -> None:
    problem = catalogue_like(seed)
    solution = solve(problem)
    assert_valid(problem, solution)
    assert solution.cost <= solution.lower_bound * 1.005


def test_a_mix_for_forty_gpu_pod_classes_reaches_the_lower_bound_in_half_the_budget() -> None:
    sizes = ((1, 4, 16), (1, 8, 32), (1, 16, 64), (4, 48, 192), (4, 96, 384), (8, 192, 768))
    prices = (1.0, 1.2, 1.6, 5.7, 8.1, 16.3)
    kinds = [
        MixKind(f"k{n}", {"cpu": cpus * 1000 - 90, "memory": gib * GIB * 9 // 10, "pods": 110, "gpu": gpus}, price)
        for n, ((gpus, cpus, gib), price) in enumerate(zip(sizes, prices, strict=True))
    ]
    items = [
        Item(f"i{n:02}", 50, {"cpu": 1000 + 250 * (7 * n % 29), "memory": (2 + 5 * n % 31) * GIB, "pods": 1, "gpu": 1 + n % 4})
        for n in range(40)
    ]
    problem = Problem(tuple(items), tuple(kinds))
    solution = solve(problem)
    assert_valid(problem, solution)
    assert solution.cost <= solution.lower_bound * 1.0005
    assert solution.lower_bound_kind == "pattern-lp"
    assert solution.work_used <= 500_000
