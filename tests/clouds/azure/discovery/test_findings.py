from typing import Any

import pytest
from tests.clouds.azure.documents.documents import (
    FAMILY,
    SIZE,
    aks_resources,
    built,
    location_data,
    own_resources,
    reservation_id,
    sku,
    usage_document,
    usages,
)

from gpuscaler.clouds.azure.discovery.findings import conflict_of
from gpuscaler.clouds.azure.discovery.pools import PoolError
from gpuscaler.model.well_known import ARRIVING_TAINT

UPDATE = '`az aks nodepool update --resource-group ml --cluster-name research --name gpu --node-taints "sku=gpu:NoSchedule"`'
SPOT = {"priority": "Spot", "evictionPolicy": "Delete"}


@pytest.mark.parametrize(
    ("pool", "seen"),
    [
        ({"enableAutoScaling": True}, "saw enableAutoScaling true, expected false"),
        ({"nodeLabels": {"kaito.sh/workspace": "falcon"}}, "saw the label kaito.sh/workspace, expected none of gpu-provisioner (KAITO)"),
        ({"tags": {"karpenter.sh_nodepool": "default"}}, "saw the tag karpenter.sh_nodepool, expected none of Karpenter"),
        ({"type": "AvailabilitySet"}, "saw type AvailabilitySet, expected VirtualMachineScaleSets or VirtualMachines"),
        ({"type": "Cloud"}, "saw type Cloud"),
        ({"mode": "Gateway"}, "saw mode Gateway, expected System or User"),
        ({"osType": "Windows"}, "saw osType Windows, expected Linux"),
        ({"scaleDownMode": "Deallocate"}, "saw scaleDownMode Deallocate, expected Delete"),
        ({"scaleSetPriority": "Spot", "scaleSetEvictionPolicy": "Deallocate"}, "saw scaleSetEvictionPolicy Deallocate, expected Delete"),
        ({"powerState": {"code": "Stopped"}}, "saw powerState Stopped, expected Running"),
        ({"provisioningState": "Deleting"}, "it is being deleted"),
    ],
)
def test_an_agent_pool_that_cannot_be_scaled_is_set_aside_with_the_field(pool: dict[str, Any], seen: str) -> None:
    with pytest.raises(PoolError) as raised:
        built(aks_resources(pool))

    assert str(raised.value).startswith(seen)
    assert not raised.value.incomplete


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"overprovision": True}, "saw overprovision true, expected false"),
        ({"overprovision": None}, "saw overprovision true, expected false"),
        ({"profile": {"priority": "Spot", "evictionPolicy": "Deallocate"}}, "saw virtualMachineProfile.evictionPolicy Deallocate"),
        ({"profile": {"priority": "Spot"}}, "saw virtualMachineProfile.evictionPolicy Deallocate"),
        (
            {"resiliencyPolicy": {"automaticZoneRebalancingPolicy": {"enabled": True}}},
            "saw resiliencyPolicy.automaticZoneRebalancingPolicy enabled, expected disabled",
        ),
        ({"resiliencyPolicy": {"zoneAllocationPolicy": {"maxZoneCount": 2}}}, "saw resiliencyPolicy.zoneAllocationPolicy without zones"),
        ({"spotRestorePolicy": {"enabled": True}}, "saw spotRestorePolicy enabled, expected disabled"),
        (
            {"skuProfile": {"vmSizes": [{"name": SIZE}], "automaticSkuMigrationPolicy": {"enabled": True}}},
            "saw skuProfile.automaticSkuMigrationPolicy enabled, expected disabled",
        ),
        ({"profile": {"osProfile": {"windowsConfiguration": {}}}}, "saw osType Windows, expected Linux"),
        ({"provisioningState": "Deleting"}, "it is being deleted"),
    ],
)
def test_a_scale_set_that_cannot_be_scaled_is_set_aside_with_the_field(fields: dict[str, Any], seen: str) -> None:
    assert conflict_of(own_resources(**fields)).startswith(seen)


@pytest.mark.parametrize("policy", ["spotRestorePolicy", "overprovision"])
def test_settings_of_a_scale_set_set_its_agent_pool_aside_as_well(policy: str) -> None:
    on: Any = {"enabled": True} if policy == "spotRestorePolicy" else True

    assert conflict_of(aks_resources(**{policy: on})).startswith(f"saw {policy}")


def test_a_flexible_set_and_one_of_aks_need_not_say_that_they_do_not_overprovision() -> None:
    assert conflict_of(own_resources(orchestrationMode="Flexible", overprovision=None)) == ""
    assert conflict_of(aks_resources(overprovision=None)) == ""


