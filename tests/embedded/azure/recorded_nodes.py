"""Fields that nodes of AKS were seen to have: keys of labels and annotations, conditions, addresses, amounts.

From nodes that users printed in public repositories, with ``kubectl describe node`` and ``kubectl get nodes --show-labels``.
"""

from msgspec import Struct

_PREFIX = "kubernetes.azure.com/"
#: A system pool in a zone (Standard_D2as_v4, Kubernetes 1.32, canadacentral, October 2025).
PLAIN = frozenset(
    {
        "agentpool",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "storageprofile",
        "storagetier",
        "topology.disk.csi.azure.com/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        f"{_PREFIX}agentpool",
        f"{_PREFIX}azure-cni-overlay",
        f"{_PREFIX}cluster",
        f"{_PREFIX}consolidated-additional-properties",
        f"{_PREFIX}kubelet-identity-client-id",
        f"{_PREFIX}kubelet-serving-ca",
        f"{_PREFIX}localdns-state",
        f"{_PREFIX}mode",
        f"{_PREFIX}network-name",
        f"{_PREFIX}network-resourcegroup",
        f"{_PREFIX}network-stateless-cni",
        f"{_PREFIX}network-subnet",
        f"{_PREFIX}network-subscription",
        f"{_PREFIX}node-image-version",
        f"{_PREFIX}nodenetwork-vnetguid",
        f"{_PREFIX}nodepool-type",
        f"{_PREFIX}os-sku",
        f"{_PREFIX}os-sku-effective",
        f"{_PREFIX}os-sku-requested",
        f"{_PREFIX}podnetwork-type",
        f"{_PREFIX}role",
        f"{_PREFIX}sku-cpu",
        f"{_PREFIX}sku-memory",
        f"{_PREFIX}storageprofile",
        f"{_PREFIX}storagetier",
    }
)
#: What a GPU pool's node has beside them (Standard_NC6s_v3, Kubernetes 1.26, eastus, August 2023). It has none of GPU feature discovery.
GPU = frozenset({"accelerator", f"{_PREFIX}accelerator"})
#: What AKS puts on nodes of spot pools: its page "Add an Azure Spot node pool".
SPOT = frozenset({f"{_PREFIX}scalesetpriority"})
ANNOTATIONS = frozenset(
    {
        "alpha.kubernetes.io/provided-node-ip",
        "csi.volume.kubernetes.io/nodeid",
        "node.alpha.kubernetes.io/ttl",
        "volumes.kubernetes.io/controller-managed-attach-detach",
    }
)
CONDITIONS = frozenset({"DiskPressure", "MemoryPressure", "PIDPressure", "Ready", "VMEventScheduled", "KubeletProblem"})
ADDRESSES = frozenset({"Hostname", "InternalIP"})
AMOUNTS = frozenset({"cpu", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "memory", "nvidia.com/gpu", "pods"})
#: ``spec.providerID`` of that GPU node, with its subscription replaced: the resource group is in lower case.
PROVIDER_ID = (
    "azure:///subscriptions/{subscription}/resourceGroups/mc_rg_aks_eastus/providers/Microsoft.Compute/virtualMachineScaleSets/"
    "aks-{pool}-{hash}-vmss/virtualMachines/{number}"
)


class Size(Struct, frozen=True):
    """Amounts of one node: memory in KiB, allocatable CPU in thousandths, file system in KiB."""

    name: str
    capacity: int
    cpu: int
    disk: int


NC6S_V3 = Size("Standard_NC6s_v3", 115_397_144, 5840, 129_886_128)
