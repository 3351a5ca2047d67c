"""Documents as the examples of Azure's REST specification have them, and what is read from them."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.azure.discovery.offerings import LocationData
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.discovery.pools import AzurePool, pool_of
from gpuscaler.clouds.azure.documents.reading import agent_pool_of, scale_set_of
from gpuscaler.clouds.azure.documents.reservations import Reservation, reservations_of
from gpuscaler.clouds.azure.documents.resources import AgentPool, Cluster, ScaleSet
from gpuscaler.clouds.azure.documents.skus import Sku, sku_of
from gpuscaler.clouds.azure.documents.usages import Usage, usages_of
from gpuscaler.clouds.pricing import PriceToUse
from gpuscaler.model.azure_names import fold_id

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
NODE_GROUP = "MC_ml_research_eastus"
SIZE, SMALL, CPU = "Standard_NC24ads_A100_v4", "Standard_NC4as_T4_v3", "Standard_D4s_v5"
FAMILY = "StandardNCADSA100v4Family"
CLUSTER = Cluster(
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/ml/providers/Microsoft.ContainerService/managedClusters/research",
    SUBSCRIPTION,
    "ml",
    "research",
    "eastus",
    NODE_GROUP,
)


def set_id(name: str, group: str = NODE_GROUP) -> str:
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachineScaleSets/{name}"


def set_document(
    name: str = "workers",
    *,
    size: str = SIZE,
    capacity: object = 2,
    zones: Iterable[str] = (),
    tags: Mapping[str, str] | None = None,
    profile: Mapping[str, object] | None = None,
    group: str = "own",
    **properties: object,
) -> dict[str, Any]:
    """A scale set; ``properties`` are its properties, ``profile`` those of its machines."""
    return {
        "id": set_id(name, group),
        "name": name,
        "type": "Microsoft.Compute/virtualMachineScaleSets",
        "location": "eastus",
        "etag": '"1"',
        "sku": {"name": size, "tier": "Standard", "capacity": capacity},
        "tags": dict(tags or {}),
        **({"zones": list(zones)} if zones else {}),
        "properties": {
            "singlePlacementGroup": False,
            "orchestrationMode": "Uniform",
            "overprovision": False,
            "upgradePolicy": {"mode": "Manual"},
            "provisioningState": "Succeeded",
            "virtualMachineProfile": {
                "storageProfile": {"osDisk": {"osType": "Linux", "diskSizeGB": 128}},
                **(profile or {}),
            },
            **properties,
        },
    }


def pool_document(name: str = "gpu", *, size: str = SIZE, count: object = 2, **properties: object) -> dict[str, Any]:
    """An agent pool; ``properties`` are its properties."""
    return {
        "id": f"{CLUSTER.id}/agentPools/{name}",
        "name": name,
        "type": "Microsoft.ContainerService/managedClusters/agentPools",
        "properties": {
            "count": count,
            "vmSize": size,
            "osDiskSizeGB": 128,
            "osType": "Linux",
            "maxPods": 110,
            "type": "VirtualMachineScaleSets",
            "enableAutoScaling": False,
            "scaleDownMode": "Delete",
            "mode": "User",
            "nodeTaints": ["sku=gpu:NoSchedule"],
            "provisioningState": "Succeeded",
            "powerState": {"code": "Running"},
            "eTag": "1",
            **properties,
        },
    }


def sku_document(
    name: str = SIZE, *, restrictions: Iterable[object] = (), zones: Iterable[str] = "123", **capabilities: object
) -> dict[str, Any]:
    """A size in eastus; ``capabilities`` replace those of the A100's smallest size."""
    own = {"vCPUs": "24", "MemoryGB": "220", "GPUs": "1", "LowPriorityCapable": "True", "CpuArchitectureType": "x64"}
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "family": FAMILY,
        "locations": ["eastus"],
        "locationInfo": [{"location": "eastus", "zones": list(zones), "zoneDetails": []}],
        "capabilities": [{"name": key, "value": value} for key, value in {**own, **capabilities}.items() if value is not None],
        "restrictions": list(restrictions),
    }


def restriction(*zones: str, location: str = "eastus") -> dict[str, Any]:
    """A restriction to zones, or of the whole location."""
    info = {"locations": [location], **({"zones": list(zones)} if zones else {})}
    kind = "Zone" if zones else "Location"
    return {"type": kind, "values": [location], "restrictionInfo": info, "reasonCode": "NotAvailableForSubscription"}


