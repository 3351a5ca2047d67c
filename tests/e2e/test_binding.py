"""Pods are bound to the machines they were promised, while a real scheduler has other pods for the same room."""

import asyncio

import pytest
from tests.e2e.promising import promised
from tests.e2e.stage import version
from tests.e2e.steering import measure

pytestmark = pytest.mark.e2e
#: Seconds by which the scheduler of a busy cluster may lag. ``python -m benchmarks binding`` measures longer lags.
BEHIND = 0.5


@pytest.mark.parametrize(("rivals", "gpus"), [(150, 8), (300, 1)])
def test_pods_get_the_ten_machines_promised_to_them_despite_many_other_pending_pods(rivals: int, gpus: int) -> None:
    result = asyncio.run(promised(f"binding-{gpus}", rivals=rivals, gpus=gpus))
    print(f"\nKubernetes {version()}, among {rivals} pods that request {gpus} GPUs: {result}")

    assert len(result.waits) == result.pods
    assert (result.overfull, result.moved, result.failed) == ([], [], 0)


def test_no_node_is_overcommitted_if_the_schedulers_watch_of_pods_lags() -> None:
    result = asyncio.run(promised("binding-late", rivals=150, gpus=1, deaf=BEHIND))
    print(f"\nKubernetes {version()}, whose scheduler's watch of pods lags by {BEHIND} s: {result}")

    assert (result.overfull, result.moved, result.failed) == ([], [], 0)


def test_random_workloads_are_bound_without_further_purchases_though_the_controller_is_killed() -> None:
    tally = asyncio.run(measure(6, seed=1, apart=20.0, restart=True))
    print(f"\nKubernetes {version()}, 6 random workloads, bound: {tally}")

    assert tally.bound == tally.planned
    assert tally.ours > 0
    assert (tally.further, tally.broken, tally.overfull, tally.failed) == (0, 0, 0, 0)
    # A pod that waits for a disk is only nominated, and kube-scheduler forgets that if it tries the pod in vain before its machine opens:
    # one further purchase in about 380 workloads.
    assert tally.again <= 1
