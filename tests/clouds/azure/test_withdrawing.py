"""Orders that are withdrawn, refused while they wait, or continued by another process that knows little of them."""

import asyncio

import pytest
from tests.clouds.azure.providers import SIZE, AzureHarness, azure_account

from gpuscaler.clouds.protocol import UNAUTHORISED, UNKNOWN, BuyResult, CloudError, UnfilledOrder
from gpuscaler.embedded.azure import SUBSCRIPTION, Fault, making


async def settle(azure: AzureHarness, seconds: float = 120.0) -> None:
    """Let the controller's reads go on for a while."""
    for _ in range(int(seconds // 10)):
        azure.later(10.0)
        await azure.provider.inventory()
        await azure.pass_time(0.0)


async def test_a_capacity_is_not_lowered_while_machines_are_coming_that_a_list_does_not_show_yet() -> None:
    async with azure_account(read_lag=15.0, allocation=30.0) as azure:
        making.create_pool(azure.account, azure.cluster, "gpus", "Standard_NC4as_T4_v3", count=3)
        azure.later(60.0)
        order = await azure.order(2, "gpus")
        bought = await azure.provider.buy(order)
        assert bought.pending == 2

        with pytest.raises(CloudError, match="cannot be lowered while an operation runs"):
            await azure.provider.withdraw(azure.unfilled(order, bought))
        azure.later(100.0)
        await azure.provider.withdraw(azure.unfilled(order, bought))
        await settle(azure)
        assert azure.scale_set("gpus").capacity == len(azure.scale_set("gpus").machines) == 5


@pytest.mark.parametrize("failed", ["stay", "vanish"])
async def test_what_an_order_in_doubt_left_behind_is_cleared_when_it_is_withdrawn(failed: str) -> None:
    async with azure_account(failed=failed) as azure:
        making.set_limit(azure.account, 1, market="on-demand")
        order, at = await azure.order(3, "demand"), azure.now()
        await azure.provider.buy(order)
        azure.later(100.0)
        assert azure.scale_set("demand").capacity == 3

        # Its process ended without having saved the answer.
        azure.provider = azure.start()
        await azure.provider.inventory()
        await azure.provider.withdraw(UnfilledOrder(order, 2, at, accepted=False))
        await settle(azure)
        assert azure.scale_set("demand").capacity == len(azure.scale_set("demand").machines) == 1


async def test_an_order_that_was_withdrawn_before_it_was_sent_is_not_sent() -> None:
    async with azure_account() as azure:
        order = await azure.order(1, "demand")
        await azure.provider.inventory()
        await azure.provider.withdraw(UnfilledOrder(order, 1, azure.now(), accepted=False))
        await settle(azure)

        assert await azure.provider.buy(order) == BuyResult()
        assert azure.writes() == 0


async def test_an_order_whose_operation_is_at_another_endpoint_is_followed_by_its_scale_set() -> None:
    async with azure_account() as azure:
        order, at = await azure.order(2, "demand"), azure.now()
        await azure.provider.buy(order)
        making.set_limit(azure.account, 1, market="on-demand")
        azure.later(2.0)
        azure.provider = azure.start()
        await azure.provider.inventory()
        rest = UnfilledOrder(order, 1, at, operation="https://management.azure.com/subscriptions/s/operations/o?api-version=2026-04-01")
        answers = await azure.follow([rest], within=120)
        assert answers["order-1"].pending == 0
        await settle(azure)
        assert azure.scale_set("demand").capacity == len(azure.scale_set("demand").machines)


@pytest.mark.parametrize("after", [2.0, 30.0])
async def test_an_order_in_a_scale_set_that_is_deleted_is_answered(after: float) -> None:
    async with azure_account(allocation=20.0) as azure:
        making.create_scale_set(azure.account, "workers", "mine", SIZE, tags={"gpuscaler.io_cluster": "aks"})
        order = await azure.order(2, "mine")
        bought = await azure.provider.buy(order)
        azure.later(after)
        del azure.account.groups[SUBSCRIPTION, "workers"].scale_sets["mine"]

        answers = await azure.follow([azure.unfilled(order, bought)], within=60)
        assert [refusal.offering.pool for refusal in answers["order-1"].refusals] == ["mine"]
        await settle(azure)
        calls = azure.endpoint.count("GET", "virtualMachineScaleSets/{set}")
        await settle(azure)
        assert azure.endpoint.count("GET", "virtualMachineScaleSets/{set}") == calls


async def test_orders_behind_a_long_operation_of_others_are_refused_so_that_others_are_asked() -> None:
    async with azure_account() as azure:
        text = "Another operation (Upgrading) is in progress"
        azure.endpoint.faults.all.append(
            Fault(method="PUT", path="*virtualMachineScaleSets*", code="OperationNotAllowed", message=text, status=409)
        )
        order = await azure.order(1, "demand")
        bought = await azure.provider.buy(order)
        assert bought.pending == 1

        answers = await azure.follow([azure.unfilled(order, bought)], within=120)
        (refusal,) = answers["order-1"].refusals
        # A throttled call would close every offering of the region.
        assert refusal.cause == UNKNOWN
        assert "scale set aks-demand" in refusal.detail
        azure.endpoint.faults.all.clear()
        await settle(azure)
        assert azure.scale_set("demand").capacity == 0


async def test_an_answer_that_comes_after_the_caller_gave_up_is_kept() -> None:
    async with azure_account() as azure:
        order = await azure.order(1, "demand")
        await azure.provider.inventory()
        azure.endpoint.faults.all.append(Fault(method="GET", path="*virtualMachineScaleSets/*", delay=0.3, times=1))
        azure.endpoint.faults.all.append(Fault(method="GET", path="*virtualMachineScaleSets/*", code="AuthorizationFailed", status=403))
        call = asyncio.ensure_future(azure.provider.buy(order))
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0.4)
        azure.endpoint.faults.all.clear()

        answers = await azure.follow([UnfilledOrder(order, 1, azure.now(), accepted=False)], within=30)
        assert [refusal.cause for refusal in answers["order-1"].refusals] == [UNAUTHORISED]


async def test_a_machine_of_a_scale_set_that_was_deleted_is_gone() -> None:
    async with azure_account() as azure:
        making.create_scale_set(azure.account, "workers", "mine", SIZE, count=1, tags={"gpuscaler.io_cluster": "aks"})
        (ident,) = [instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "mine"]
        del azure.account.groups[SUBSCRIPTION, "workers"].scale_sets["mine"]
        assert await azure.provider.remove([ident]) == {ident: None}
        azure.later(10.0)
        assert "mine" not in {instance.pool for instance in (await azure.provider.inventory()).instances}


@pytest.mark.parametrize("failed", ["stay", "vanish"])
async def test_a_number_that_another_process_left_does_not_become_machines_with_the_next_order(failed: str) -> None:
    async with azure_account(failed=failed) as azure:
        making.set_limit(azure.account, 0, market="on-demand")
        await azure.provider.buy(await azure.order(4, "demand"))
        azure.later(100.0)
        making.set_limit(azure.account, None, market="on-demand")
        assert azure.scale_set("demand").capacity == 4

        azure.provider = azure.start()
        order = await azure.order(1, "demand", token="next")
        bought = await azure.provider.buy(order)
        answers = await azure.follow([azure.unfilled(order, bought)], within=120) if bought.pending else {"next": bought}
        assert len(answers["next"].instances) == 1
        await settle(azure)
        machines = [machine for machine in azure.scale_set("demand").machines.values() if machine.cloud is not None]
        assert len(machines) == 1
