"""Scale sets from outside: by Azure's own client where it shows what matters, else by plain HTTP."""

from typing import Any

import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, making

SETS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets"


def body(capacity: int, **more: Any) -> dict[str, Any]:
    profile = {"priority": "Spot", "evictionPolicy": "Delete"}
    properties = {"orchestrationMode": "Uniform", "overprovision": False, "virtualMachineProfile": profile, **more}
    return {"location": "East US", "sku": {"name": SIZE, "capacity": capacity}, "properties": properties}


async def test_a_scale_set_is_made_grows_and_is_listed_by_azures_client(azure: Azure) -> None:
    making.create_group(azure.account, "rg")
    client = azure.compute()
    poller = await client.virtual_machine_scale_sets.begin_create_or_update("rg", "workers", body(2))
    azure.later(60)
    made = await poller.result()
    assert (made.provisioning_state if hasattr(made, "provisioning_state") else made["properties"]["provisioningState"]) == "Succeeded"
    machines = [machine async for machine in client.virtual_machine_scale_set_vms.list("rg", "workers", expand="instanceView")]
    assert [(machine.instance_id, machine.name) for machine in machines] == [("0", "workers_0"), ("1", "workers_1")]
    assert [status.code for status in machines[0].instance_view.statuses] == ["ProvisioningState/succeeded", "PowerState/running"]
    sets = [scale_set.name async for scale_set in client.virtual_machine_scale_sets.list("RG")]
    assert sets == ["workers"]


async def test_a_write_is_accepted_with_its_operation_and_a_new_etag(azure: Azure, workers: str) -> None:
    status, before, headers = await azure.call("GET", workers)
    assert status == 200
    assert headers["etag"] == before["etag"]
    status, after, headers = await azure.call("PUT", workers, {"location": "eastus", "sku": {"capacity": 3}}, If_Match=before["etag"])
    assert status == 200
    assert after["sku"]["capacity"] == 3
    assert after["properties"]["provisioningState"] == "Updating"
    assert after["etag"] != before["etag"]
    assert headers["retry-after"] == "0"
    url = headers["azure-asyncoperation"]
    assert (await azure.call("GET", url))[1]["status"] == "InProgress"
    azure.later(60)
    status, operation, _ = await azure.call("GET", url)
    assert (status, operation["status"]) == (200, "Succeeded")
    assert (await azure.call("GET", workers))[1]["properties"]["provisioningState"] == "Succeeded"


async def test_an_old_etag_is_refused_and_changes_nothing(azure: Azure, workers: str) -> None:
    old = (await azure.call("GET", workers))[1]["etag"]
    await azure.call("PATCH", workers, {"sku": {"capacity": 1}}, If_Match=old)
    status, refused, _ = await azure.call("PATCH", workers, {"sku": {"capacity": 5}}, If_Match=old)
    assert (status, refused["error"]["code"]) == (412, "PreconditionFailed")
    assert (await azure.call("GET", workers))[1]["sku"]["capacity"] == 1


async def test_an_allocation_that_fails_ends_the_operation_and_leaves_failed_instances(azure: Azure, workers: str) -> None:
    making.set_limit(azure.account, 3, market="spot", size=SIZE)
    _, _, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 8}})
    azure.later(60)
    _, operation, _ = await azure.call("GET", headers["azure-asyncoperation"])
    assert (operation["status"], operation["error"]["code"]) == ("Failed", "AllocationFailed")
    _, shown, _ = await azure.call("GET", workers)
    assert (shown["sku"]["capacity"], shown["properties"]["provisioningState"]) == (8, "Failed")
    _, listed, _ = await azure.call("GET", f"{workers}/virtualMachines?$expand=instanceView&api-version=2024-11-01")
    states = [machine["properties"]["provisioningState"] for machine in listed["value"]]
    assert states == ["Succeeded"] * 3 + ["Failed"] * 5
    never_allocated = listed["value"][-1]["properties"]["instanceView"]["statuses"]
    assert [status["code"] for status in never_allocated] == ["ProvisioningState/failed/AllocationFailed"]


async def test_a_failed_operation_raises_in_azures_client(azure: Azure, workers: str) -> None:
    from azure.core.exceptions import HttpResponseError

    assert workers

    making.add_trouble(azure.account, "OverconstrainedAllocationRequest", market="spot")
    poller = await azure.compute().virtual_machine_scale_sets.begin_update("rg", "workers", {"sku": {"capacity": 1}})
    azure.later(60)
    with pytest.raises(HttpResponseError, match="OverconstrainedAllocationRequest"):
        await poller.result()


