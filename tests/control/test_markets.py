"""Annotations that say where a pod is to be bought for, as the controller keeps them while time passes and spot comes and goes."""

from datetime import UTC, datetime

import pytest
from tests.control.test_replacing import BOTH, SPOT, markets
from tests.control.world import BEGAN, World, world

from gpuscaler.simulation.cloud.markets import Markets, Steps

ALWAYS, NEVER = Steps((0.0,), (10.0,)), Steps((0.0,), (0.0,))
#: The time to spare below which spot is not asked any more: two changeovers, with nothing to lose.
TIGHT = 1800.0


def until(offset: float) -> str:
    return datetime.fromtimestamp(BEGAN + offset, UTC).isoformat()


async def bought_by(here: World, moment: float) -> list[str]:
    await here.sleep(BEGAN + moment - here.now())
    return markets(here)


@pytest.mark.parametrize(("wanted", "steps", "market"), [("spot", ALWAYS, "spot"), ("on-demand", ALWAYS, "on-demand"), ("spot", NEVER, "")])
async def test_a_pod_is_bought_for_where_it_says(wanted: str, steps: Steps, market: str) -> None:
    async with world(BOTH, markets=Markets({SPOT: steps})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/market": wanted})
        await here.sleep(60.0)

        assert "".join(markets(here)) == market


async def test_a_pod_waits_for_spot_as_long_as_it_says_and_no_longer() -> None:
    async with world(BOTH, markets=Markets({SPOT: NEVER})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/spot-wait": "10m"})

        assert await bought_by(here, 595.0) == []
        assert await bought_by(here, 610.0) == ["on-demand"]


async def test_a_pod_that_waits_takes_spot_that_comes_meanwhile() -> None:
    async with world(BOTH, markets=Markets({SPOT: Steps((0.0, BEGAN + 300.0), (0.0, 10.0))})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/spot-wait": "30m"})

        assert await bought_by(here, 295.0) == []
        assert await bought_by(here, 1500.0) == ["spot"]


@pytest.mark.parametrize("steps", [NEVER, Steps((0.0, BEGAN + 400.0), (0.0, 10.0))], ids=["spot stays away", "spot comes"])
async def test_a_deadline_waits_for_spot_while_that_is_safe_and_goes_on_demand_when_the_time_to_spare_is_used_up(steps: Steps) -> None:
    async with world(BOTH, markets=Markets({SPOT: steps})) as here:
        here.start()
        notes = {"gpuscaler.io/deadline": until(600.0 + TIGHT + 1200.0), "gpuscaler.io/expected-duration": "10m"}
        await here.submit("p", 1, **notes, **{"gpuscaler.io/restart-cost": "0s"})

        assert await bought_by(here, 395.0) == []
        assert await bought_by(here, 1190.0) == (["spot"] if steps is not NEVER else [])
        assert await bought_by(here, 1220.0) == (["spot"] if steps is not NEVER else ["on-demand"])


async def test_a_deadline_without_time_to_spare_is_on_demand_though_spot_is_there() -> None:
    async with world(BOTH, markets=Markets({SPOT: ALWAYS})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/deadline": until(600.0 + TIGHT - 60.0), "gpuscaler.io/expected-duration": "10m"})

        assert await bought_by(here, 60.0) == ["on-demand"]
