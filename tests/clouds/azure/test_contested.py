"""Capacity that others write, too; attempts that fail in part; answers that are lost; other processes that go on."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from msgspec.structs import replace
from tests.clouds.azure.providers import SIZE, AzureHarness, azure_account

from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.clouds.protocol import CAPACITY, QUOTA, LostAnswerError, Order, UnfilledOrder
from gpuscaler.embedded.azure import Fault, making
from gpuscaler.embedded.azure.compute.capacity import set_capacity
from gpuscaler.embedded.azure.state import ScaleSet
from gpuscaler.embedded.azure.wire.requests import Answer, Request
from gpuscaler.model.instances import RUNNING


@pytest.fixture
async def azure() -> AsyncIterator[AzureHarness]:
    async with azure_account() as harness:
        yield harness


async def write_capacity(azure: AzureHarness, scale_set: ScaleSet, capacity: int) -> None:
    """What another program does."""
    body = {"sku": {"name": scale_set.model["sku"]["name"], "capacity": capacity}}
    url = f"{azure.url}{scale_set.id}?api-version=2024-11-01"
    async with aiohttp.ClientSession() as session, session.patch(url, json=body) as answer:
        assert answer.status in (200, 201, 202), await answer.text()


class Between:
    """Lets another program write right before our next write of a capacity, ``times`` times."""

    def __init__(self, azure: AzureHarness, capacities: list[int]) -> None:
        self.azure, self.capacities = azure, capacities
        self.handle = azure.endpoint.handle
        azure.endpoint.handle = self.write_first  # type: ignore[method-assign]

    def write_first(self, request: Request) -> Answer:
        if request.method == "PUT" and "virtualMachineScaleSets" in request.path and self.capacities:
            scale_set = self.azure.scale_set("demand")
            set_capacity(self.azure.account, scale_set, self.capacities.pop(0))
        return self.handle(request)


async def settle(azure: AzureHarness, seconds: float = 120.0, provider: AzureProvider | None = None) -> None:
    """Let the controller's reads go on for a while."""
    for _ in range(int(seconds // 10)):
        azure.later(10.0)
        await (provider or azure.provider).inventory()
        await azure.pass_time(0.0)


async def test_an_outdated_write_is_derived_again_so_that_the_sum_is_right(azure: AzureHarness) -> None:
    """Z1."""
    Between(azure, [1])
    order = await azure.order(3, "demand")
    bought = await azure.provider.buy(order)

    assert bought.pending == 3
    assert azure.scale_set("demand").capacity == 4
    answers = await azure.follow([azure.unfilled(order, bought)], within=120)
    assert len(answers["order-1"].instances) == 3
    assert len(azure.scale_set("demand").machines) == 4


async def test_what_another_raised_to_our_number_is_not_raised_again_nor_taken_as_ours(azure: AzureHarness) -> None:
    """Z2."""
    Between(azure, [3])
    bought = await azure.provider.buy(await azure.order(3, "demand"))

    assert (bought.pending, bought.instances, bought.refusals) == (0, (), ())
    assert azure.scale_set("demand").capacity == 3
    inventory = await azure.provider.inventory()
    (delivery,) = [delivery for delivery in inventory.deliveries if delivery.pool == "demand"]
    on_their_way = [instance for instance in inventory.instances if instance.pool == "demand"]
    assert delivery.missing + len(on_their_way) == 3


@pytest.mark.parametrize("failed", ["stay", "vanish"])
async def test_a_grant_of_a_part_is_known_soon_and_the_rest_is_cleared(failed: str) -> None:
    """Z3 and Z4."""
    async with azure_account(failed=failed) as azure:
        making.set_limit(azure.account, 3, market="on-demand", size=SIZE)
        order = await azure.order(8, "demand")
        bought = await azure.provider.buy(order)
        began = azure.now()
        answers = await azure.follow([azure.unfilled(order, bought)], within=120)
        answer = answers["order-1"]

        assert azure.now() - began <= 60.0
        assert len(answer.instances) == 3
        assert CAPACITY in {refusal.cause for refusal in answer.refusals}
        await settle(azure)
        scale_set = azure.scale_set("demand")
        assert scale_set.capacity == len(scale_set.machines) == 3
        assert [instance.state for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"] == [RUNNING] * 3


async def test_a_number_that_was_left_over_takes_nothing_from_what_another_asked_for() -> None:
    """Z4."""
    async with azure_account(failed="vanish") as azure:
        trouble = making.add_trouble(azure.account, "AllocationFailed", market="on-demand", times=5)
        order = await azure.order(5, "demand")
        bought = await azure.provider.buy(order)
        answers = {"order-1": bought} if bought.refusals else await azure.follow([azure.unfilled(order, bought)], within=30)
        assert answers["order-1"].refusals
        azure.account.hardware.troubles[:] = [other for other in azure.account.hardware.troubles if other.code != trouble.code]
        scale_set = azure.scale_set("demand")
        await write_capacity(azure, scale_set, scale_set.capacity + 2)
        await settle(azure)

        # The other's write made Azure try again for all of the number, also for what was left over of ours.
        assert scale_set.capacity == len(scale_set.machines)
        assert len(scale_set.machines) >= 2


async def test_orders_of_one_set_at_once_get_their_own_machines(azure: AzureHarness) -> None:
    one, two = await azure.order(2, "demand", token="one"), await azure.order(3, "demand", token="two")
    bought_one, bought_two = await azure.provider.buy(one), await azure.provider.buy(two)

    answers = await azure.follow([azure.unfilled(one, bought_one), azure.unfilled(two, bought_two)], within=200)
    assert {token: len(answer.instances) for token, answer in answers.items()} == {"one": 2, "two": 3}
    named = [instance.id for answer in answers.values() for instance in answer.instances]
    assert len(set(named)) == 5
    assert azure.scale_set("demand").capacity == 5


async def test_a_lost_answer_that_took_effect_is_followed_and_not_sent_again(azure: AzureHarness) -> None:
    azure.endpoint.faults.all.append(Fault(method="PUT", path="*/virtualMachineScaleSets/*", times=1, sever="after"))
    order = await azure.order(2, "demand")
    bought = await azure.provider.buy(order)

    assert bought.pending == 2
    answers = await azure.follow([azure.unfilled(order, bought)], within=120)
    assert len(answers["order-1"].instances) == 2
    assert azure.scale_set("demand").capacity == 2


async def test_a_write_that_was_lost_before_it_took_effect_is_in_doubt(azure: AzureHarness) -> None:
    azure.endpoint.faults.all.append(Fault(method="PUT", path="*/virtualMachineScaleSets/*", times=1, sever="before"))
    with pytest.raises(LostAnswerError, match="scale set aks-demand"):
        await azure.provider.buy(await azure.order(2, "demand"))
    assert azure.scale_set("demand").capacity == 0


@pytest.mark.parametrize("forgotten", [False, True])
async def test_another_process_goes_on_with_an_order(azure: AzureHarness, forgotten: bool) -> None:
    """Z16."""
    order = await azure.order(2, "demand")
    bought = await azure.provider.buy(order)
    if forgotten:
        azure.later(60.0)
        azure.account.forget_operations()
    other = azure.start()
    await other.inventory()
    writes = azure.writes()

    rest = azure.unfilled(order, bought)
    for _ in range(20):
        # The caller names machines that come from the list, and lacks those that are left.
        azure.later(3.0)
        named = [instance for instance in (await other.inventory()).instances if instance.pool == "demand"]
        rest = replace(rest, missing=2 - len(named))
        assert not await other.follow([rest] if rest.missing else [])
    assert len(named) == 2
    assert azure.writes() == writes


async def test_another_process_learns_that_an_order_failed_and_clears_what_it_left_behind(azure: AzureHarness) -> None:
    making.set_limit(azure.account, 0, market="spot")
    azure.conditions(allocation=20.0)
    order = await azure.order(2, "spot")
    bought = await azure.provider.buy(order)
    assert bought.pending == 2
    other = azure.start()
    await other.inventory()

    answers = await azure.follow([azure.unfilled(order, bought)], within=60, provider=other)
    assert {refusal.cause for refusal in answers["order-1"].refusals} == {CAPACITY}
    await settle(azure, provider=other)
    assert azure.scale_set("spot").capacity == 0


async def test_an_order_that_its_process_never_sent_is_answered_without_machines(azure: AzureHarness) -> None:
    order = await azure.order(2, "demand")
    other = azure.start()
    await other.inventory()

    answers = await azure.follow([UnfilledOrder(order, 2, azure.now())], within=60, provider=other)
    assert answers["order-1"].instances == ()
    assert answers["order-1"].refusals == ()
    assert azure.scale_set("demand").capacity == 0


async def test_what_does_not_fit_into_the_quota_is_not_asked_for(azure: AzureHarness) -> None:
    """Z6, before the first try."""
    making.set_quota(azure.account, "StandardNCADSA100v4Family", 50)
    order = await azure.order(3, "demand")
    bought = await azure.provider.buy(order)

    assert bought.pending == 2
    (refusal,) = bought.refusals
    assert refusal.cause == QUOTA
    assert "limit 50" in refusal.detail
    assert azure.scale_set("demand").capacity == 2
    assert (await azure.provider.buy(Order("order-2", "demand", order.offerings, 1))).refusals[0].cause == QUOTA


async def test_a_conflict_keeps_the_order_until_azure_takes_it(azure: AzureHarness) -> None:
    """Z7."""
    message = "Another operation is in progress on the resource"
    fault = Fault(method="PUT", path="*/virtualMachineScaleSets/*", times=1, code="OperationNotAllowed", message=message, status=409)
    azure.endpoint.faults.all.append(fault)
    order = await azure.order(2, "demand")
    bought = await azure.provider.buy(order)

    assert (bought.pending, bought.refusals) == (2, ())
    answers = await azure.follow([azure.unfilled(order, bought)], within=200)
    assert len(answers["order-1"].instances) == 2


async def test_a_deletion_that_another_write_replaced_is_repeated_with_what_is_left() -> None:
    """Z9."""
    async with azure_account() as azure:
        order = await azure.order(2, "demand")
        bought = await azure.provider.buy(order)
        await azure.follow([azure.unfilled(order, bought)], within=120)
        first, second = [instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
        azure.account.preempt_deletions = 1
        assert await azure.provider.remove([first]) == {first: None}
        await write_capacity(azure, azure.scale_set("demand"), azure.scale_set("demand").capacity + 1)
        await settle(azure)

        left = [instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
        assert left == [second]
        assert azure.scale_set("demand").capacity == 1


async def test_an_evicted_machine_leaves_by_itself_and_its_number_with_it(azure: AzureHarness) -> None:
    """Z10."""
    order = await azure.order(2, "spot")
    bought = await azure.provider.buy(order)
    await azure.follow([azure.unfilled(order, bought)], within=120)
    scale_set = azure.scale_set("spot")
    making.evict(azure.account, scale_set, next(iter(scale_set.machines)))
    await settle(azure)

    assert len([instance for instance in (await azure.provider.inventory()).instances if instance.pool == "spot"]) == 1
    assert scale_set.capacity == 1


async def test_a_machine_whose_setup_failed_exists_and_says_why(azure: AzureHarness) -> None:
    """Z11."""
    making.add_trouble(azure.account, "VMExtensionProvisioningError", market="on-demand", times=1)
    order = await azure.order(1, "demand")
    bought = await azure.provider.buy(order)
    answers = await azure.follow([azure.unfilled(order, bought)], within=200)

    assert len(answers["order-1"].instances) == 1
    (instance,) = [instance for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
    assert instance.state == RUNNING
    assert "vmssCSE" in instance.fault


async def test_machines_are_the_same_however_lists_spell_them() -> None:
    """Z19."""
    async with azure_account(spelling="random") as azure:
        order = await azure.order(3, "demand")
        bought = await azure.provider.buy(order)
        answers = await azure.follow([azure.unfilled(order, bought)], within=120)
        listed = {instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"}
        await settle(azure)
        again = {instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"}
        assert {instance.id for instance in answers["order-1"].instances} == listed == again
