"""The provider against an account that behaves as Azure does: pools, inventory, orders, removals."""

from collections.abc import AsyncIterator
from functools import reduce

import pytest
from tests.clouds.azure.documents.documents import FAMILY
from tests.clouds.azure.providers import SIZE, AzureHarness, azure_account

from gpuscaler.clouds.azure.discovery.accounts import Account as Place
from gpuscaler.clouds.protocol import CAPACITY, QUOTA, UNAUTHORISED
from gpuscaler.control.loop.cloud import order_answer
from gpuscaler.embedded.azure import Fault, making
from gpuscaler.model.instances import PENDING, RUNNING, STOPPING
from gpuscaler.planning.state.askable_offerings import openness
from gpuscaler.planning.state.breakers import Breakers, step
from gpuscaler.planning.state.ledger.entries import Order as LedgerOrder


@pytest.fixture
async def azure() -> AsyncIterator[AzureHarness]:
    async with azure_account() as harness:
        yield harness


async def test_agent_pools_with_accelerators_are_pools(azure: AzureHarness) -> None:
    report = await azure.provider.read_account()

    assert [pool.name for pool in report.pools] == ["demand", "spot"]
    assert report.complete
    assert not report.failed
    (offering,) = next(pool for pool in report.pools if pool.name == "spot").offerings
    assert (offering.market, offering.instance_type, offering.zone) == ("spot", SIZE, "eastus-0")
    assert offering.price > 0


async def test_an_order_raises_the_capacity_and_its_machines_are_found(azure: AzureHarness) -> None:
    order = await azure.order(2, "demand")
    bought = await azure.provider.buy(order)

    assert bought.pending == 2
    assert bought.operation
    assert azure.scale_set("demand").capacity == 2
    azure.later(2.0)
    starting = await azure.provider.inventory()
    assert [instance.state for instance in starting.instances if instance.pool == "demand"] == [PENDING, PENDING]
    assert [delivery.missing for delivery in starting.deliveries if delivery.pool == "demand"] == [0]

    answers = await azure.follow([azure.unfilled(order, bought)], within=120)
    assert len(answers["order-1"].instances) == 2
    assert not answers["order-1"].refusals
    done = await azure.provider.inventory()
    assert [(instance.state, instance.token) for instance in done.instances if instance.pool == "demand"] == [(RUNNING, "order-1")] * 2


async def test_a_spot_pool_without_capacity_is_refused_soon_and_nothing_is_left_behind(azure: AzureHarness) -> None:
    making.set_limit(azure.account, 0, market="spot")
    order = await azure.order(3, "spot")
    bought = await azure.provider.buy(order)
    answers = {"order-1": bought} if bought.refusals else await azure.follow([azure.unfilled(order, bought)], within=20)

    refusals = answers["order-1"].refusals
    assert {refusal.cause for refusal in refusals} == {CAPACITY}
    assert {refusal.offering.market for refusal in refusals} == {"spot", "on-demand"}
    for _ in range(10):
        azure.later(10.0)
        await azure.provider.inventory()
        await azure.pass_time(0.0)
    assert azure.scale_set("spot").capacity == 0
    assert not azure.scale_set("spot").machines


async def test_a_quota_of_one_subscription_closes_nothing_of_another_in_the_same_location(azure: AzureHarness) -> None:
    other = "22222222-2222-4222-8222-222222222222"
    azure.account.subscriptions = (*azure.account.subscriptions, other)
    cluster = making.create_cluster(azure.account, "others", "rg2", subscription=other)
    making.create_pool(azure.account, cluster, "theirs", SIZE)
    making.set_quota(azure.account, FAMILY, 0)
    azure.other_places = (Place(other, "others", "rg2", ("workers",)),)
    azure.provider = azure.start()
    order = await azure.order(1, "demand")
    bought = await azure.provider.buy(order)

    (refusal,) = bought.refusals
    assert refusal.cause == QUOTA
    keys = {pool.name: offering.key for pool in await azure.provider.pools() for offering in pool.offerings if offering.market != "spot"}
    assert set(keys) == {"demand", "theirs"}
    sent = LedgerOrder(order.token, order.pool, order.offerings, 1, 0.0, 0.0)
    breakers = reduce(step, order_answer(sent, bought, 1.0).fates, Breakers())
    assert openness(breakers, keys.values(), 2.0).blocked == {keys["demand"]}


async def test_an_order_without_the_right_names_the_action_to_add(azure: AzureHarness) -> None:
    action = "Microsoft.Compute/virtualMachineScaleSets/write"
    text = f"The client does not have authorization to perform action '{action}' over scope '/subscriptions/x/resourceGroups/y'."
    azure.endpoint.faults.all.append(Fault("PUT", "*/virtualMachineScaleSets/*", code="AuthorizationFailed", message=text, status=403))
    bought = await azure.provider.buy(await azure.order(1, "demand"))

    assert {refusal.cause for refusal in bought.refusals} == {UNAUTHORISED}
    assert bought.refusals[0].detail.startswith(f"Azure does not allow {action}; add it to the role (gpuscaler generate azure-role")


async def test_a_machine_is_ended_by_id_and_shows_it_at_once(azure: AzureHarness) -> None:
    making.set_limit(azure.account, None)
    order = await azure.order(2, "demand")
    bought = await azure.provider.buy(order)
    await azure.follow([azure.unfilled(order, bought)], within=120)
    first, second = [instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]

    assert await azure.provider.remove([first]) == {first: None}
    states = {instance.id: instance.state for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"}
    assert states == {first: STOPPING, second: RUNNING}
    assert azure.scale_set("demand").capacity == 1
    azure.later(60.0)
    left = [instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
    assert left == [second]


async def test_lists_become_rarer_before_azure_refuses_them_and_say_how_old_they_are(azure: AzureHarness) -> None:
    """Z14."""
    first = await azure.provider.inventory()
    azure.endpoint.throttling.drain("reads", 8.0)
    azure.later(0.1)
    await azure.provider.inventory()
    reads = azure.endpoint.count("GET", "virtualMachineScaleSets")
    azure.later(10.0)
    drained = await azure.provider.inventory()

    assert first.age == 0
    assert drained.age >= 10
    assert azure.endpoint.count("GET", "virtualMachineScaleSets") == reads
    azure.later(120.0)
    assert (await azure.provider.inventory()).age == 0


async def test_purchases_go_on_while_lists_are_held_back(azure: AzureHarness) -> None:
    """Z14."""
    await azure.provider.inventory()
    order = await azure.order(1, "demand")
    azure.endpoint.throttling.close("HighCostGetVMScaleSet3Min", 60.0)
    bought = await azure.provider.buy(order)

    assert not bought.refusals
    answers = await azure.follow([azure.unfilled(order, bought)], within=300)
    assert len(answers["order-1"].instances) == 1


async def test_an_outage_before_an_order_is_sent_delays_it_and_closes_nothing(azure: AzureHarness) -> None:
    order = await azure.order(1, "demand")
    azure.endpoint.faults.all.append(Fault(path="*/virtualMachineScaleSets/*", code="ServiceUnavailable", status=503))
    bought = await azure.provider.buy(order)
    assert (bought.pending, bought.refusals) == (1, ())

    azure.later(10.0)
    azure.endpoint.faults.all.clear()
    answers = await azure.follow([azure.unfilled(order, bought)], within=200)
    assert len(answers["order-1"].instances) == 1
