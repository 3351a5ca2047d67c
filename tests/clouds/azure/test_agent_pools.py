"""Pools that are bought through AKS's own API: locked resource groups, pools of virtual machines, system pools."""

from collections.abc import AsyncIterator

import pytest
from tests.clouds.azure.providers import SIZE, AzureHarness, azure_account
from tests.clouds.azure.test_contested import settle

from gpuscaler.embedded.azure import Fault, making
from gpuscaler.model.instances import RUNNING

LARGER = "Standard_NC48ads_A100_v4"


@pytest.fixture
async def locked() -> AsyncIterator[AzureHarness]:
    async with azure_account() as harness:
        harness.cluster = making.create_cluster(harness.account, "locked", "rg", lockdown=True)
        making.create_pool(harness.account, harness.cluster, "gpus", SIZE)
        harness.provider = harness.start()
        yield harness


@pytest.fixture
async def mixed() -> AsyncIterator[AzureHarness]:
    async with azure_account() as harness:
        making.create_pool(harness.account, harness.cluster, "mixed", {SIZE: 1, LARGER: 0})
        yield harness


def agent_pool_puts(azure: AzureHarness) -> int:
    return azure.endpoint.count("PUT", "agentPools/{pool}")


async def test_pools_in_a_locked_group_are_bought_through_aks_with_several_orders_in_one_write(locked: AzureHarness) -> None:
    """Z18."""
    report = await locked.provider.read_account()
    assert report.ways["gpus"] == "agent-pool"
    orders = [await locked.order(1, "gpus", token=f"order-{number}") for number in range(4)]
    answers = {order.token: await locked.provider.buy(order) for order in orders}
    assert {answer.pending for answer in answers.values()} == {1}

    unfilled = [locked.unfilled(order, answers[order.token]) for order in orders]
    done = await locked.follow(unfilled, within=400)
    assert {len(answer.instances) for answer in done.values()} == {1}
    assert len({answer.instances[0].id for answer in done.values()}) == 4
    assert agent_pool_puts(locked) == 2
    assert locked.endpoint.count("PUT", "virtualMachineScaleSets/{set}") == 0


async def test_machines_of_a_locked_pool_are_ended_by_name(locked: AzureHarness) -> None:
    order = await locked.order(2, "gpus")
    await locked.follow([locked.unfilled(order, await locked.provider.buy(order))], within=200)
    first, second = [instance.id for instance in (await locked.provider.inventory()).instances if instance.pool == "gpus"]

    assert await locked.provider.remove([first]) == {first: None}
    await settle(locked)
    assert [instance.id for instance in (await locked.provider.inventory()).instances if instance.pool == "gpus"] == [second]


async def test_one_size_of_a_pool_of_virtual_machines_grows_and_the_others_keep_their_number(mixed: AzureHarness) -> None:
    """Z15."""
    report = await mixed.provider.read_account()
    (pool,) = [pool for pool in report.pools if pool.name == "mixed"]
    assert {offering.instance_type for offering in pool.offerings} == {SIZE, LARGER}
    order = await mixed.order(2, "mixed", instance_type=LARGER)
    bought = await mixed.provider.buy(order)
    answers = await mixed.follow([mixed.unfilled(order, bought)], within=300)

    assert {instance.instance_type for instance in answers["order-1"].instances} == {LARGER}
    instances = [instance for instance in (await mixed.provider.inventory()).instances if instance.pool == "mixed"]
    assert sorted((instance.instance_type, instance.state) for instance in instances) == [
        (SIZE, RUNNING),
        (LARGER, RUNNING),
        (LARGER, RUNNING),
    ]
    larger = next(instance.id for instance in instances if instance.instance_type == LARGER)
    assert await mixed.provider.remove([larger]) == {larger: None}
    await settle(mixed)
    left = [instance.instance_type for instance in (await mixed.provider.inventory()).instances if instance.pool == "mixed"]
    assert sorted(left) == [SIZE, LARGER]


async def test_the_last_machine_of_a_system_pool_stays() -> None:
    async with azure_account() as azure:
        azure.pool_names = ("nodepool1",)
        provider = azure.start()
        await provider.read_account()
        (last,) = [instance.id for instance in (await provider.inventory()).instances if instance.pool == "nodepool1"]
        refusal = (await provider.remove([last]))[last]
        assert refusal is not None
        assert "its last machine" in refusal.detail


async def test_a_refused_write_of_a_scale_set_leads_to_aks() -> None:
    """Z18, where nothing but the answer says that the group is locked."""
    async with azure_account() as azure:
        await azure.provider.read_account()
        fault = Fault(
            method="PUT", path="*/virtualMachineScaleSets/*", code="DenyAssignmentAuthorizationFailed", message="denied", status=403
        )
        azure.endpoint.faults.all.append(fault)
        order = await azure.order(1, "demand")
        refused = await azure.provider.buy(order)
        assert (refused.pending, refused.refusals) == (0, ())

        again = await azure.order(1, "demand", token="order-2")
        answers = await azure.follow([azure.unfilled(again, await azure.provider.buy(again))], within=300)
        assert len(answers["order-2"].instances) == 1
        assert agent_pool_puts(azure) == 1
        assert (await azure.provider.read_account()).ways["demand"] == "agent-pool"


async def test_reserved_machines_are_bought_first_and_listed_as_reserved() -> None:
    async with azure_account() as azure:
        reservation = making.create_reservation_group(azure.account, "reserved", "crg", {(SIZE, "1"): 2})
        making.create_pool(azure.account, azure.cluster, "paid", SIZE, zones=("1",), capacityReservationGroupID=reservation.id)
        report = await azure.provider.read_account()
        (pool,) = [pool for pool in report.pools if pool.name == "paid"]
        assert next((offering.market, offering.price, offering.count) for offering in pool.offerings) == ("reserved", 0.0, 2)
        order = await azure.order(1, "paid", market="reserved")
        answers = await azure.follow([azure.unfilled(order, await azure.provider.buy(order))], within=300)

        assert [instance.market for instance in answers["order-1"].instances] == ["reserved"]
        listed = [instance.market for instance in (await azure.provider.inventory()).instances if instance.pool == "paid"]
        assert listed == ["reserved"]