async def test_failed_instances_can_leave_no_trace_but_the_capacity(azure: Azure, workers: str) -> None:
    azure.conditions(failed="vanish")
    making.set_limit(azure.account, 3, market="spot", size=SIZE)
    await azure.call("PATCH", workers, {"sku": {"capacity": 8}})
    azure.later(60)
    assert (await azure.call("GET", workers))[1]["sku"]["capacity"] == 8
    assert len((await azure.call("GET", f"{workers}/virtualMachines"))[1]["value"]) == 3


async def test_machines_are_deleted_by_id_and_the_capacity_falls_at_once(azure: Azure, workers: str) -> None:
    await azure.call("PATCH", workers, {"sku": {"capacity": 3}})
    azure.later(60)
    status, _, headers = await azure.call("POST", f"{workers}/delete", {"instanceIds": ["0", "2"]})
    assert status == 202
    assert (await azure.call("GET", workers))[1]["sku"]["capacity"] == 1
    assert (await azure.call("GET", headers["location"]))[0] == 202
    _, listed, _ = await azure.call("GET", f"{workers}/virtualMachines")
    assert [machine["properties"]["provisioningState"] for machine in listed["value"]] == ["Deleting", "Succeeded", "Deleting"]
    azure.later(40)
    assert (await azure.call("GET", headers["location"]))[0] == 200
    assert (await azure.call("GET", headers["azure-asyncoperation"]))[1]["status"] == "Succeeded"
    assert [machine["instanceId"] for machine in (await azure.call("GET", f"{workers}/virtualMachines"))[1]["value"]] == ["1"]


async def test_azures_client_waits_for_a_deletion(azure: Azure) -> None:
    making.create_scale_set(azure.account, "rg", "others", SIZE, count=2)
    client = azure.compute()
    poller = await client.virtual_machine_scale_sets.begin_delete_instances("rg", "others", {"instanceIds": ["1"]}, force_deletion=True)
    azure.later(10)
    await poller.result()
    assert azure.account.scale_set(SUBSCRIPTION, "rg", "others").capacity == 1


@pytest.mark.parametrize("wanted", [None, [], ["0", "99"]])
async def test_a_deletion_without_ids_or_with_an_unknown_one_fails_as_a_whole(azure: Azure, workers: str, wanted: Any) -> None:
    making.create_scale_set(azure.account, "rg", "others", SIZE, count=2)
    path = workers.replace("workers", "others")
    status, refused, _ = await azure.call("POST", f"{path}/delete", {} if wanted is None else {"instanceIds": wanted})
    assert (status, refused["error"]["code"]) == (400, "InvalidParameter")
    assert azure.account.scale_set(SUBSCRIPTION, "rg", "others").capacity == 2


async def test_machines_of_a_flexible_scale_set_are_virtual_machines(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "rg", "flex", SIZE, count=2, spot=True, flexible=True)
    making.create_scale_set(azure.account, "rg", "other", SIZE, count=1, flexible=True)
    text = f"'virtualMachineScaleSet/id' eq '{scale_set.id.lower()}'"
    client = azure.compute()
    machines = [machine async for machine in client.virtual_machines.list("rg", filter=text, expand="instanceView")]
    assert len(machines) == 2
    assert {(machine.priority, machine.hardware_profile.vm_size) for machine in machines} == {("Spot", SIZE)}
    assert machines[0].id.endswith(f"/providers/Microsoft.Compute/virtualMachines/{machines[0].name}")
    assert machines[0].instance_view.statuses[1].code == "PowerState/running"
    status, _, _ = await azure.call("DELETE", f"{machines[0].id}?forceDeletion=true&api-version=2024-11-01")
    assert status == 202
    assert scale_set.capacity == 1


async def test_quotas_refuse_a_write_with_their_figures(azure: Azure, workers: str) -> None:
    making.set_quota(azure.account, "StandardNCADSA100v4Family", 200)
    making.create_scale_set(azure.account, "rg", "running", SIZE, count=8)
    path = workers.replace("workers", "running")
    status, refused, _ = await azure.call("PATCH", path, {"sku": {"capacity": 9}})
    assert (status, refused["error"]["code"]) == (409, "OperationNotAllowed")
    assert "StandardNCADSA100v4Family Cores quota" in refused["error"]["message"]
    assert "Current Limit: 200, Current Usage: 192, Additional Required: 24" in refused["error"]["message"]
    assert azure.account.scale_set(SUBSCRIPTION, "rg", "running").capacity == 8


