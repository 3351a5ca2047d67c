"""Our model of kube-scheduler against kube-scheduler; ``python -m benchmarks real`` compares them on many more workloads."""

import asyncio

import pytest
from tests.e2e.agreement import measure, share
from tests.e2e.stage import version

pytestmark = pytest.mark.e2e


def test_our_model_binds_the_same_pods_to_the_same_nodes_as_kube_scheduler() -> None:
    tally = asyncio.run(measure(12, seed=1))
    print(f"\nKubernetes {version()}, 12 random workloads: {tally}", *tally.differences, *tally.misses, sep="\n")

    assert tally.same == tally.pods > 100, tally.differences
    assert share(tally.best, tally.bound) >= 0.97, tally.misses
    assert share(tally.agreed, tally.simulated) >= 0.97, tally.misses
