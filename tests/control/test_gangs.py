"""An incomplete gang does not cost money: its granted machines are kept for a while, and removed if the others do not come."""

from tests.control.world import BEGAN, World, world

from gpuscaler.lifecycle.registration.registering import GANG_SECONDS
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.simulation.cloud.markets import Markets, Steps

POOLS = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 2h
"""
ONLY = OfferingKey("gpu", "on-demand", "g4dn.xlarge", "us-east-1a")


async def submit(here: World) -> None:
    for name in "ab":
        await here.submit(name, 1, **{"gpuscaler.io/gang": "train", "gpuscaler.io/gang-size": "2"})


async def test_a_machine_of_a_gang_that_stays_incomplete_never_opens_and_is_removed() -> None:
    async with world(POOLS, markets=Markets({ONLY: Steps((0.0,), (1.0,))})) as here:
        here.start()
        await submit(here)
        await here.sleep(GANG_SECONDS + 120.0)

        first = here.cluster.core.history()[0]
        assert first.ended_at is not None
        assert GANG_SECONDS <= first.ended_at - first.registered_at <= GANG_SECONDS + 90.0
        assert set((await here.bound()).values()) == {""}


async def test_a_gang_completed_in_time_runs_on_the_machines_kept_for_it_and_on_new_machines() -> None:
    async with world(POOLS, markets=Markets({ONLY: Steps((0.0, BEGAN + 120.0), (1.0, 2.0))})) as here:
        here.start()
        await submit(here)
        await here.sleep(110.0)
        assert set((await here.bound()).values()) == {""}
        await here.sleep(500.0)

        assert sorted((await here.bound()).values()) == ["sim-00001", "sim-00002"]
        assert len(here.cluster.core.history()) == 2


async def test_other_pods_may_use_a_machine_that_a_gang_does_not_need() -> None:
    async with world(POOLS, markets=Markets({ONLY: Steps((0.0,), (1.0,))})) as here:
        here.start()
        await submit(here)
        await here.sleep(60.0)
        await here.submit("alone", 1)
        await here.sleep(60.0)

        assert (await here.bound())["alone"] == "sim-00001"