async def test_spot_counts_against_low_priority_cores_only(azure: Azure, workers: str) -> None:
    making.set_quota(azure.account, "StandardNCADSA100v4Family", 0)
    assert (await azure.call("PATCH", workers, {"sku": {"capacity": 1}}))[0] == 200
    making.set_quota(azure.account, "lowPriorityCores", 24)
    status, refused, _ = await azure.call("PATCH", workers, {"sku": {"capacity": 2}})
    assert status == 409
    assert "exceeding approved LowPriorityCores quota" in refused["error"]["message"]
    _, usages, _ = await azure.call("GET", f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/eastus/usages")
    rows = {row["name"]["value"]: (row["currentValue"], row["limit"]) for row in usages["value"]}
    assert rows["lowPriorityCores"] == (24, 24)
    assert rows["cores"][0] == 0


async def test_a_quota_can_also_fail_the_operation(azure: Azure, workers: str) -> None:
    azure.conditions(quota="operation")
    making.set_quota(azure.account, "lowPriorityCores", 0)
    status, _, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 2}})
    assert status == 200
    azure.later(60)
    assert "Current Limit: 0" in (await azure.call("GET", headers["azure-asyncoperation"]))[1]["error"]["message"]


async def test_resource_skus_show_gpus_families_and_restrictions(azure: Azure) -> None:
    making.restrict(azure.account, SIZE, ("2",))
    skus = {sku.name: sku async for sku in azure.compute().resource_skus.list(filter="location eq 'eastus'")}
    sku = skus[SIZE]
    values = {capability.name: capability.value for capability in sku.capabilities}
    assert (values["GPUs"], values["vCPUs"], values["MemoryGB"], sku.family) == ("1", "24", "220", "StandardNCADSA100v4Family")
    assert sorted(sku.location_info[0].zones) == ["1", "2", "3"]
    assert sku.restrictions[0].restriction_info.zones == ["2"]
    assert skus["Premium_LRS"].resource_type == "disks"


@pytest.mark.parametrize(
    ("path", "version", "expected"),
    [
        (f"{SETS}/workers", "", (400, "MissingApiVersionParameter")),
        (f"{SETS}/none", "x", (404, "ResourceNotFound")),
        (SETS.replace("rg", "none"), "x", (404, "ResourceGroupNotFound")),
        (SETS.replace(SUBSCRIPTION, "none"), "x", (404, "SubscriptionNotFound")),
        (f"{SETS}/WORKERS".upper(), "x", (200, "")),
    ],
)
async def test_paths_are_compared_without_case_and_wrong_ones_are_named(
    azure: Azure, workers: str, path: str, version: str, expected: tuple[int, str]
) -> None:
    assert workers
    status, content, _ = await azure.call("GET", path, version=version)
    assert (status, content.get("error", {}).get("code", "")) == expected


async def test_lists_come_in_pages_and_with_ids_in_another_spelling(azure: Azure) -> None:
    making.create_scale_set(azure.account, "rg", "many", SIZE, count=5)
    azure.conditions(page=2, spelling="lower")
    machines = [machine async for machine in azure.compute().virtual_machine_scale_set_vms.list("rg", "many")]
    assert [machine.instance_id for machine in machines] == ["0", "1", "2", "3", "4"]
    assert machines[0].id == machines[0].id.lower()
    azure.conditions(spelling="group")
    machines = [machine async for machine in azure.compute().virtual_machine_scale_set_vms.list("rg", "many")]
    assert "/resourceGroups/RG/" in machines[0].id


async def test_what_is_secret_can_be_written_and_is_never_shown(azure: Azure) -> None:
    making.create_group(azure.account, "rg")
    profile = {
        "osProfile": {"adminUsername": "azureuser", "adminPassword": "secret", "customData": "secret"},
        "extensionProfile": {"extensions": [{"name": "vmssCSE", "properties": {"protectedSettings": {"commandToExecute": "secret"}}}]},
    }
    made = await azure.call("PUT", f"{SETS}/workers", body(0, virtualMachineProfile=profile))
    shown = await azure.call("GET", f"{SETS}/workers")
    assert made[0] == 201
    assert shown[1]["properties"]["virtualMachineProfile"]["osProfile"] == {"adminUsername": "azureuser"}
    assert "secret" not in f"{made}{shown}"
