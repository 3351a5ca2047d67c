from typing import Any

import pytest
from tests.clouds.azure.documents.documents import (
    CLUSTER,
    NODE_GROUP,
    SIZE,
    SUBSCRIPTION,
    agent_pool,
    pool_document,
    scale_set,
    set_document,
    set_id,
)

from gpuscaler.clouds.azure.documents.reading import agent_pool_of, cluster_of, machine_of, scale_set_of, seconds_of
from gpuscaler.clouds.azure.documents.resources import MACHINES, Profile, zone_key, zone_label
from gpuscaler.clouds.azure.documents.wire import ReadingError


def test_a_scale_set_is_read_with_its_parts_of_the_id() -> None:
    read = scale_set("workers", zones=["1", "2"], capacity=3)

    assert (read.subscription, read.group, read.name, read.location) == (SUBSCRIPTION, "own", "workers", "eastus")
    assert (read.size, read.capacity, read.zones, read.etag, read.market, read.is_flexible) == (
        SIZE,
        3,
        ("1", "2"),
        '"1"',
        "on-demand",
        False,
    )


def test_a_spot_set_has_its_eviction_and_no_limit_at_minus_one() -> None:
    read = scale_set(profile={"priority": "spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}})

    assert (read.market, read.eviction, read.max_price) == ("spot", "Delete", None)


def test_a_mixed_flexible_set_has_no_size_of_its_own() -> None:
    mixed = {"vmSizes": [{"name": "Standard_A"}, {"name": "Standard_B"}], "allocationStrategy": "LowestPrice"}
    mix = {"baseRegularPriorityCount": 2, "regularPriorityPercentageAboveBase": 50}
    read = scale_set(size="Mix", orchestrationMode="Flexible", skuProfile=mixed, priorityMixPolicy=mix)

    assert (read.size, read.sizes, read.strategy) == ("", ("Standard_A", "Standard_B"), "LowestPrice")
    assert (read.mix, read.is_flexible) == ((2, 50), True)


def test_nulls_in_a_document_count_as_missing_fields() -> None:
    document = set_document(zones=())
    document |= {"zones": None, "tags": None}
    document["properties"] |= {"spotRestorePolicy": None, "resiliencyPolicy": {"automaticZoneRebalancingPolicy": None}}

    assert scale_set_of(document).tags == {}


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"id": "/subscriptions/x"}, "saw the id"),
        ({"sku": {"name": SIZE}}, "sku.capacity None"),
        ({"sku": {"name": SIZE, "capacity": -1}}, "sku.capacity -1"),
        ({"sku": {"name": SIZE, "capacity": "many"}}, "$.sku.capacity"),
        ({"location": None}, "no location"),
        ({"zones": "1"}, "$.zones"),
    ],
)
def test_an_odd_scale_set_is_refused_with_what_was_seen(changes: dict[str, Any], seen: str) -> None:
    with pytest.raises(ReadingError) as raised:
        scale_set_of({**set_document(), **changes})

    assert seen in str(raised.value)
    assert "expected" in str(raised.value)


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_what_is_no_object_is_refused(document: object) -> None:
    for read in (scale_set_of, machine_of, cluster_of, lambda entry: agent_pool_of(entry, CLUSTER)):
        with pytest.raises(ReadingError):
            read(document)


def test_a_revision_changes_with_the_model_of_machines_and_not_with_the_capacity() -> None:
    first = scale_set(capacity=1).revision

    assert scale_set(capacity=5).revision == first
    assert scale_set(profile={"storageProfile": {"imageReference": {"id": "other"}}}).revision != first


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ({"storageProfile": {"osDisk": {"deleteOption": "Detach"}}}, "osDisk.deleteOption"),
        ({"storageProfile": {"dataDisks": [{"lun": 1, "deleteOption": "detach"}]}}, "dataDisks[lun 1].deleteOption"),
        (
            {"networkProfile": {"networkInterfaceConfigurations": [{"name": "nic", "properties": {"deleteOption": "Detach"}}]}},
            "networkInterfaceConfigurations[nic].deleteOption",
        ),
    ],
)
def test_what_outlives_a_machine_is_named_by_its_field(profile: dict[str, Any], field: str) -> None:
    assert scale_set(profile=profile).kept == (field,)


def test_an_agent_pool_is_read_with_the_cluster_it_is_of() -> None:
    read = agent_pool("gpu", count=4, scaleSetPriority="Spot", spotMaxPrice=-1, availabilityZones=["2"], nodeLabels={"team": "ml"})

    assert (read.cluster, read.group, read.node_resource_group, read.location) == ("research", "ml", NODE_GROUP, "eastus")
    assert (read.count, read.size, read.market, read.zones, read.labels) == (4, SIZE, "spot", ("2",), {"team": "ml"})
    assert (read.max_price, read.etag, read.autoscaling, read.max_pods) == (None, "1", False, 110)


