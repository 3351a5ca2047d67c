"""F123 to F127: scale sets of Azure that others write, attempts that fail, deletions that other writes end."""

from functools import partial

import aiohttp
import pytest
from benchmarks.azure_failover import play_failover
from benchmarks.live_scenes import run_in_virtual_time
from tests.clouds.azure.providers import AzureHarness, azure_account

from gpuscaler.embedded.azure import making
from gpuscaler.embedded.azure.compute.capacity import set_capacity
from gpuscaler.embedded.azure.wire.requests import Answer, Request
from gpuscaler.model.instances import RUNNING


async def settle(azure: AzureHarness, seconds: float = 120.0) -> None:
    """Let the controller's reads go on for a while."""
    for _ in range(int(seconds // 10)):
        azure.later(10.0)
        await azure.provider.inventory()
        await azure.pass_time(0.0)


async def buy(azure: AzureHarness, count: int, pool: str, token: str) -> int:
    """Order machines; returns how many came."""
    order = await azure.order(count, pool, token=token)
    bought = await azure.provider.buy(order)
    if bought.pending:
        bought = (await azure.follow([azure.unfilled(order, bought)], within=300))[token]
    return len(bought.instances)


async def test_f123_a_capacity_that_another_wrote_meanwhile_is_not_undone() -> None:
    async with azure_account() as azure:
        handle, scale_set = azure.endpoint.handle, azure.scale_set("demand")
        writes = [5]

        def write_first(request: Request) -> Answer:
            if request.method == "PUT" and "virtualMachineScaleSets" in request.path and writes:
                set_capacity(azure.account, scale_set, writes.pop())
            return handle(request)

        azure.endpoint.handle = write_first  # type: ignore[method-assign]
        await azure.provider.buy(await azure.order(2, "demand"))
        assert scale_set.capacity == 5

        await settle(azure)
        assert await buy(azure, 2, "demand", "next") == 2
        assert scale_set.capacity == len(scale_set.machines) == 7


@pytest.mark.parametrize("failed", ["stay", "vanish"])
async def test_f124_what_a_failed_attempt_leaves_is_cleared_and_brings_no_machines_later(failed: str) -> None:
    async with azure_account(failed=failed) as azure:
        making.set_limit(azure.account, 1, market="on-demand")
        assert await buy(azure, 4, "demand", "first") == 1
        await settle(azure)
        making.set_limit(azure.account, None, market="on-demand")
        scale_set = azure.scale_set("demand")
        assert scale_set.capacity == len(scale_set.machines) == 1

        assert await buy(azure, 1, "demand", "second") == 1
        assert scale_set.capacity == len(scale_set.machines) == 2


async def test_f125_no_capacity_is_written_while_machines_are_deleted() -> None:
    async with azure_account(preempts=True, read_lag=4.0) as azure:
        assert await buy(azure, 4, "demand", "first") == 4
        azure.later(10.0)
        idents = [instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
        await azure.provider.remove(idents[:2])
        assert await buy(azure, 1, "demand", "second") == 1
        await settle(azure)

        left = {instance.id for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"}
        assert set(idents[2:]) < left
        assert len(left) == 3


async def test_f126_an_entry_that_azure_never_allocated_is_not_taken_for_a_machine() -> None:
    async with azure_account(allocation=20.0) as azure:
        making.set_limit(azure.account, 0, market="on-demand")
        order = await azure.order(2, "demand")
        bought = await azure.provider.buy(order)
        azure.later(5.0)
        listed = [instance for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
        assert not listed
        assert (await azure.follow([azure.unfilled(order, bought)], within=60))["order-1"].refusals

        making.set_limit(azure.account, None, market="on-demand")
        azure.later(3600.0)
        assert await buy(azure, 1, "demand", "second") == 1
        states = [instance.state for instance in (await azure.provider.inventory()).instances if instance.pool == "demand"]
        assert states == [RUNNING]


def test_f127_on_demand_is_ordered_within_ten_seconds_of_the_first_failure_of_spot() -> None:
    failover = run_in_virtual_time(partial(play_failover, 3, 6.0, "vanish"))

    assert failover.seconds <= 10.0
    assert (failover.bound, failover.surplus) == (8, 0)


async def test_f123_two_writers_leave_the_sum_of_what_they_wanted() -> None:
    async with azure_account(read_lag=8.0) as azure:
        scale_set = azure.scale_set("demand")
        async with aiohttp.ClientSession() as session:
            body = {"sku": {"name": scale_set.model["sku"]["name"], "capacity": 2}}
            async with session.patch(f"{azure.url}{scale_set.id}?api-version=2024-11-01", json=body) as answer:
                assert answer.status in (200, 202)
        assert await buy(azure, 1, "demand", "ours") == 1
        await settle(azure)
        assert scale_set.capacity == len(scale_set.machines) == 3