def test_a_pool_of_aks_and_an_own_scale_set_without_problems_have_no_findings() -> None:
    assert built(aks_resources()).warnings == ()
    assert built(own_resources(profile=SPOT), source="tags").warnings == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"singlePlacementGroup": True}, "its singlePlacementGroup is true: at most 100 machines"),
        ({"automaticRepairsPolicy": {"enabled": True}}, "its automaticRepairsPolicy replaces machines"),
        ({"resiliencyPolicy": {"resilientVMCreationPolicy": {"enabled": True}}}, "its resiliencyPolicy.resilientVMCreationPolicy"),
        ({"upgradePolicy": {"mode": "Rolling"}}, "its upgradePolicy.mode Rolling restarts or replaces machines"),
        (
            {"upgradePolicy": {"automaticOSUpgradePolicy": {"enableAutomaticOSUpgrade": True}}},
            "its upgradePolicy.automaticOSUpgradePolicy restarts or replaces machines",
        ),
        ({"profile": {**SPOT, "billingProfile": {"maxPrice": 1.5}}}, "its billingProfile.maxPrice is $1.5, above which nothing is granted"),
        (
            {"profile": {"storageProfile": {"osDisk": {"deleteOption": "Detach"}}}},
            "its osDisk.deleteOption is Detach: each ended machine leaves something",
        ),
        (
            {
                "orchestrationMode": "Flexible",
                "profile": SPOT,
                "priorityMixPolicy": {"baseRegularPriorityCount": 1, "regularPriorityPercentageAboveBase": 30},
            },
            "Azure divides it between markets (priorityMixPolicy): the first 1 on demand, then 30 % of the rest",
        ),
    ],
)
def test_a_setting_that_conflicts_with_an_autoscaler_is_a_warning_with_the_field(fields: dict[str, Any], words: str) -> None:
    (warning,) = built(own_resources(**fields), source="tags").warnings

    assert warning.startswith(words)


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"provisioningState": "Failed"}, "its provisioningState is Failed: its machines run on"),
        ({"scaleSetPriority": "Spot", "spotMaxPrice": 0.5}, "its spotMaxPrice is $0.5"),
        ({"hostGroupID": "/subscriptions/x/hostGroups/y"}, "its hostGroupID puts machines on dedicated hosts"),
        ({"gpuInstanceProfile": "MIG1g"}, "its gpuInstanceProfile MIG1g divides each GPU"),
        ({"gpuProfile": {"driver": "None"}}, "its gpuProfile.driver is None"),
        ({"nodeTaints": None}, "its nodes have GPUs and no taint"),
        (
            {"nodeTaints": [f"{ARRIVING_TAINT}:NoSchedule", "sku=gpu:NoSchedule"]},
            f"its nodeTaints have {ARRIVING_TAINT}, which AKS puts back on nodes that were opened; {UPDATE} removes it",
        ),
        (
            {"capacityReservationGroupID": reservation_id()},
            "its capacityReservationGroupID is reserved, but its scale set is in no",
        ),
    ],
)
def test_a_setting_of_an_agent_pool_is_a_warning_with_the_field(pool: dict[str, Any], words: str) -> None:
    (warning,) = built(aks_resources(pool)).warnings

    assert warning.startswith(words)


def test_the_command_against_a_missing_taint_keeps_the_other_taints() -> None:
    (warning,) = built(aks_resources({"nodeTaints": ["team=ml:PreferNoSchedule"]})).warnings

    assert '--node-taints "team=ml:PreferNoSchedule,sku=gpu:NoSchedule"` adds one' in warning


@pytest.mark.parametrize(("taints", "guarded"), [(["sku=gpu:NoSchedule"], True), (None, False)])
def test_the_advice_about_the_arriving_taint_is_that_of_the_kind_of_pool(taints: list[str] | None, guarded: bool) -> None:
    advice = built(aks_resources({"nodeTaints": taints})).taint_advice

    assert advice.startswith("a pool of AKS cannot have this taint")
    assert advice.endswith("gpuscaler adds it within ten seconds" if guarded else "keeps at least pods without GPUs off")
    assert "--register-with-taints" in built(own_resources()).taint_advice


def test_the_taint_of_spot_nodes_alone_does_not_keep_pods_without_gpus_away() -> None:
    spot = {"scaleSetPriority": "Spot", "nodeTaints": ["kubernetes.azure.com/scalesetpriority=spot:NoSchedule"]}

    assert any("no taint" in warning for warning in built(aks_resources(spot)).warnings)


def test_sizes_with_different_numbers_of_gpus_in_one_scale_set_are_a_warning() -> None:
    large = "Standard_NC48ads_A100_v4"
    sizes = {"vmSizes": [{"name": SIZE}, {"name": large}], "allocationStrategy": "CapacityOptimized"}
    resources = own_resources(size="Mix", orchestrationMode="Flexible", skuProfile=sizes, profile=SPOT)
    (warning,) = built(resources, location_data(sku(), sku(large, vCPUs="48", GPUs="2"))).warnings

    assert warning.startswith("the sizes of its skuProfile have 1, 2 GPUs, and Azure chooses among them")


@pytest.mark.parametrize(
    ("name", "current", "limit", "words"),
    [
        (FAMILY, 0, 0, f"the quota {FAMILY} is 0 vCPUs, and one {SIZE} has 24, so none can be bought"),
        (FAMILY, 192, 200, f"the quota {FAMILY} has 8 of 200 vCPUs left, and one {SIZE} has 24"),
        ("cores", 100, 110, f"the quota Total Regional Cores has 10 of 110 vCPUs left, and one {SIZE} has 24"),
    ],
)
def test_a_quota_without_room_is_reported_and_the_pool_stays(name: str, current: int, limit: int, words: str) -> None:
    pool = built(aks_resources(), location_data(usages=usages(usage_document(name, current, limit))))

    assert pool.warnings == (f"{words}; request a higher quota",)
    assert [offering.count for offering in pool.pool.offerings] == [None]


def test_quotas_of_another_market_or_with_room_are_not_reported() -> None:
    listed = usages(usage_document("lowPriorityCores", 0, 0), usage_document(FAMILY, 0, 24))

    assert built(aks_resources(), location_data(usages=listed)).warnings == ()
