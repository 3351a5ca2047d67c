"""The search for the most valuable pods for one machine, and the bounds it prunes with."""

import itertools

import numpy as np
import pytest
from tests.planning.mix.checking import fits, small_problem

from gpuscaler.planning.mix.columns.pricing import search
from gpuscaler.planning.mix.columns.relax import sharpen, worths
from gpuscaler.planning.mix.instance import ProblemArrays, build
from gpuscaler.planning.mix.work import Meter


def case(seed: int) -> tuple[ProblemArrays, np.ndarray, np.ndarray]:
    """An instance, random values of its items, and the value of the best pods on each of its kinds by exhaustive search."""
    problem = small_problem(seed)
    instance = build(problem)
    values = np.random.default_rng(seed).uniform(0.1, 1.0, len(instance.demand))
    best = np.zeros(len(instance.price))
    for k, origin in enumerate(instance.origin):
        for pods in itertools.product(*(range(int(n) + 1) for n in instance.demand)):
            held = {instance.members[row][0]: n for row, n in enumerate(pods) if n}
            if len(instance.members) == len(problem.items) and held and fits(problem, origin, held):
                best[k] = max(best[k], float(values @ np.array(pods)))
    return instance, values, best


SEEDS = [seed for seed in range(40) if len(build(small_problem(seed)).members) == len(small_problem(seed).items)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_relaxed_bound_is_never_below_the_best_value_and_sharpening_never_raises_it(seed: int) -> None:
    instance, values, best = case(seed)
    kinds = np.arange(len(instance.price))
    start = 0.01 / np.maximum(instance.capacity, 1.0)
    prices, bound = sharpen(instance, kinds, values, (start,))
    assert np.all(bound >= best - 1e-9)
    assert np.all(bound <= worths(instance, kinds, values, start) + 1e-9)
    assert np.allclose(bound, worths(instance, kinds, values, prices))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_search_finds_the_most_valuable_pods_for_every_kind(seed: int) -> None:
    instance, values, best = case(seed)
    targets = best * 0.9
    improving_patterns = search(instance, values=values, targets=targets, starts=(), width=100_000, meter=Meter(10**9))
    assert np.all(improving_patterns.worth >= best - 1e-9)
    for k in np.flatnonzero(best > 0):
        mine = [float(held @ values) for kind, held in zip(improving_patterns.kinds, improving_patterns.held, strict=True) if kind == k]
        if instance.device is None:
            assert max(mine) == pytest.approx(best[k])
            assert improving_patterns.worth[k] == pytest.approx(best[k])
        else:
            assert max(mine, default=0.0) <= best[k] + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_of_a_narrow_search_also_holds_for_machines_it_did_not_examine(seed: int) -> None:
    instance, values, best = case(seed)
    improving_patterns = search(instance, values=values, targets=best * 0.5, starts=(), width=4, meter=Meter(10**9))
    assert np.all(improving_patterns.worth >= best - 1e-9)


def test_the_search_proves_that_no_machine_improves_the_mix() -> None:
    instance, values, best = case(SEEDS[0])
    improving_patterns = search(instance, values=values, targets=best + 1e-6, starts=(), width=100_000, meter=Meter(10**9))
    assert not len(improving_patterns.kinds)
    assert np.all(improving_patterns.worth <= best + 1e-6)
