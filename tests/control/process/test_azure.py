"""`gpuscaler run` with an Azure account: from pending pods to machines and back, over an endpoint of our own."""

import asyncio
import json
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from tests.control.azure_stage import ENVIRON, SIZE, azure_stage, place_of

from gpuscaler.embedded.azure import SUBSCRIPTION, making
from gpuscaler.embedded.azure.compute import capacity, scale_sets
from gpuscaler.embedded.azure.hardware.sizes import family

OTHER = "33333333-3333-4333-8333-333333333333"
#: Tags by which self-managed scale sets are found.
TAGS = {"gpuscaler.io_cluster": "aks"}
UPGRADE = "Another operation (Upgrading) is in progress, please wait for it to finish before starting a new operation."
SOON = "pools:\n  - {name: gpus, idle_after: 1m}\n"


async def test_a_pending_pod_gets_a_machine_and_an_idle_machine_is_deleted_by_its_id(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start(here.settings(more=SOON))
        await here.submit("train", run_for="30s")
        await here.until(here.all_bound, 120)
        assert (here.capacity("gpus"), len(here.machines())) == (1, 1)
        (node,) = await here.nodes()
        (machine,) = here.machines()
        assert node["spec"]["providerID"].endswith(f"/virtualMachineScaleSets/{here.scale_set('gpus').name}/virtualMachines/{machine.key}")
        await here.sleep(180)
        assert (here.capacity("gpus"), here.machines(), await here.nodes()) == (0, [], [])
        assert (here.capacities("gpus"), here.deletions()) == ([1], 1)
        status = await here.status()
        assert [(pool.name, pool.way) for pool in status.pools] == [("gpus", "scale-set")]
        assert (status.promises_kept, status.promises_broken, status.troubles) == (1, 0, ())


async def test_if_spot_has_no_capacity_machines_are_bought_on_demand_within_seconds_and_later_on_spot_again(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("spot", spot=True)
        here.pool("demand")
        here.limit(0, market="spot", code="OverconstrainedZonalAllocationRequest")
        here.start()
        await here.submit("train")
        await here.until(lambda: here.capacity("demand") == 1, 20)
        await here.until(here.all_bound, 120)
        assert (here.capacity("spot"), here.machines("spot")) == (0, [])
        assert any("spot" in breaker.target for breaker in (await here.status()).breakers)
        here.limit(None, market="spot", code="OverconstrainedZonalAllocationRequest")
        await here.sleep(3700)
        await here.submit("next")
        await here.until(here.all_bound, 120)
        assert (here.capacity("spot"), here.capacity("demand"), here.count_registered()) == (1, 1, 2)


async def test_pools_in_two_subscriptions_and_locations_are_used(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, subscriptions=(SUBSCRIPTION, OTHER), locations=("eastus", "westus2")) as here:
        here.pool("east")
        here.pool("west", aks=here.cluster_in(OTHER, "west", location="westus2"))
        places = (place_of(), place_of(OTHER, "west"))
        here.start(here.settings(subscriptions=places, more="pools:\n  - {name: east, max: 1}\n  - {name: west, max: 1}\n"))
        await here.submit("one", "two")
        await here.until(here.all_bound, 120)
        assert (here.capacity("east"), here.capacity("west"), here.count_registered()) == (1, 1, 2)
        assert (await here.status()).troubles == ()
        here.fault(path=f"*{OTHER}*", code="InternalServerError", status=500)
        await here.sleep(300)
        assert any(OTHER in trouble for trouble in (await here.status()).troubles)
        here.endpoint.faults.all.clear()
        await here.sleep(400)
        assert (here.capacity("east"), here.capacity("west"), (await here.status()).troubles) == (1, 1, ())


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("after", [1.0, 8.0, 12.0])
async def test_an_order_is_followed_on_by_the_next_process_and_nothing_is_bought_twice(
    after: float, forgotten: bool, tmp_path: Path
) -> None:
    async with azure_stage(tmp_path, allocation=20.0, provisioning=30.0) as here:
        here.pool("spot", spot=True)
        here.pool("demand")
        here.limit(1, market="spot", code="OverconstrainedAllocationRequest")
        here.start()
        await here.submit("one", "two", "three")
        await here.until(lambda: here.capacity("spot") == 3, 20)
        await here.sleep(after)
        await here.stop()
        if forgotten:
            here.account.forget_operations()
        here.start(identity="two")
        await here.until(lambda: here.capacity("demand") == 2, 100)
        await here.until(here.all_bound, 200)
        await here.sleep(300)
        here.limit(None, market="spot", code="OverconstrainedAllocationRequest")
        await here.sleep(300)
        assert (here.capacity("spot"), len(here.machines("spot")), here.capacity("demand")) == (1, 1, 2)
        assert here.count_registered() == 3
        assert (await here.status()).troubles == ()


@pytest.mark.parametrize("sever", ["before", "after"])
async def test_an_order_whose_answer_is_lost_is_placed_once(sever: str, tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start()
        await here.sleep(15)
        here.fault(method="PUT", path="*virtualMachineScaleSets*", times=1, sever=sever)
        await here.submit("train")
        await here.until(here.all_bound, 400)
        await here.sleep(300)
        assert (here.capacity("gpus"), here.count_registered()) == (1, 1)


async def test_if_reads_are_throttled_after_an_answer_was_lost_nothing_is_bought_twice(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start(here.settings(more="limits: {gpus: 4}\n"))
        await here.sleep(15)
        here.fault(method="PUT", path="*virtualMachineScaleSets*", times=1, sever="after")
        here.fault(
            path="*virtualMachineScaleSets*", method="GET", times=4, code="TooManyRequests", status=429, headers={"retry-after": "20"}
        )
        await here.submit("train")
        await here.until(here.all_bound, 400)
        await here.sleep(300)
        assert (here.capacity("gpus"), here.count_registered()) == (1, 1)


async def test_machines_that_do_not_fit_into_a_quota_are_not_ordered_and_another_size_is(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("a100")
        here.pool("t4", size="Standard_NC8as_T4_v3", max=4)
        making.set_quota(here.account, family("Standard_NC8as_T4_v3"), 8)
        here.start()
        await here.submit("one", "two", "three")
        await here.until(here.all_bound, 200)
        assert (here.capacity("t4"), here.capacity("a100")) == (1, 2)
        assert not here.endpoint.refused


async def test_purchases_go_on_while_lists_of_machines_are_throttled(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start()
        await here.submit("first")
        await here.until(here.all_bound, 120)
        here.endpoint.throttling.close("HighCostGetVMScaleSet30Min", 900.0)
        await here.sleep(30)
        await here.submit("second")
        await here.until(lambda: here.capacity("gpus") == 2, 60)
        await here.sleep(1000)
        assert (here.capacity("gpus"), here.count_registered()) == (2, 2)
        assert await here.all_bound()


@pytest.mark.parametrize("lockdown", ["DenyAssignmentAuthorizationFailed", "ScopeLocked"])
async def test_in_a_locked_node_resource_group_machines_are_bought_and_ended_through_aks(lockdown: str, tmp_path: Path) -> None:
    async with azure_stage(tmp_path, lockdown=lockdown) as here:
        here.pool("gpus")
        here.account.group(SUBSCRIPTION, here.aks.node_group).locked = True
        here.start(here.settings(more=SOON))
        await here.submit("train", run_for="30s")
        await here.until(here.all_bound, 200)
        assert here.capacity("gpus") == 1
        await here.sleep(300)
        assert (here.capacity("gpus"), here.machines(), here.count_registered()) == (0, [], 1)
        (pool,) = (await here.status()).pools
        assert pool.way.startswith("agent-pool")


async def test_an_idle_machine_is_ended_through_aks_if_the_node_resource_group_was_locked_meanwhile(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, lockdown="ScopeLocked") as here:
        here.pool("gpus")
        here.start(here.settings(more=SOON))
        await here.submit("train", run_for="30s")
        await here.until(here.all_bound, 200)
        here.account.group(SUBSCRIPTION, here.aks.node_group).locked = True
        await here.sleep(400)
        assert (here.capacity("gpus"), here.machines(), here.count_registered()) == (0, [], 1)


async def test_a_pool_of_virtual_machines_grows_by_profile_and_machines_are_ended_by_name(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        big = "Standard_NC48ads_A100_v4"
        pool = here.pool("mixed", size={SIZE: 0, big: 1})
        here.start(here.settings(more="pools:\n  - {name: mixed, idle_after: 1m}\n"))
        await here.submit("pair", gpus=2, run_for="60s")
        await here.until(here.all_bound, 60)
        await here.submit("single", run_for="60s")
        await here.until(lambda: pool.profiles[SIZE.lower()].capacity == 1, 60)
        await here.until(here.all_bound, 200)
        await here.sleep(600)
        assert {size: profile.capacity for size, profile in pool.profiles.items()} == {SIZE.lower(): 0, big.lower(): 0}
        assert (await here.status()).troubles == ()


async def test_an_evicted_machine_is_replaced_once_beside_another_writer(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("spot", spot=True)
        here.start(here.settings(more="limits: {gpus: 6}\n"))
        await here.deploy("serve", replicas=3)
        await here.until(here.bound, 10)
        await here.until(here.all_bound, 120)
        spot = here.scale_set("spot")
        here.evict("spot", here.machines("spot")[0])
        capacity.set_capacity(here.account, spot, spot.capacity + 1)
        await here.sleep(200)
        assert await here.all_bound()
        assert here.count_registered() in (4, 5)
        await here.sleep(600)
        assert (len(here.machines()), here.capacity("spot")) == (3, 3)


async def test_a_pool_that_is_given_to_the_autoscaler_of_aks_is_set_aside_and_nothing_there_is_harmed(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        pool = here.pool("gpus")
        here.start(here.settings(more=SOON))
        await here.submit("first")
        await here.until(here.all_bound, 120)
        pool.settings |= {"enableAutoScaling": True, "minCount": 0, "maxCount": 5}
        await here.sleep(400)
        writes = len(here.endpoint.writes)
        await here.submit("second")
        await here.sleep(600)
        assert len(here.endpoint.writes) == writes
        assert (here.capacity("gpus"), len(here.machines())) == (1, 1)
        assert (await here.bound())["first"]
        assert not (await here.status()).pools


async def test_a_queued_order_is_not_sent_to_a_pool_that_was_set_aside_meanwhile(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, allocation=200.0) as here:
        pool = here.pool("gpus")
        here.start(here.settings(api="agentpool"))
        await here.submit("first")
        await here.until(lambda: here.capacity("gpus") == 1, 20)
        await here.submit("second")
        await here.sleep(10)
        pool.settings |= {"enableAutoScaling": True, "minCount": 0, "maxCount": 5}
        here.path.write_text(here.settings(api="agentpool", more="limits: {gpus: 5}\n"))
        await here.sleep(600)
        assert (here.capacity("gpus"), len(here.machines())) == (1, 1)


async def test_a_scale_set_that_is_deleted_while_we_buy_there_stops_nothing_else(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, allocation=60.0) as here:
        making.create_group(here.account, "own")
        own = making.create_scale_set(here.account, "own", "mine", SIZE, spot=True, tags=TAGS)
        here.pool("demand")
        here.start(here.settings(subscriptions=(place_of(resource_groups=["own"]),)))
        await here.submit("one")
        await here.until(lambda: own.capacity == 1, 20)
        await here.sleep(12)
        scale_sets.remove(here.account, own)
        await here.sleep(5)
        await here.submit("two")
        await here.until(lambda: here.capacity("demand") == 2, 30)
        await here.until(here.all_bound, 120)
        await here.sleep(400)
        assert here.capacity("demand") == 2
        assert (await here.status()).troubles == ()


async def test_a_dry_run_changes_nothing_in_the_azure_account(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus", count=1)
        here.start(here.settings(more=SOON), dry_run=True)
        await here.submit("one", "two")
        await here.sleep(600)
        assert (here.endpoint.writes, here.endpoint.refused, here.capacity("gpus")) == ([], [], 1)


async def test_a_former_leader_writes_nothing_to_the_azure_account(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start(identity="one")
        await here.sleep(10)
        here.start(identity="two")
        await here.submit("train")
        await here.until(here.all_bound, 120)
        await here.stop()
        await here.submit("next")
        await here.until(here.all_bound, 120)
        assert (here.capacity("gpus"), here.count_registered(), here.capacities("gpus")) == (2, 2, [1, 2])
        assert (await here.status()).leader.identity == "two"


async def test_what_is_wrong_in_the_settings_is_reported_in_one_line_each_and_the_rest_is_used(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        places = (
            place_of(pools=["missing"], resource_groups=["nowhere"]),
            place_of(OTHER, "elsewhere"),
        )
        here.start(here.settings(subscriptions=places))
        await here.submit("train")
        await here.until(here.all_bound, 120)
        await here.sleep(300)
        status = await here.status()
        told = [*status.troubles, *(f"{entry.about}: {entry.text}" for entry in status.set_aside)]
        for text in (f"Pool {SUBSCRIPTION}/missing", f"ResourceGroup {SUBSCRIPTION}/nowhere", f"Cluster {OTHER}/rg/elsewhere"):
            (line,) = [line for line in told if text in line]
            assert "correct" in line
            assert "\n" not in line


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("AZURE_TENANT_ID", OTHER, "correct AZURE_TENANT_ID"),
        ("AZURE_CLIENT_ID", OTHER, "correct AZURE_CLIENT_ID"),
        ("AZURE_CLIENT_SECRET", "wrong", "correct AZURE_CLIENT_SECRET"),
        ("AZURE_FEDERATED_TOKEN_FILE", "absent", "cannot read AZURE_FEDERATED_TOKEN_FILE"),
    ],
)
async def test_wrong_credentials_are_logged_in_one_line_until_they_are_right(
    variable: str, value: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with azure_stage(tmp_path, authorization="issued") as here:
        here.pool("gpus")
        here.account.clients, here.account.wrong_secrets = {ENVIRON["AZURE_CLIENT_ID"]}, {"wrong"}
        here.environ = {**ENVIRON, variable: value}
        here.start()
        await here.submit("train")
        await here.sleep(60)
        lines = [line for line in capsys.readouterr().out.splitlines() if told in line]
        assert 1 <= len(lines) <= 5
        assert not here.endpoint.writes
        here.environ.update(ENVIRON)
        here.environ.pop("AZURE_FEDERATED_TOKEN_FILE", None)
        await here.stop()
        here.start()
        await here.until(here.all_bound, 120)


async def test_an_expired_federation_token_is_reported_and_a_new_one_in_the_file_is_used(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, authorization="issued") as here:
        here.pool("gpus")
        file = tmp_path / "token"
        here.environ = {**ENVIRON, "AZURE_FEDERATED_TOKEN_FILE": str(file)}
        file.write_text(federated_token(here.now() + 600))
        here.start()
        await here.submit("first")
        await here.until(here.all_bound, 120)
        await here.sleep(3700)
        (trouble,) = {trouble for trouble in (await here.status()).troubles if "expired" in trouble and trouble.startswith("azure")}
        assert "check this node's clock" in trouble
        file.write_text(federated_token(here.now() + 3600))
        await here.sleep(300)
        await here.submit("second")
        await here.until(here.all_bound, 120)
        assert (await here.status()).troubles == ()


def federated_token(expires: float) -> str:
    """The token of a ServiceAccount, not signed."""
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, {"exp": expires}, {}))


async def test_a_subscription_that_does_not_answer_delays_no_order_elsewhere(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, subscriptions=(SUBSCRIPTION, OTHER), locations=("eastus", "westus2"), allocation=10.0) as here:
        big = "Standard_NC96ads_A100_v4"
        here.pool("spot", size=big, spot=True)
        here.pool("demand", size=big)
        here.pool("west", aks=here.cluster_in(OTHER, "west", location="westus2"), size="Standard_NC48ads_A100_v4")
        here.limit(0, market="spot", code="OverconstrainedAllocationRequest")
        here.start(here.settings(subscriptions=(place_of(), place_of(OTHER, "west"))))
        await here.submit("pair", gpus=2)
        await here.until(lambda: here.capacity("west") == 1, 30)
        here.fault(method="GET", path=f"*{OTHER}*", code="InternalServerError", status=500)
        await here.sleep(60)
        await here.submit("four", gpus=4)
        await here.until(lambda: here.capacity("demand") == 1, 25)
        await here.until(here.all_bound, 120)


async def test_a_quota_of_one_subscription_closes_nothing_in_another_one(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, subscriptions=(SUBSCRIPTION, OTHER), quota="operation") as here:
        here.pool("first")
        here.pool("second", aks=here.cluster_in(OTHER, "other"))
        for subscription in (SUBSCRIPTION, OTHER):
            making.set_quota(here.account, family(SIZE), 48, subscription=subscription)
        here.start(here.settings(subscriptions=(place_of(), place_of(OTHER, "other"))))
        await here.submit(*(f"train-{number}" for number in range(5)))
        await here.until(lambda: here.capacity("first") == here.capacity("second") == 2, 60)
        await here.sleep(100)
        assert sum(map(bool, (await here.bound()).values())) == 4


async def test_quotas_that_are_not_answered_hold_up_no_order(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start()
        await here.sleep(100)
        here.fault(path="*/usages", delay=60.0)
        await here.submit("train")
        await here.until(lambda: here.capacity("gpus") == 1, 10)
        await here.until(here.all_bound, 120)


async def test_an_agent_pool_that_aks_upgrades_holds_no_order_for_long(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("cheap", size="Standard_NC4as_T4_v3")
        here.pool("dear")
        here.start(here.settings(api="agentpool"))
        await here.sleep(15)
        here.fault(method="PUT", path="*/agentPools/cheap", code="OperationNotAllowed", status=409, message=UPGRADE)
        await here.submit("train")
        await here.until(here.all_bound, 180)
        assert (here.capacity("cheap"), here.capacity("dear")) == (0, 1)


async def test_after_a_resource_group_is_deleted_the_machines_elsewhere_are_still_managed(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        making.create_group(here.account, "own")
        making.create_scale_set(here.account, "own", "mine", SIZE, tags=TAGS)
        here.pool("gpus")
        here.start(here.settings(subscriptions=(place_of(resource_groups=["own"]),), more=SOON))
        await here.sleep(30)
        del here.account.groups[SUBSCRIPTION, "own"]
        await here.submit("train", run_for="30s")
        await here.until(here.all_bound, 200)
        await here.sleep(300)
        assert (here.capacity("gpus"), here.machines()) == (0, [])


async def test_an_operation_that_may_not_be_read_is_followed_by_its_scale_set(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("spot", spot=True)
        here.pool("demand")
        here.limit(0, market="spot", code="OverconstrainedAllocationRequest")
        here.fault(method="GET", path="*/operations/*", code="AuthorizationFailed", status=403)
        here.start()
        await here.submit("train")
        await here.until(lambda: here.capacity("demand") == 1, 40)
        await here.until(here.all_bound, 120)
        await here.sleep(60)
        assert (here.capacity("spot"), here.count_registered()) == (0, 1)


async def test_a_process_that_stops_leaves_no_task_of_azure_behind(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, deleting=100.0, allocation=30.0) as here:
        here.pool("gpus", count=2)
        here.start(here.settings(more=SOON))
        await here.sleep(130)
        await here.submit("one", "two", "three")
        await here.until(lambda: here.endpoint.writes, 60)
        await here.sleep(3)
        await here.stop()
        left = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert not [task for task in left if "Endings" in task or "Increments" in task or "Discovery" in task]


@pytest.mark.parametrize("sever", ["before", "after"])
async def test_profiles_of_a_pool_of_virtual_machines_wait_for_each_other_and_lost_answers_buy_nothing_twice(
    sever: str, tmp_path: Path
) -> None:
    async with azure_stage(tmp_path) as here:
        big = "Standard_NC48ads_A100_v4"
        pool = here.pool("mixed", size={SIZE: 0, big: 0})
        here.start(here.settings(more="pools:\n  - {name: mixed, idle_after: 1m}\n"))
        await here.sleep(15)
        await here.submit("pair", gpus=2, run_for="900s")
        await here.until(lambda: pool.profiles[big.lower()].capacity == 1, 20)
        here.fault(method="PUT", path="*/agentPools/mixed", times=1, sever=sever)
        for name in ("one", "two", "three"):
            await here.submit(name, run_for="300s")
            await here.sleep(7)
        await here.until(here.all_bound, 400)
        assert {size: profile.capacity for size, profile in pool.profiles.items()} == {SIZE.lower(): 3, big.lower(): 1}
        assert here.count_registered() == 4
        await here.sleep(900)
        assert not pool.profiles[SIZE.lower()].capacity


async def test_an_aks_pool_whose_calls_are_used_up_is_still_scaled(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start(here.settings(api="agentpool", more=SOON))
        for number in range(30):
            await here.submit(f"train-{number}", run_for="20s")
            await here.sleep(25)
        await here.until(here.all_bound, 600)
        await here.sleep(900)
        assert (here.capacity("gpus"), here.machines()) == (0, [])
        assert (await here.status()).troubles == ()
