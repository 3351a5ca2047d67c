"""Operations that meet: superseded writes, preempted deletions, lags, evictions, lost answers."""

import aiohttp
import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, Fault, making
from gpuscaler.embedded.azure.state import ScaleSet


def scale_set_of(azure: Azure, path: str) -> ScaleSet:
    return azure.account.scale_set(SUBSCRIPTION, "rg", path.rpartition("/")[2])


async def states(azure: Azure, path: str) -> list[str]:
    _, listed, _ = await azure.call("GET", f"{path}/virtualMachines")
    return [machine["properties"]["provisioningState"] for machine in listed["value"]]


async def test_a_later_capacity_supersedes_the_running_operation(azure: Azure, workers: str) -> None:
    _, _, first = await azure.call("PATCH", workers, {"sku": {"capacity": 2}})
    azure.later(1)
    status, _, second = await azure.call("PATCH", workers, {"sku": {"capacity": 4}})
    assert status == 200
    _, superseded, _ = await azure.call("GET", first["azure-asyncoperation"])
    assert (superseded["status"], superseded["error"]["code"]) == ("Canceled", "OperationPreempted")
    azure.later(60)
    assert (await azure.call("GET", second["azure-asyncoperation"]))[1]["status"] == "Succeeded"
    assert await states(azure, workers) == ["Succeeded"] * 4


async def test_a_later_write_can_preempt_a_deletion_whose_machines_then_stay(azure: Azure, workers: str) -> None:
    await azure.call("PATCH", workers, {"sku": {"capacity": 3}})
    azure.later(60)
    _, _, headers = await azure.call("POST", f"{workers}/delete", {"instanceIds": ["1"]})
    azure.account.preempt_deletions = 1
    await azure.call("PATCH", workers, {"sku": {"capacity": 3}})
    _, operation, _ = await azure.call("GET", headers["azure-asyncoperation"])
    assert (operation["status"], operation["error"]["code"]) == ("Failed", "OperationPreempted")
    assert (await azure.call("GET", headers["location"]))[0] == 409
    azure.later(60)
    assert await states(azure, workers) == ["Succeeded"] * 3
    status, _, _ = await azure.call("POST", f"{workers}/delete", {"instanceIds": ["1"]})
    assert status == 202
    azure.later(60)
    assert scale_set_of(azure, workers).capacity == len(await states(azure, workers)) == 2


async def test_lists_lag_behind_writes(azure: Azure) -> None:
    azure.conditions(read_lag=20.0)
    path = making.create_scale_set(azure.account, "rg", "workers", SIZE).id
    azure.later(100)
    await azure.call("PATCH", path, {"sku": {"capacity": 2}})
    azure.later(19)
    assert await states(azure, path) == []
    assert (await azure.call("GET", path))[1]["sku"]["capacity"] == 2
    azure.later(2)
    assert await states(azure, path) == ["Creating"] * 2
    azure.later(60)
    assert await states(azure, path) == ["Succeeded"] * 2


@pytest.mark.parametrize(("moment", "capacity"), [("before", 0), ("after", 2)])
async def test_an_answer_can_be_lost_before_or_after_its_effect(azure: Azure, workers: str, moment: str, capacity: int) -> None:
    azure.endpoint.faults.all.append(Fault(method="PATCH", sever=moment, times=1))  # type: ignore[arg-type]
    with pytest.raises(aiohttp.ClientError):
        await azure.call("PATCH", workers, {"sku": {"capacity": 2}})
    assert (await azure.call("GET", workers))[1]["sku"]["capacity"] == capacity


async def test_an_eviction_with_the_policy_delete_takes_the_machine_and_the_capacity(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "spots", SIZE, count=2, spot=True)
    before = scale_set.etag
    status, _, _ = await azure.call("POST", f"{scale_set.id}/virtualMachines/1/simulateEviction")
    assert status == 204
    azure.later(2)
    assert await states(azure, scale_set.id) == ["Succeeded"] * 2
    azure.later(31)
    assert await states(azure, scale_set.id) == ["Succeeded"]
    assert scale_set.capacity == 1
    assert scale_set.etag != before


async def test_an_eviction_with_the_policy_deallocate_leaves_a_machine_without_power(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "spots", SIZE, count=1, spot=True, eviction="Deallocate")
    making.evict(azure.account, scale_set, "0", notice=0)
    _, listed, _ = await azure.call("GET", f"{scale_set.id}/virtualMachines?$expand=instanceView&api-version=x")
    assert listed["value"][0]["properties"]["instanceView"]["statuses"][1]["code"] == "PowerState/deallocated"
    assert scale_set.capacity == 1
    assert azure.account.usage(SUBSCRIPTION, "eastus")["lowPriorityCores"] == 24


