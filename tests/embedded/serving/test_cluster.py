"""The embedded cluster put together, with the controller running on it."""

import pytest
from tests.control.world import world

from gpuscaler.simulation.cloud.provider import CallFaults

#: A cloud without support for tokens that shows its machines a minute and a half late, and often loses its answers.
FORGETFUL = CallFaults(tokens=False, stale_seconds=90.0, lost=0.3, throttled=0.1)


@pytest.mark.parametrize("seed", range(6))
async def test_the_controller_buys_nothing_twice_from_a_cloud_without_tokens_whose_list_lags(seed: int) -> None:
    async with world(seed=seed, calls=FORGETFUL) as here:
        here.start()
        await here.sleep(3.0)
        for number in range(8):
            await here.submit(f"p{number}")
        for _ in range(60):
            await here.sleep(20.0)
            if all((await here.bound()).values()):
                break
        await here.sleep(200.0)
        assert all((await here.bound()).values()), here.notes.failures[-3:]
        assert len(here.cluster.core.history()) == 8