def usage_document(name: str, current: object, limit: object) -> dict[str, Any]:
    return {"limit": limit, "unit": "Count", "currentValue": current, "name": {"value": name, "localizedValue": name}}


def reservation_id(name: str = "reserved") -> str:
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/ml/providers/Microsoft.Compute/capacityReservationGroups/{name}"


def reservation_documents(
    capacity: int, allocated: int, *, size: str = SIZE, zone: str = "", state: str = "Succeeded"
) -> tuple[Any, list[Any]]:
    """(a group with its instance view, the list of its only reservation)."""
    machines = [{"id": f"{set_id('aks-gpu-12345678-vmss')}/virtualMachines/{number}"} for number in range(allocated)]
    view = {"name": "a100", "utilizationInfo": {"virtualMachinesAllocated": machines}, "statuses": []}
    group = {"id": reservation_id(), "properties": {"instanceView": {"capacityReservations": [view]}}}
    listed = {
        "id": f"{reservation_id()}/capacityReservations/a100",
        "name": "a100",
        "sku": {"name": size, "capacity": capacity},
        **({"zones": [zone]} if zone else {}),
        "properties": {"provisioningState": state},
    }
    return group, [listed]


def reservations(capacity: int, allocated: int, **fields: str) -> tuple[Reservation, ...]:
    return reservations_of(*reservation_documents(capacity, allocated, **fields))


def scale_set(*args: Any, **fields: Any) -> ScaleSet:
    return scale_set_of(set_document(*args, **fields))


def agent_pool(*args: Any, **fields: Any) -> AgentPool:
    return agent_pool_of(pool_document(*args, **fields), CLUSTER)


def sku(name: str = SIZE, **fields: Any) -> Sku:
    read = sku_of(sku_document(name, **fields), "eastus")
    assert read is not None
    return read


def usages(*documents: object) -> dict[str, Usage]:
    return usages_of(documents)


class Prices:
    """Prices of one list: $4 on demand, half of it spot."""

    def __init__(self) -> None:
        self.kinds: list[InstanceType] = []
        self.refreshed: list[tuple[frozenset[str], frozenset[str]]] = []

    def price_of(self, size: str, market: str, location: str, kind: InstanceType | None = None) -> PriceToUse:  # noqa: ARG002
        assert kind is not None
        self.kinds.append(kind)
        return PriceToUse(2.0 if market == "spot" else 4.0)

    async def refresh(self, locations: Iterable[str], sizes: Iterable[str]) -> Mapping[str, str]:
        self.refreshed.append((frozenset(locations), frozenset(sizes)))
        return {}


def location_data(*skus: Sku, **fields: Any) -> LocationData:
    """What is known of eastus; by default the size of the documents."""
    listed = skus or (sku(), sku(SMALL, vCPUs="4", MemoryGB="28"))
    return LocationData("eastus", {fold_id(listed_sku.name): listed_sku for listed_sku in listed}, **fields)


def aks_resources(pool: Mapping[str, object] | None = None, *, capacity: int = 2, locked: bool = False, **set_fields: Any) -> PoolResources:
    """An agent pool with its scale set; ``pool`` are properties of the first, ``set_fields`` arguments of :func:`set_document`."""
    properties = dict(pool or {})
    spot = {"priority": "Spot", "evictionPolicy": "Delete"} if properties.get("scaleSetPriority") == "Spot" else {}
    profile = {**spot, **set_fields.pop("profile", {})}
    name = "aks-gpu-12345678-vmss"
    tags = {"aks-managed-poolName": "gpu", **set_fields.pop("tags", {})}
    read = scale_set(name, capacity=capacity, group=NODE_GROUP, profile=profile, tags=tags, **set_fields)
    cluster = msgspec.structs.replace(CLUSTER, locked=locked)
    return PoolResources(read, agent_pool("gpu", **{"count": capacity, **properties}), cluster)


def own_resources(**set_fields: Any) -> PoolResources:
    """A scale set that AKS does not manage."""
    return PoolResources(scale_set(**set_fields))


def built(resources: PoolResources, data: LocationData | None = None, *, api: str = "auto", source: str = "aks") -> AzurePool:
    return pool_of(resources, source, data or location_data(), Prices(), api=api)