async def test_machines_beyond_a_smaller_market_are_evicted(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "spots", SIZE, count=3, spot=True)
    making.set_limit(azure.account, 1, market="spot")
    azure.later(300)
    assert len(scale_set.machines) == scale_set.capacity == 1


async def test_a_machine_whose_extension_fails_runs_and_says_why(azure: Azure, workers: str) -> None:
    making.add_trouble(azure.account, "VMExtensionProvisioningError", times=1)
    _, _, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 2}})
    azure.later(60)
    _, operation, _ = await azure.call("GET", headers["azure-asyncoperation"])
    assert operation["error"]["code"] == "VMExtensionProvisioningError"
    client = azure.compute()
    machines = [machine async for machine in client.virtual_machine_scale_set_vms.list("rg", "workers", expand="instanceView")]
    assert [machine.provisioning_state for machine in machines] == ["Failed", "Succeeded"]
    view = machines[0].instance_view
    assert view.statuses[1].code == "PowerState/running"
    assert "exit status=50" in view.extensions[0].statuses[0].message


@pytest.mark.parametrize(("code", "status"), [("SkuNotAvailable", 409), ("RequestDisallowedByPolicy", 403), ("SubnetIsFull", 400)])
async def test_some_refusals_come_with_the_answer_and_change_nothing(azure: Azure, workers: str, code: str, status: int) -> None:
    making.add_trouble(azure.account, code, zone="eastus", times=1)
    before = scale_set_of(azure, workers).etag
    seen, refused, _ = await azure.call("PATCH", workers, {"sku": {"capacity": 2}})
    assert (seen, refused["error"]["code"]) == (status, code)
    assert (scale_set_of(azure, workers).capacity, scale_set_of(azure, workers).etag) == (0, before)
    assert (await azure.call("PATCH", workers, {"sku": {"capacity": 2}}))[0] == 200


async def test_machines_go_to_the_zones_that_have_capacity(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "zonal", SIZE, zones=("1", "2", "3"))
    making.set_limit(azure.account, 0, size=SIZE, zone="eastus-2")
    await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 4}})
    azure.later(60)
    assert sorted(machine.zone for machine in scale_set.machines.values()) == ["1", "1", "3", "3"]


async def test_a_dry_zone_fails_with_its_own_code(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "zonal", SIZE, zones=("1",))
    making.set_limit(azure.account, 0, size=SIZE, zone="eastus-1")
    _, _, headers = await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 1}})
    azure.later(60)
    error = (await azure.call("GET", headers["azure-asyncoperation"]))[1]["error"]
    assert error["code"] == "ZonalAllocationFailed"
    assert f"the requested VM size {SIZE} in zone 1" in error["message"]


@pytest.mark.parametrize(
    ("nesting", "outer"), [("details", "DeploymentFailed"), ("text", "ReconcileVMSSAgentPoolFailed"), ("json", "DeploymentFailed")]
)
async def test_causes_can_be_inside_of_other_errors(azure: Azure, workers: str, nesting: str, outer: str) -> None:
    azure.conditions(nesting=nesting)
    making.set_limit(azure.account, 0)
    _, _, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 1}})
    azure.later(60)
    error = (await azure.call("GET", headers["azure-asyncoperation"]))[1]["error"]
    assert error["code"] == outer
    assert "AllocationFailed" in str(error.get("details") or error["message"])


async def test_operations_can_be_forgotten(azure: Azure, workers: str) -> None:
    _, _, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 1}})
    azure.account.forget_operations()
    status, refused, _ = await azure.call("GET", headers["azure-asyncoperation"])
    assert (status, refused["error"]["code"]) == (404, "NotFound")
    azure.later(60)
    assert await states(azure, workers) == ["Succeeded"]


async def test_a_lower_capacity_deletes_machines_of_azures_choice(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "many", SIZE, count=3)
    await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 1}})
    azure.later(60)
    assert list(scale_set.machines) == ["0"]


async def test_writes_in_a_locked_group_are_refused(azure: Azure, workers: str) -> None:
    azure.account.group(SUBSCRIPTION, "rg").locked = True
    status, refused, _ = await azure.call("PATCH", workers, {"sku": {"capacity": 1}})
    assert (status, refused["error"]["code"]) == (409, "ScopeLocked")
