"""Limits count granted machines, and hold for all requests (I5)."""

import pytest
from tests.control.world import BEGAN, World, world

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.simulation.cloud.markets import Markets, Steps

#: Tests wait only for the event loop, so one pass over it is enough before time advances.

POOLS = """
region: us-east-1
limits: {%s}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a]
"""
DRY = Markets({OfferingKey("gpu", "spot", "g4dn.xlarge", "us-east-1a"): Steps((0.0,), (0.0,))}, began=BEGAN)


def granted(here: World) -> list[float]:
    """The times at which machines were bought, in seconds from the beginning."""
    return [machine.bought_at - BEGAN for machine in here.cluster.core.history()]


async def test_a_refused_machine_does_not_count_against_the_machines_per_minute() -> None:
    async with world(POOLS % "machines_per_minute: 1", markets=DRY) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(20.0)

        assert [order.offerings[0][1] for order in here.notes.orders] == ["spot", "on-demand"]
        assert len(granted(here)) == 1


async def test_no_more_machines_are_bought_in_a_minute_than_the_settings_allow() -> None:
    async with world(POOLS % "machines_per_minute: 2") as here:
        here.start()
        await here.sleep(2.0)
        for number in range(5):
            await here.submit(f"p{number}")
        await here.sleep(240.0)

        times = granted(here)
        assert len(times) == 5
        assert all(later - first > 55.0 for first, later in zip(times, times[2:], strict=False))


@pytest.mark.parametrize("limit", ["machines: 2", "gpus: 2", "dollars_per_hour: 0.5"])
async def test_pods_beyond_a_limit_stay_pending_and_show_the_limit(limit: str) -> None:
    async with world(POOLS % limit) as here:
        here.start()
        await here.sleep(2.0)
        for number in range(5):
            await here.submit(f"p{number}")
        await here.sleep(120.0)

        assert 0 < len(granted(here)) < 5
        assert sum(bool(node) for node in (await here.bound()).values()) == len(granted(here))
        assert here.notes.last is not None
        (unplaced, *_) = here.notes.last.unplaced
        assert limit.split(":")[0] in unplaced.reasons[0].detail
