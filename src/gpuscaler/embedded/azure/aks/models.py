"""Agent pools as JSON, and the models of the scale sets that AKS makes for them."""

from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.azure.state import AgentPool, Cluster, ScaleSet

VERSION: Final = "1.33.2"
_IMAGE: Final = "AKSUbuntu-2204gen2containerd-202511.07.0"
SPOT_LABEL: Final = ("kubernetes.azure.com/scalesetpriority", "spot")
SPOT_TAINT: Final = "kubernetes.azure.com/scalesetpriority=spot:NoSchedule"
VIRTUAL_MACHINES: Final = "VirtualMachines"
#: Properties of a pool that AKS fills in.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "osDiskSizeGB": 128,
    "osDiskType": "Managed",
    "kubeletDiskType": "OS",
    "maxPods": 250,
    "type": "VirtualMachineScaleSets",
    "enableAutoScaling": False,
    "scaleDownMode": "Delete",
    "orchestratorVersion": VERSION,
    "currentOrchestratorVersion": VERSION,
    "enableNodePublicIP": False,
    "mode": "User",
    "osType": "Linux",
    "osSKU": "Ubuntu",
    "nodeImageVersion": _IMAGE,
    "upgradeSettings": {"maxSurge": "10%"},
    "enableEncryptionAtHost": False,
    "enableUltraSSD": False,
    "enableFIPS": False,
}


def pool_settings(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a new pool, with AKS's defaults; a spot pool gets its label and taint."""
    settings = {**_DEFAULTS, **{key: value for key, value in wanted.items() if value is not None}}
    if settings.get("scaleSetPriority") == "Spot":
        settings.setdefault("scaleSetEvictionPolicy", "Delete")
        settings.setdefault("spotMaxPrice", -1)
        settings["nodeLabels"] = {**(settings.get("nodeLabels") or {}), SPOT_LABEL[0]: SPOT_LABEL[1]}
        taints = list(settings.get("nodeTaints") or ())
        settings["nodeTaints"] = taints if SPOT_TAINT in taints else [*taints, SPOT_TAINT]
    for field in ("count", "provisioningState", "eTag", "virtualMachineNodesStatus"):
        settings.pop(field, None)
    return settings


def pool_json(cluster: Cluster, pool: AgentPool) -> dict[str, Any]:
    """An agent pool, as a resource of its own."""
    return {
        "id": f"{cluster.id}/agentPools/{pool.name}",
        "name": pool.name,
        "type": "Microsoft.ContainerService/managedClusters/agentPools",
        "properties": pool_properties(pool),
    }


def pool_properties(pool: AgentPool) -> dict[str, Any]:
    """The properties of an agent pool."""
    shown = {**pool.settings, "count": pool.count, "provisioningState": pool.state, "eTag": pool.etag}
    shown.setdefault("powerState", {"code": "Running"})
    if pool.kind == VIRTUAL_MACHINES:
        shown["count"] = sum(len(profile.counted) for profile in pool.profiles.values())
        shown["virtualMachineNodesStatus"] = [
            {"size": profile.size, "count": len(profile.counted)}
            for profile in pool.profiles.values()
            if profile.counted or profile.capacity
        ]
        shown["virtualMachinesProfile"] = {
            "scale": {"manual": [{"size": profile.size, "count": profile.capacity} for profile in pool.profiles.values()]}
        }
        shown.pop("vmSize", None)
    return shown


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """A managed cluster with its agent pools."""
    profiles = [{"name": pool.name, **pool_properties(pool)} for pool in cluster.pools.values()]
    return {
        "id": cluster.id,
        "name": cluster.name,
        "type": "Microsoft.ContainerService/ManagedClusters",
        "location": cluster.location,
        "tags": cluster.tags,
        "eTag": cluster.etag,
        "sku": {"name": "Base", "tier": "Free"},
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "kubernetesVersion": VERSION,
            "currentKubernetesVersion": VERSION,
            "dnsPrefix": cluster.name,
            "fqdn": f"{cluster.name}-{cluster.hash}.hcp.{cluster.location}.azmk8s.io",
            "enableRBAC": True,
            "maxAgentPools": 100,
            **cluster.settings,
            "provisioningState": cluster.state,
            "powerState": {"code": "Running"},
            "agentPoolProfiles": profiles,
            "nodeResourceGroup": cluster.node_group,
        },
    }


def scale_set_model(cluster: Cluster, pool: AgentPool, name: str) -> dict[str, Any]:
    """The body with which AKS makes a pool's scale set."""
    settings = pool.settings
    profile: dict[str, Any] = {
        "osProfile": {"computerNamePrefix": name, "adminUsername": "azureuser"},
        "storageProfile": {
            "osDisk": {"osType": "Linux", "createOption": "FromImage", "diskSizeGB": settings["osDiskSizeGB"]},
            "imageReference": {
                "id": f"/subscriptions/x/resourceGroups/AKS-Ubuntu/providers/Microsoft.Compute/galleries/AKSUbuntu/images/{_IMAGE}"
            },
        },
        "networkProfile": {"networkInterfaceConfigurations": [{"name": name, "properties": {"primary": True}}]},
        "extensionProfile": {"extensions": [{"name": "vmssCSE"}, {"name": "AKSLinuxExtension"}]},
    }
    if settings.get("scaleSetPriority") == "Spot":
        maximum = settings.get("spotMaxPrice", -1)
        profile |= {"priority": "Spot", "evictionPolicy": settings["scaleSetEvictionPolicy"], "billingProfile": {"maxPrice": maximum}}
    if settings.get("capacityReservationGroupID"):
        profile["capacityReservation"] = {"capacityReservationGroup": {"id": settings["capacityReservationGroupID"]}}
    model: dict[str, Any] = {
        "location": cluster.location,
        "tags": {
            "aks-managed-poolName": pool.name,
            "aks-managed-orchestrator": f"Kubernetes:{VERSION}",
            "aks-managed-resourceNameSuffix": cluster.hash,
            "aks-managed-creationSource": f"vmssclient-{name}",
            "aks-managed-coordination": "true",
            **(settings.get("tags") or {}),
        },
        "sku": {"name": settings["vmSize"], "tier": "Standard", "capacity": 0},
        "properties": {
            "orchestrationMode": "Uniform",
            "singlePlacementGroup": False,
            "overprovision": False,
            "upgradePolicy": {"mode": "Manual"},
            "platformFaultDomainCount": 1,
            "virtualMachineProfile": profile,
        },
    }
    if settings.get("availabilityZones"):
        model["zones"] = list(settings["availabilityZones"])
        model["properties"]["zoneBalance"] = False
    return model


def machine_name(scale_set: ScaleSet, key: str) -> str:
    """The name of a machine in calls of AKS, which is its node's."""
    machine = scale_set.machines[key]
    return machine.computer
