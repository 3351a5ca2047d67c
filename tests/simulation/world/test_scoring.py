"""Scores of nodes by requests, as kube-scheduler's NodeResourcesFit and NodeResourcesBalancedAllocation compute them."""

import numpy as np

from gpuscaler.simulation.world.scoring import resource_scores

MI = 1024 * 1024
#: Two nodes of 4 cores and 16 GiB: on the first half of the cores is taken, on the second a quarter of everything.
CAPACITY = np.array([[4000, 16384 * MI], [4000, 16384 * MI]])
FREE = np.array([[2000, 16384 * MI], [3000, 12288 * MI]])


def scores(cpu: int, memory: int) -> list[int]:
    result: list[int] = resource_scores(CAPACITY, FREE, np.array([cpu, memory])).tolist()
    return result


def test_a_pod_with_requests_is_scored_by_free_resources_and_their_balance() -> None:
    # Free after it: 25 % and 75 % of the first; 50 % and 50 % of the second.
    assert scores(1000, 4096 * MI) == [(25 + 75) // 2 + 75, (50 + 50) // 2 + 100]


def test_a_pod_without_requests_counts_with_default_requests_and_is_not_scored_for_balance() -> None:
    # 100m and 200Mi: 47 % and 98 % of the first stay free, 72 % and 73 % of the second.
    assert scores(0, 0) == [(47 + 98) // 2, (72 + 73) // 2]


def test_resources_that_a_pod_does_not_request_have_no_weight_in_the_balance() -> None:
    # For the fit it takes 200Mi; for the balance no memory: the taken shares are 75 % and 0 %, then 50 % and 25 %.
    assert scores(1000, 0) == [(25 + 98) // 2 + 62, (50 + 73) // 2 + 87]
