"""Random workloads on a real scheduler; ``python -m benchmarks real`` measures many."""

import asyncio

import pytest
from tests.e2e.stage import version
from tests.e2e.steering import measure

pytestmark = pytest.mark.e2e


def test_random_workloads_run_where_they_were_promised_to_also_when_the_controller_is_killed_meanwhile() -> None:
    found = asyncio.run(measure(6, seed=1, restart=True))
    print(f"\nKubernetes {version()}, 6 random workloads: {found}")

    assert found.bound == found.planned
    assert found.broken == 0
    assert found.came >= 0.9 * found.meant
