"""Spot runs dry and comes back: pods move to on-demand at once, and back one machine at a time once spot has lasted."""

from tests.control.test_replacing import BOTH, SPOT, EvictionLog, markets, serve
from tests.control.world import BEGAN, World, world

from gpuscaler.planning.state.breakers import RETURN_SECONDS, SETTLE_SECONDS
from gpuscaler.simulation.cloud.markets import Markets, Steps

#: When spot is available again, in seconds.
BACK = 300.0


async def leaving_counts(here: World, seconds: float) -> list[int]:
    """The number of leaving machines with pods, every few seconds."""
    seen = []
    for _ in range(int(seconds / 5.0)):
        await here.sleep(5.0)
        assert here.controller is not None
        seen.append(sum(bool(removal.pods) for removal in here.controller.memory.ledger.leaving))
    return seen


async def test_two_machines_return_to_spot_one_after_the_other_and_the_first_tests_the_offering() -> None:
    async with world(BOTH, markets=Markets({SPOT: Steps((0.0, BEGAN + BACK), (0.0, 10.0))})) as here:
        here.watchman = evictions = EvictionLog(here)
        here.start()
        await serve(here, replicas=2)
        await here.sleep(SETTLE_SECONDS - 60.0)
        assert markets(here) == ["on-demand", "on-demand"]

        first = await leaving_counts(here, SETTLE_SECONDS)
        assert markets(here) == ["on-demand", "on-demand", "spot"]
        assert max(first) == 1
        assert sorted(machine.offering.market for machine in here.cluster.core.list()) == ["on-demand", "spot"]

        second = await leaving_counts(here, 2 * SETTLE_SECONDS)
        assert max(second) == 1
        assert [machine.offering.market for machine in here.cluster.core.list()] == ["spot", "spot"]
        # Each left only when its successor was open.
        assert [len(seen) for seen in evictions.open] == [2, 2]
        assert here.notes.kept == []


async def test_after_a_spot_reclaim_no_pod_returns_to_spot_for_an_hour() -> None:
    async with world(BOTH, markets=Markets({SPOT: Steps((0.0, BEGAN + 600.0, BEGAN + 660.0), (10.0, 0.0, 10.0))})) as here:
        here.start()
        await serve(here)
        await here.sleep(900.0)
        assert markets(here) == ["spot", "on-demand"]
        assert here.controller is not None
        (taken,) = here.controller.memory.breakers.reclaims.values()

        await here.sleep(taken + RETURN_SECONDS - here.now() - 1.0)
        assert markets(here) == ["spot", "on-demand"]
        await here.sleep(1500.0)
        assert markets(here) == ["spot", "on-demand", "spot"]
