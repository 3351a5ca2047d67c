"""Scores of nodes by what is asked for, as kube-scheduler's NodeResourcesFit and NodeResourcesBalancedAllocation give them."""

import numpy as np

from gpuscaler.simulation.world.scoring import resource_scores

MI = 1024 * 1024
#: Two nodes of 4 cores and 16 GiB: on the first half of the cores is taken, on the second a quarter of everything.
CAPACITY = np.array([[4000, 16384 * MI], [4000, 16384 * MI]])
FREE = np.array([[2000, 16384 * MI], [3000, 12288 * MI]])


def scores(cpu: int, memory: int) -> list[int]:
    found: list[int] = resource_scores(CAPACITY, FREE, np.array([cpu, memory])).tolist()
    return found


def test_a_pod_with_requests_is_scored_by_what_stays_free_and_by_how_even_it_is() -> None:
    # Free after it: 25 % and 75 % of the first; 50 % and 50 % of the second.
    assert scores(1000, 4096 * MI) == [(25 + 75) // 2 + 75, (50 + 50) // 2 + 100]


def test_a_pod_without_requests_counts_as_a_little_and_balance_does_not_matter_to_it() -> None:
    # 100m and 200Mi: 47 % and 98 % of the first stay free, 72 % and 73 % of the second.
    assert scores(0, 0) == [(47 + 98) // 2, (72 + 73) // 2]


def test_what_a_pod_does_not_request_is_not_weighed_in_the_balance() -> None:
    # For the fit it takes 200Mi; for the balance no memory: the shares taken are 75 % and 0 %, then 50 % and 25 %.
    assert scores(1000, 0) == [(25 + 98) // 2 + 62, (50 + 73) // 2 + 87]
