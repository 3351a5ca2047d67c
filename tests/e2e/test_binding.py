"""Pods that are promised machines are bound to them, beside a real scheduler that has others for the same room."""

import asyncio

import pytest
from tests.e2e.promising import promised
from tests.e2e.stage import version
from tests.e2e.steering import measure

pytestmark = pytest.mark.e2e
#: By so many seconds the scheduler of a busy cluster may be behind; what it is given more is measured by ``python -m benchmarks binding``.
BEHIND = 0.5


@pytest.mark.parametrize(("rivals", "gpus"), [(150, 8), (300, 1)])
def test_of_many_that_wait_those_that_were_promised_ten_machines_have_them(rivals: int, gpus: int) -> None:
    found = asyncio.run(promised(f"binding-{gpus}", rivals=rivals, gpus=gpus))
    print(f"\nKubernetes {version()}, among {rivals} that ask for {gpus}: {found}")

    assert len(found.waits) == found.pods
    assert (found.overfull, found.moved, found.failed) == ([], [], 0)


def test_beside_a_scheduler_that_hears_late_of_pods_no_node_is_given_more_than_it_has() -> None:
    found = asyncio.run(promised("binding-late", rivals=150, gpus=1, deaf=BEHIND))
    print(f"\nKubernetes {version()}, whose scheduler hears of pods {BEHIND} s late: {found}")

    assert (found.overfull, found.moved, found.failed) == ([], [], 0)


def test_random_workloads_are_bound_without_a_further_purchase_also_when_the_controller_is_killed_meanwhile() -> None:
    found = asyncio.run(measure(6, seed=1, apart=20.0, restart=True))
    print(f"\nKubernetes {version()}, 6 random workloads, bound: {found}")

    assert found.bound == found.planned
    assert found.ours > 0
    assert (found.further, found.again, found.broken, found.overfull, found.failed) == (0, 0, 0, 0, 0)
