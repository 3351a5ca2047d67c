"""Many orders and deletions of one group at once: few calls, none that waits for another without need, and none that Azure would refuse."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.clouds.azure.providers import BEGAN, SIZE
from tests.embedded.azure.memory import URL, MemoryHttp

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.discovery.accounts import Account as Place
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.clouds.azure.prices.source import PriceSource
from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.clouds.protocol import THROTTLED, BuyResult, Order, UnfilledOrder
from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, Endpoint, Fault, making
from gpuscaler.embedded.azure.state import ScaleSet
from gpuscaler.model.offerings import OfferingKey

KEY = OfferingKey("gpus", "on-demand", SIZE, "eastus-0")


class Scene:
    """A provider for an account with the pool ``gpus``, in virtual time; each answer takes 0.1 s."""

    def __init__(self, api: str, machines: int = 0, **conditions: Any) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.now: Callable[[], float] = lambda: BEGAN + loop.time() - began
        self.account = Account(now=self.now, conditions=Conditions(throttling=False, **conditions))
        cluster = making.create_cluster(self.account, "aks", "rg")
        making.create_pool(self.account, cluster, "gpus", SIZE, count=machines)
        self.endpoint = Endpoint(self.account)
        http = MemoryHttp(self.endpoint, delay=0.1)
        arm = Arm(FixedToken("token"), fence=lambda _: None, now=self.now, sleep=asyncio.sleep, endpoint_url=URL, http=http)
        prices = PriceSource(http, now=self.now, endpoint_url=URL)
        discovery = Discovery(arm, (Place(SUBSCRIPTION, "aks", "rg"),), now=self.now, prices=prices, api=api)
        self.provider = AzureProvider(arm, discovery, now=self.now)

    async def order(self, *tokens: str, count: int = 1) -> list[UnfilledOrder]:
        """Orders of ``count`` machines each, sent together."""
        orders = [Order(token, "gpus", (KEY,), count) for token in tokens]
        await asyncio.gather(*map(self.provider.buy, orders))
        return [UnfilledOrder(order, count, self.now(), accepted=True) for order in orders]

    @property
    def scale_set(self) -> ScaleSet:
        (found,) = [one for one in self.account.all_scale_sets() if one.agent_pool is not None and one.agent_pool.name == "gpus"]
        return found

    async def machines(self) -> list[str]:
        return [instance.id for instance in (await self.provider.inventory()).instances if instance.pool == "gpus"]

    def deletions(self) -> Mapping[str, int]:
        """Calls that delete machines, by the code of the answer."""
        return {code: number for (method, route, code), number in self.endpoint.calls.items() if method == "POST" and "elete" in route}


@asynccontextmanager
async def scene_of(api: str, machines: int = 0, **conditions: Any) -> AsyncIterator[Scene]:
    made = Scene(api, machines, **conditions)
    await made.provider.read_account()
    try:
        yield made
    finally:
        await made.provider.close()


@pytest.mark.parametrize("api", ["agentpool", "vmss"])
async def test_many_orders_of_a_pool_are_followed_with_few_more_reads_than_some(api: str) -> None:
    reads = {}
    for orders in (4, 40):
        async with scene_of(api) as scene:
            unfilled = await scene.order(*(f"order-{number}" for number in range(orders)))
            before, answers = scene.endpoint.count("GET", ""), 0
            while answers < orders:
                answers += len(await scene.provider.follow(unfilled))
                await asyncio.sleep(3.0)
            reads[orders] = scene.endpoint.count("GET", "") - before
            assert len(await scene.machines()) == orders
    assert reads[40] <= 2 * reads[4]


async def test_what_a_refused_order_left_is_lowered_although_the_next_order_made_azure_try_for_it_again() -> None:
    """While the second order's operation runs, an entry is listed for all of the number, and all entries vanish when the attempt fails."""
    async with scene_of("vmss", failed="vanish", allocation=20.0) as scene:
        making.set_limit(scene.account, 0, market="on-demand")
        unfilled = await scene.order("first")
        (began,) = [machine.created_at for machine in scene.scale_set.machines.values()]
        # The second order's number is derived while the first attempt runs, and written when that has just ended.
        await asyncio.sleep(began + 19.8 - scene.now())
        unfilled += await scene.order("second")
        assert scene.scale_set.capacity == 2
        refused: list[str] = []
        for _ in range(40):
            refused += [token for token, bought in await scene.provider.follow(unfilled) if bought.refusals]
            await asyncio.sleep(3.0)
        assert sorted(refused) == ["first", "second"]
        assert (scene.scale_set.capacity, scene.scale_set.machines) == (0, {})