def test_a_pool_of_virtual_machines_counts_its_profiles() -> None:
    manual = [{"size": "Standard_A", "count": 2}, {"size": "Standard_B", "count": 3}, {"size": "standard_a", "count": 1}]
    read = agent_pool(type="VirtualMachines", count=9, virtualMachinesProfile={"scale": {"manual": manual}})

    assert (read.kind, read.size, read.count) == (MACHINES, "", 6)
    assert read.profiles == (Profile("Standard_A", 3), Profile("Standard_B", 3))


def test_a_pool_of_virtual_machines_with_an_autoscale_profile_is_scaled_by_aks() -> None:
    profile = {"scale": {"manual": [], "autoscale": [{"size": "Standard_A", "minCount": 1, "maxCount": 3}]}}

    assert agent_pool(type="VirtualMachines", virtualMachinesProfile=profile).autoscaling


@pytest.mark.parametrize("count", [None, -1, 1.5, "3"])
def test_a_pool_without_a_usable_count_is_refused(count: object) -> None:
    with pytest.raises(ReadingError):
        agent_pool_of(pool_document(count=count), CLUSTER)


def test_a_cluster_is_read_with_its_lock_and_its_provisioning() -> None:
    document = {
        "id": CLUSTER.id.upper(),
        "name": "research",
        "location": "East US",
        "properties": {
            "nodeResourceGroup": NODE_GROUP,
            "nodeResourceGroupProfile": {"restrictionLevel": "ReadOnly"},
            "nodeProvisioningProfile": {"mode": "Auto"},
        },
    }
    read = cluster_of(document)

    assert (read.location, read.node_resource_group, read.locked, read.provisions_nodes) == ("eastus", NODE_GROUP, True, True)


def uniform(**properties: object) -> dict[str, Any]:
    return {
        "id": f"{set_id('aks-gpu-12345678-vmss')}/virtualMachines/10",
        "name": "aks-gpu-12345678-vmss_10",
        "instanceId": "10",
        "sku": {"name": SIZE, "tier": "Standard"},
        "zones": ["2"],
        "properties": {"provisioningState": "Succeeded", **properties},
    }


def test_a_machine_of_a_uniform_set_is_read_with_its_power_state() -> None:
    view = {"statuses": [{"code": "ProvisioningState/succeeded", "level": "Info"}, {"code": "PowerState/running", "level": "Info"}]}
    read = machine_of(
        uniform(
            instanceView=view,
            timeCreated="2026-11-26T06:00:00.1234567+00:00",
            osProfile={"computerName": "aks-gpu-12345678-vmss00000a"},
            protectionPolicy={"protectFromScaleIn": True},
        )
    )

    assert (read.instance_id, read.size, read.zone, read.state, read.power, read.market) == ("10", SIZE, "2", "Succeeded", "running", "")
    assert (read.computer_name, read.protected, round(read.created)) == ("aks-gpu-12345678-vmss00000a", True, 1_795_672_800)


def test_a_machine_that_was_never_allocated_has_no_power_and_its_cause() -> None:
    status = {"code": "ProvisioningState/failed/AllocationFailed", "level": "Error", "message": "no capacity in this region"}
    read = machine_of(uniform(provisioningState="Failed", instanceView={"statuses": [status]}))

    assert (read.state, read.power, read.fault_code, read.fault) == ("Failed", "", "AllocationFailed", "no capacity in this region")


def test_a_machine_whose_script_failed_has_its_text() -> None:
    failed = {"code": "ProvisioningState/failed/50", "level": "Error", "message": "VMExtensionProvisioningError: exit 50"}
    view = {"statuses": [{"code": "PowerState/running"}], "extensions": [{"name": "vmssCSE", "statuses": [failed]}, {"name": "other"}]}
    read = machine_of(uniform(provisioningState="Failed", instanceView=view))

    assert (read.power, read.extensions_text) == ("running", "vmssCSE: VMExtensionProvisioningError: exit 50")


def test_a_machine_of_a_flexible_set_has_its_own_size_and_market() -> None:
    read = machine_of(
        {
            "id": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/own/providers/Microsoft.Compute/virtualMachines/workers_1",
            "name": "workers_1",
            "properties": {
                "hardwareProfile": {"vmSize": SIZE},
                "priority": "Spot",
                "virtualMachineScaleSet": {"id": set_id("workers", "own")},
            },
        }
    )

    assert (read.instance_id, read.size, read.market, read.scale_set_id) == ("workers_1", SIZE, "spot", set_id("workers", "own"))


@pytest.mark.parametrize("text", ["", None, "yesterday", "2026-11-26T06:00:00"])
def test_a_date_that_cannot_be_read_is_unknown(text: str | None) -> None:
    assert seconds_of(text) == 0.0


def test_zones_are_named_as_nodes_name_them() -> None:
    assert (zone_key("eastus", "2"), zone_label("eastus", "2")) == ("eastus-2", "eastus-2")
    assert (zone_key("eastus", ""), zone_label("eastus", "")) == ("eastus-0", "0")
