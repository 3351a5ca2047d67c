"""Annotations for a pod's markets, as the controller obeys them while time passes and spot comes and goes."""

from datetime import UTC, datetime

import pytest
from tests.control.test_replacing import BOTH, SPOT, markets
from tests.control.world import BEGAN, World, world

from gpuscaler.simulation.cloud.markets import Markets, Steps

ALWAYS, NEVER = Steps((0.0,), (10.0,)), Steps((0.0,), (0.0,))
#: The spare time below which spot is not tried any more: two changeovers, without work to lose.
TIGHT = 1800.0


def until(offset: float) -> str:
    return datetime.fromtimestamp(BEGAN + offset, UTC).isoformat()


async def bought_by(here: World, moment: float) -> list[str]:
    await here.sleep(BEGAN + moment - here.now())
    return markets(here)


@pytest.mark.parametrize(("wanted", "steps", "market"), [("spot", ALWAYS, "spot"), ("on-demand", ALWAYS, "on-demand"), ("spot", NEVER, "")])
async def test_machines_are_bought_on_the_market_of_the_annotation(wanted: str, steps: Steps, market: str) -> None:
    async with world(BOTH, markets=Markets({SPOT: steps})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/market": wanted})
        await here.sleep(60.0)

        assert "".join(markets(here)) == market


async def test_a_pod_waits_for_spot_as_long_as_its_annotation_says_and_no_longer() -> None:
    async with world(BOTH, markets=Markets({SPOT: NEVER})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/spot-wait": "10m"})

        assert await bought_by(here, 595.0) == []
        assert await bought_by(here, 610.0) == ["on-demand"]


async def test_a_pod_that_waits_for_spot_gets_it_when_it_becomes_available() -> None:
    async with world(BOTH, markets=Markets({SPOT: Steps((0.0, BEGAN + 300.0), (0.0, 10.0))})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/spot-wait": "30m"})

        assert await bought_by(here, 295.0) == []
        assert await bought_by(here, 1500.0) == ["spot"]


@pytest.mark.parametrize("steps", [NEVER, Steps((0.0, BEGAN + 400.0), (0.0, 10.0))], ids=["spot stays away", "spot comes"])
async def test_a_pod_with_a_deadline_waits_for_spot_until_its_spare_time_is_over(steps: Steps) -> None:
    async with world(BOTH, markets=Markets({SPOT: steps})) as here:
        here.start()
        notes = {"gpuscaler.io/deadline": until(600.0 + TIGHT + 1200.0), "gpuscaler.io/expected-duration": "10m"}
        await here.submit("p", 1, **notes, **{"gpuscaler.io/restart-cost": "0s"})

        assert await bought_by(here, 395.0) == []
        assert await bought_by(here, 1190.0) == (["spot"] if steps is not NEVER else [])
        assert await bought_by(here, 1220.0) == (["spot"] if steps is not NEVER else ["on-demand"])


async def test_a_pod_without_spare_time_before_its_deadline_runs_on_demand_although_spot_is_available() -> None:
    async with world(BOTH, markets=Markets({SPOT: ALWAYS})) as here:
        here.start()
        await here.submit("p", 1, **{"gpuscaler.io/deadline": until(600.0 + TIGHT - 60.0), "gpuscaler.io/expected-duration": "10m"})

        assert await bought_by(here, 60.0) == ["on-demand"]
