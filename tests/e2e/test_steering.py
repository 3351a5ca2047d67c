"""Random workloads on a real scheduler; ``python -m benchmarks real`` measures many."""

import asyncio

import pytest
from tests.e2e.stage import version
from tests.e2e.steering import measure

pytestmark = pytest.mark.e2e


def test_random_workloads_with_nominations_run_even_if_the_controller_is_killed() -> None:
    """A nomination is a hint, so this measures how many pods run where they were promised, and what is bought for the others."""
    tally = asyncio.run(measure(6, seed=1, apart=20.0, restart=True, steering="nominate", within=400.0))
    print(f"\nKubernetes {version()}, 6 random workloads: {tally}")

    assert tally.bound == tally.planned
    # Other pods may still take the room of a nominated one: 0 to 2 further purchases in 18 runs. Without steering there are about 13.
    assert tally.further <= 4
    assert tally.broken == 0
    # Without steering, half of the pods run on their machine.
    assert tally.arrived > 0.5 * tally.nominated
