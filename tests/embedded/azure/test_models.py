"""Answers have no field that the models of Azure's own clients lack: those are made from the published REST specification."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, making

compute = pytest.importorskip("azure.mgmt.compute.models", reason="azure-mgmt-compute is not installed: make setup brings it")
aks = pytest.importorskip("azure.mgmt.containerservice.models", reason="azure-mgmt-containerservice is not installed: make setup brings it")

#: Fields that belong to every resource of ARM and that some models leave out, and values that callers define.
_KNOWN = {"VirtualMachineScaleSetVM": {"etag"}}


def unknown(value: Any, where: str = "") -> Iterator[str]:
    """Fields of a model's instance that the model does not declare."""
    if isinstance(value, list):
        for item in value:
            yield from unknown(item, where)
        return
    fields = getattr(value, "_attr_to_rest_field", None)
    if fields is None:
        return
    names = {field._rest_name: attribute for attribute, field in fields.items()}
    for key in value:
        if key not in names:
            if key not in _KNOWN.get(type(value).__name__, set()):
                yield f"{where}{type(value).__name__}.{key}"
        else:
            yield from unknown(getattr(value, names[key]), f"{where}{key}/")


async def shown(azure: Azure) -> dict[str, tuple[Any, str]]:
    """A path for each kind of answer, with its model; lists by their first item."""
    account = azure.account
    group = making.create_reservation_group(account, "rg", "reserved", {(SIZE, "1"): 1})
    cluster = making.create_cluster(account, "aks", "rg", tags={"a": "b"})
    making.create_pool(account, cluster, "spot", SIZE, spot=True, zones=("1",), count=1, labels={"a": "b"}, taints=("sku=gpu:NoSchedule",))
    making.create_pool(account, cluster, "mixed", {SIZE: 1})
    making.create_pool(account, cluster, "res", SIZE, zones=("1",), capacityReservationGroupID=group.id)
    flex = making.create_scale_set(account, "rg", "flex", SIZE, count=1, spot=True, flexible=True)
    making.restrict(account, SIZE, ("3",))
    making.add_trouble(account, "VMExtensionProvisioningError", market="on-demand", zone="eastus-0")
    broken = making.create_scale_set(account, "rg", "broken", SIZE)
    await azure.call("PATCH", broken.id, {"sku": {"capacity": 1}})
    making.add_trouble(account, "AllocationFailed", times=1)
    pool = f"{cluster.id}/agentPools"
    await azure.call("PUT", f"{pool}/res", {"properties": {"count": 1}})
    azure.later(60)
    compute_path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute"
    scale_set = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{cluster.node_group}/providers/Microsoft.Compute/virtualMachineScaleSets"
    view = "api-version=x&$expand=instanceView"
    return {
        f"{scale_set}/aks-spot-{cluster.hash}-vmss": (compute.VirtualMachineScaleSet, ""),
        flex.id: (compute.VirtualMachineScaleSet, ""),
        f"{scale_set}/aks-spot-{cluster.hash}-vmss/virtualMachines?{view}": (compute.VirtualMachineScaleSetVM, "value"),
        f"{broken.id}/virtualMachines?{view}": (compute.VirtualMachineScaleSetVM, "value"),
        f"{compute_path}/virtualMachines?{view}": (compute.VirtualMachine, "value"),
        f"{compute_path}/skus": (compute.ResourceSku, "value"),
        f"{compute_path}/locations/eastus/usages": (compute.Usage, "value"),
        f"{group.id}?{view}": (compute.CapacityReservationGroup, ""),
        f"{group.id}/capacityReservations/reserved-0?{view}": (compute.CapacityReservation, ""),
        f"{broken.id}/instanceView": (compute.VirtualMachineScaleSetInstanceView, ""),
        cluster.id: (aks.ManagedCluster, ""),
        f"{pool}/spot": (aks.AgentPool, ""),
        f"{pool}/mixed": (aks.AgentPool, ""),
        f"{pool}/res": (aks.AgentPool, ""),
        f"{pool}/spot/machines": (aks.Machine, "value"),
    }


async def test_answers_have_only_fields_of_the_specification(azure: Azure) -> None:
    wrong = []
    for path, (model, key) in (await shown(azure)).items():
        status, content, _ = await azure.call("GET", path)
        assert status == 200, path
        items = content[key] if key else [content]
        assert items, path
        wrong += [f"{path}: {name}" for item in items for name in unknown(model(item))]
    assert sorted(set(wrong)) == []
