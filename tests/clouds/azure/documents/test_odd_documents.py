"""One value of a document is replaced by something odd: the document is read or refused, and nothing else happens."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from tests.clouds.azure.documents.documents import (
    CLUSTER,
    NODE_GROUP,
    SIZE,
    pool_document,
    reservation_documents,
    restriction,
    set_document,
    set_id,
    sku_document,
    usage_document,
)

from gpuscaler.clouds.azure.documents.reading import agent_pool_of, cluster_of, machine_of, scale_set_of
from gpuscaler.clouds.azure.documents.reservations import reservations_of
from gpuscaler.clouds.azure.documents.skus import sku_of
from gpuscaler.clouds.azure.documents.usages import usages_of
from gpuscaler.clouds.azure.documents.wire import ReadingError

ODD: tuple[object, ...] = (None, True, -1, 1e400, "", "odd", [], {}, [None], {"odd": None}, "x" * 100_000)
FULL_SET = set_document(
    zones=["1"],
    tags={"team": "ml"},
    profile={
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": -1},
        "capacityReservation": {"capacityReservationGroup": {"id": "x"}},
        "storageProfile": {"osDisk": {"osType": "Linux", "diskSizeGB": 64, "deleteOption": "Detach"}, "dataDisks": [{"lun": 0}]},
        "networkProfile": {"networkInterfaceConfigurations": [{"name": "nic", "properties": {"ipConfigurations": [{"properties": {}}]}}]},
        "osProfile": {"computerNamePrefix": "x"},
    },
    skuProfile={"vmSizes": [{"name": SIZE}], "allocationStrategy": "LowestPrice", "automaticSkuMigrationPolicy": {"enabled": False}},
    priorityMixPolicy={"baseRegularPriorityCount": 1},
    resiliencyPolicy={"automaticZoneRebalancingPolicy": {"enabled": False}, "zoneAllocationPolicy": {"maxZoneCount": 1}},
    spotRestorePolicy={"enabled": False},
    upgradePolicy={"mode": "Manual", "automaticOSUpgradePolicy": {"enableAutomaticOSUpgrade": False}},
)
FULL_POOL = pool_document(
    type="VirtualMachines",
    virtualMachinesProfile={"scale": {"manual": [{"size": SIZE, "count": 1}], "autoscale": []}},
    virtualMachineNodesStatus=[{"size": SIZE, "count": 1}],
    availabilityZones=["1"],
    nodeLabels={"team": "ml"},
    tags={"team": "ml"},
    spotMaxPrice=-1,
    gpuProfile={"driver": "Install", "nvidia": {"managementMode": "Managed"}},
)
CLUSTER_DOCUMENT = {
    "id": CLUSTER.id,
    "name": CLUSTER.name,
    "location": "eastus",
    "properties": {
        "nodeResourceGroup": NODE_GROUP,
        "nodeResourceGroupProfile": {"restrictionLevel": "ReadOnly"},
        "nodeProvisioningProfile": {"mode": "Auto"},
        "powerState": {"code": "Running"},
    },
}
STATUS = {"code": "ProvisioningState/failed/AllocationFailed", "level": "Error", "message": "no capacity"}
MACHINE = {
    "id": f"{set_id('workers')}/virtualMachines/0",
    "name": "workers_0",
    "instanceId": "0",
    "sku": {"name": SIZE},
    "zones": ["1"],
    "tags": {"team": "ml"},
    "properties": {
        "provisioningState": "Failed",
        "timeCreated": "2026-11-26T06:00:00Z",
        "hardwareProfile": {"vmSize": SIZE},
        "osProfile": {"computerName": "workers000000"},
        "instanceView": {"statuses": [STATUS], "extensions": [{"name": "vmssCSE", "statuses": [STATUS], "substatuses": [STATUS]}]},
        "protectionPolicy": {"protectFromScaleIn": True},
    },
}
GROUP, RESERVED = reservation_documents(5, 2, zone="1")
READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "scale set": (FULL_SET, scale_set_of),
    "agent pool": (FULL_POOL, lambda document: agent_pool_of(document, CLUSTER)),
    "cluster": (CLUSTER_DOCUMENT, cluster_of),
    "machine": (MACHINE, machine_of),
    "size": (sku_document(restrictions=[restriction("1")]), lambda document: sku_of(document, "eastus")),
    "usage": (usage_document("cores", 1, 2), lambda document: usages_of([document])),
    "reservation group": (GROUP, lambda document: reservations_of(document, RESERVED)),
    "reservation": (RESERVED[0], lambda document: reservations_of(GROUP, [document])),
}


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    copy = deepcopy(document)
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copy


@pytest.mark.parametrize("kind", READERS)
def test_an_odd_value_anywhere_is_read_or_refused(kind: str) -> None:
    document, read = READERS[kind]
    read(document)
    for path in paths(document):
        for value in ODD:
            try:
                read(changed(document, path, value))
            except ReadingError as error:
                assert "expected" in str(error)  # noqa: PT017
                assert len(str(error)) < 1000  # noqa: PT017
