"""Which machines bear soft taints."""

import numpy as np

from gpuscaler.model.taints import HARD_EFFECTS
from gpuscaler.planning.discouraging import SOFT_TAINTS, shares_used, taints_due


def due(taken: dict[str, list[int]], whole: dict[str, list[int]]) -> list[int]:
    shares = shares_used({name: np.array(one) for name, one in taken.items()}, {name: np.array(one) for name, one in whole.items()})
    found: list[int] = taints_due(shares).tolist()
    return found


def test_idle_machines_bear_both_taints_and_machines_used_by_half_or_less_one() -> None:
    assert due({"nvidia.com/gpu": [0, 1, 4, 5, 8]}, {"nvidia.com/gpu": [8] * 5}) == [2, 1, 1, 0, 0]


def test_pods_without_gpus_do_not_make_a_gpu_machine_one_that_is_used() -> None:
    assert due({"nvidia.com/gpu": [0, 0], "cpu": [7000, 7000]}, {"nvidia.com/gpu": [8, 0], "cpu": [8000, 8000]}) == [2, 0]


def test_parts_of_gpus_count_where_whole_ones_are_not_asked_for() -> None:
    whole = {"nvidia.com/gpu": [2, 2], "gpuscaler.io/gpu-milli": [2000, 2000]}
    assert due({"nvidia.com/gpu": [0, 0], "gpuscaler.io/gpu-milli": [1000, 1460]}, whole) == [1, 0]


def test_what_is_used_most_decides_on_machines_without_devices() -> None:
    whole = {"cpu": [8000, 8000], "memory": [100, 100]}
    assert due({"cpu": [1000, 1000], "memory": [60, 40]}, whole) == [0, 1]


def test_a_machine_that_tells_of_no_resource_counts_as_idle() -> None:
    assert due({}, {"cpu": [0]}) == [2]


def test_the_taints_keep_nobody_away() -> None:
    assert not {taint.effect for taint in SOFT_TAINTS} & set(HARD_EFFECTS)
    assert len({taint.key for taint in SOFT_TAINTS}) == len(SOFT_TAINTS)