@pytest.mark.parametrize("failed", ["stay", "vanish"])
async def test_what_a_refused_order_left_does_not_become_machines_with_a_smaller_order_that_waits_in_an_agent_pool(failed: str) -> None:
    async with scene_of("agentpool", failed=failed) as scene:
        making.set_limit(scene.account, 0, market="on-demand")
        unfilled = [*await scene.order("large", count=6), *await scene.order("small")]
        answers: dict[str, BuyResult] = {}
        for _ in range(60):
            answers |= dict(await scene.provider.follow([one for one in unfilled if one.order.token not in answers]))
            if "large" in answers:
                making.set_limit(scene.account, None, market="on-demand")
            await asyncio.sleep(3.0)
        assert answers["large"].refusals
        assert len(answers["small"].instances) == len(scene.scale_set.machines) == scene.scale_set.capacity == 1


async def test_a_pool_that_takes_one_operation_at_a_time_is_not_asked_for_another_one() -> None:
    async with scene_of("agentpool", machines=3) as scene:
        first, second, third = await scene.machines()
        assert await scene.provider.remove([first]) == {first: None}
        waits = await asyncio.gather(scene.provider.remove([second]), scene.provider.remove([third]))
        for refusal in (waits[0][second], waits[1][third]):
            assert refusal is not None
            assert (refusal.cause, refusal.retry_after > 0) == (THROTTLED, True)
            assert "agent pool gpus takes one operation at a time" in refusal.detail
        assert scene.deletions() == {"": 1}

        await asyncio.sleep(60.0)
        answers = await asyncio.gather(scene.provider.remove([second]), scene.provider.remove([third]))
        assert [dict(answer) for answer in answers] == [{second: None}, {third: None}]
        assert scene.deletions() == {"": 2}
        await asyncio.sleep(60.0)
        assert await scene.machines() == []


async def test_a_pool_in_which_others_run_an_operation_is_asked_again_when_azure_says_so() -> None:
    async with scene_of("agentpool", machines=2) as scene:
        first, second = await scene.machines()
        message = "Operation is not allowed because there is an in progress operation"
        fault = Fault(method="POST", path="*/deleteMachines", times=1, code="OperationNotAllowed", status=409, message=message)
        scene.endpoint.faults.all.append(fault)
        for machine in (first, second):
            refusal = (await scene.provider.remove([machine]))[machine]
            assert refusal is not None
            assert refusal.cause == THROTTLED
            wait = refusal.retry_after
        await asyncio.sleep(wait)
        assert await scene.provider.remove([first]) == {first: None}
        assert scene.deletions() == {"OperationNotAllowed": 1, "": 1}


async def test_a_deletion_does_not_wait_for_reads_of_orders_that_azure_delays() -> None:
    async with scene_of("vmss", machines=1) as scene:
        (machine,) = await scene.machines()
        unfilled = await scene.order("order")
        scene.endpoint.faults.all.append(Fault(method="GET", path="*/operations/*", delay=60.0))
        following = asyncio.create_task(scene.provider.follow(unfilled))
        await asyncio.sleep(1.0)
        async with asyncio.timeout(5.0):
            assert await scene.provider.remove([machine]) == {machine: None}
        following.cancel()


async def test_a_deletion_that_waits_for_our_own_call_says_so_and_is_not_sent_once_its_caller_has_given_up() -> None:
    async with scene_of("vmss", machines=2) as scene:
        impatient, patient = await scene.machines()
        scene.endpoint.faults.all.append(Fault(method="PUT", path="*/virtualMachineScaleSets/*", times=1, delay=9.0))
        buying = asyncio.create_task(scene.order("order"))
        await asyncio.sleep(1.0)
        removing = asyncio.create_task(scene.provider.remove([patient]))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await scene.provider.remove([impatient])
        refusal = (await removing)[patient]
        assert refusal is not None
        assert refusal.cause == THROTTLED
        assert "scale set aks-gpus" in refusal.detail
        assert "a call of this process to it has had no answer" in refusal.detail
        await buying
        await asyncio.sleep(60.0)
        assert scene.deletions() == {}
        assert {impatient, patient} < set(await scene.machines())
