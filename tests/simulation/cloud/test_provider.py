"""The simulated cloud as a provider: its list of machines, and faults of calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.simulation.cloud.test_core import FIXED, GPU, SPOT

from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, QUOTA, BuyResult, CloudError, LostAnswerError, Order
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Pool
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Faults
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import CallFaults, SimulatedProvider

BEGAN = 1_000_000.0
POOLS = (Pool("gpu", (SPOT, GPU), max=5),)


@asynccontextmanager
async def provider(
    *, calls: CallFaults | None = None, faults: Faults = NO_FAULTS, markets: Markets | None = None
) -> AsyncIterator[SimulatedProvider]:
    """A provider on the event loop's time."""
    loop = asyncio.get_running_loop()
    zero = loop.time()
    core = SimulatedCloud(POOLS, seed=1, delays=FIXED, faults=faults, markets=markets)
    simulated = SimulatedProvider(
        core, POOLS, now=lambda: BEGAN + loop.time() - zero, listener=lambda _event: None, faults=calls or CallFaults(), seed=1
    )
    task = asyncio.create_task(simulated.run())
    try:
        yield simulated
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def buy(simulated: SimulatedProvider, *offerings: Any, token: str = "a", count: int = 1) -> BuyResult:
    return await simulated.buy(Order(token, "gpu", offerings or (GPU.key,), count))


async def test_repeating_an_order_with_its_token_returns_the_first_answer() -> None:
    async with provider() as simulated:
        assert await buy(simulated, count=2) == await buy(simulated, count=2)
        assert len((await simulated.inventory()).instances) == 2


async def test_a_provider_without_tokens_buys_again_and_its_machines_do_not_name_their_order() -> None:
    async with provider(calls=CallFaults(tokens=False)) as simulated:
        await buy(simulated)
        await buy(simulated)
        assert [instance.token for instance in (await simulated.inventory()).instances] == ["", ""]
        assert not simulated.keeps_tokens


async def test_refusals_have_reasons_that_breakers_understand() -> None:
    markets = Markets({SPOT.key: Steps([0], [1])})
    async with provider(markets=markets) as simulated:
        bought = await buy(simulated, SPOT.key, OfferingKey("gpu", "spot", "unknown", "z1"), GPU.key, count=7)
        assert len(bought.instances) == 5
        assert {refusal.offering: refusal.cause for refusal in bought.refusals} == {
            SPOT.key: CAPACITY,
            ("gpu", "spot", "unknown", "z1"): CONFIGURATION,
            GPU.key: QUOTA,
        }


async def test_a_stale_list_of_machines_has_an_earlier_state() -> None:
    async with provider(calls=CallFaults(stale_seconds=90.0)) as simulated:
        (machine,) = (await buy(simulated)).instances
        assert (await simulated.inventory()).instances == ()
        await asyncio.sleep(95.0)
        assert [instance.id for instance in (await simulated.inventory()).instances] == [machine.id]
        await simulated.remove((machine.id,))
        await asyncio.sleep(80.0)
        assert [instance.id for instance in (await simulated.inventory()).instances] == [machine.id]
        await asyncio.sleep(20.0)
        assert (await simulated.inventory()).instances == ()


async def test_a_call_whose_answer_is_lost_may_have_taken_effect_or_not() -> None:
    async with provider(calls=CallFaults(lost=1.0)) as simulated:
        for number in range(5):
            with pytest.raises(LostAnswerError):
                await buy(simulated, token=f"t{number}")
        await asyncio.sleep(1.0)
        assert 0 < len(simulated.core.list()) < 5


async def test_throttled_calls_and_calls_during_outages_fail_without_effect() -> None:
    async with provider(calls=CallFaults(throttled=1.0, retry_after=7.0)) as simulated:
        with pytest.raises(CloudError) as failure:
            await buy(simulated)
        assert (failure.value.cause, failure.value.retry_after) == ("throttled", 7.0)
    async with provider() as simulated:
        simulated.outage = "The service is unavailable."
        with pytest.raises(CloudError, match=r"The service is unavailable\."):
            await simulated.inventory()
        assert simulated.core.history() == ()


async def test_the_list_has_the_fault_of_each_machine() -> None:
    faults = Faults(never_registers=1.0, partial_grants=0.0, gpu_hours_between_failures=0.0, impaired=1.0)
    async with provider(faults=faults) as simulated:
        await buy(simulated)
        await asyncio.sleep(500.0)
        (instance,) = (await simulated.inventory()).instances
        assert (instance.fault, instance.state) == ("Instance reachability check failed", "pending")


@pytest.mark.parametrize("without", [0.0, 1.0])
async def test_a_reclaimed_machine_is_announced_with_and_without_notice(without: float) -> None:
    faults = Faults(never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0, without_notice=without)
    markets = Markets({SPOT.key: Steps([0, 1000], [9, 0])}, began=BEGAN)
    async with provider(faults=faults, markets=markets) as simulated:
        (machine,) = (await buy(simulated, SPOT.key)).instances
        await asyncio.sleep(1000.0 + 181.0)
        notices = [notice.instance for notice in await simulated.notices()]
        assert notices == ([] if without else [machine.id])
        assert list(await simulated.notices()) == []
        await asyncio.sleep(121.0)
        assert (await simulated.inventory()).instances == ()


async def test_prices_of_offerings_follow_their_series() -> None:
    markets = Markets(prices={SPOT.key: Steps([0, 100], [1.5, 2.5])}, began=BEGAN)
    async with provider(markets=markets) as simulated:
        before = {offering.key: offering.price for pool in await simulated.pools() for offering in pool.offerings}
        await asyncio.sleep(150.0)
        after = {offering.key: offering.price for pool in await simulated.pools() for offering in pool.offerings}
        assert (before[SPOT.key], after[SPOT.key], after[GPU.key]) == (1.5, 2.5, GPU.price)
