"""Filling many machines at once gives the same result as filling each of them item by item."""

import random

import numpy as np
import pytest
from tests.planning.mix.checking import small_problem

from gpuscaler.planning.mix import Item, MixKind, Problem
from gpuscaler.planning.mix.fill import fill, fits, fits_all
from gpuscaler.planning.mix.instance import Floats, Ints, ProblemArrays, build


def one_by_one(instance: ProblemArrays, order: Ints, remaining: Floats, kind: int) -> Floats:
    """As many copies as fit, one copy after the other."""
    held, only = np.zeros(len(order)), np.array([kind])
    for item in order:
        for _ in range(int(min(remaining[item], instance.copies[item, kind]))):
            held[item] += 1
            if not fits(instance, held, only)[0]:
                held[item] -= 1
                break
    return held


def wide_problem(seed: int) -> Problem:
    """Forty items, more than one block of :func:`fill`, over machines of three sizes."""
    draw = random.Random(seed)
    items = tuple(Item(f"{n:02}", draw.randint(1, 5), {"cpu": draw.randint(1, 9), "memory": draw.randint(1, 9)}) for n in range(40))
    return Problem(items, tuple(MixKind(f"k{n}", {"cpu": n, "memory": n}, float(n)) for n in (10, 25, 60)))


@pytest.mark.parametrize("seed", range(60))
def test_filling_several_machines_at_once_gives_the_same_pods_as_filling_each_alone(seed: int) -> None:
    draw = random.Random(seed)
    problem = wide_problem(seed) if seed % 3 == 0 else small_problem(seed)
    instance = build(problem)
    order = np.array(draw.sample(range(len(instance.demand)), len(instance.demand)), dtype=np.int64)
    remaining = np.array([draw.randint(0, 4) for _ in order], dtype=np.float64)
    kinds = np.arange(len(instance.price))
    held = fill(instance, order, remaining, kinds)
    if instance.device is None:
        expected = np.array([one_by_one(instance, order, remaining, kind) for kind in kinds.tolist()]).reshape(held.shape)
        assert (held == expected).all()
    assert (held <= remaining).all()
    assert fits_all(instance, held).diagonal().all()


def test_filling_no_machines_gives_an_empty_result() -> None:
    instance = build(wide_problem(1))
    assert fill(instance, np.arange(len(instance.demand)), instance.demand, np.zeros(0, dtype=np.int64)).shape == (0, len(instance.demand))
