"""The machines of an account as Nodes of a cluster, with the fields that the components of real clusters write.

Labels and taints come from cloud-node-manager and the kubelet, from AKS on machines of its agent pools, and from the pool's own settings.
Machines of other scale sets have those that flags in their custom data set. What was seen on real nodes is in
``tests/embedded/azure/recorded_nodes.py``.
"""

import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from gpuscaler.catalogue import MIB, InstanceType
from gpuscaler.embedded.azure.compute.views import machine_id
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware.sizes import size_of
from gpuscaler.embedded.azure.nodes.kubelet_writes import finish, shown_memory
from gpuscaler.embedded.azure.state import AgentPool, Cluster, Machine, ScaleSet
from gpuscaler.embedded.nodes.machines import Machines, Naming
from gpuscaler.model.azure_names import SCHEME
from gpuscaler.model.pods import Resources
from gpuscaler.model.taints import Taint
from gpuscaler.simulation.cloud.machines import REGISTERED, VISIBLE, CloudEvent, CloudMachine

_FLAG: Final = re.compile(r"--(?P<flag>node-labels|register-with-taints)=(?P<value>\S+)")
_TAINT: Final = re.compile(r"(?P<key>[^=:]+)(?:=(?P<value>[^:]*))?:(?P<effect>NoSchedule|NoExecute|PreferNoSchedule)")
#: Pods of nodes outside of AKS: the kubelet's default.
_PODS: Final = 110
#: What AKS's kubelet reserves of the memory: 20 MB for a pod and 50 MB, a quarter at most; and MiB of the eviction threshold.
_A_POD, _BASE, _EVICTION = 20e6, 50e6, 100
#: MiB of the file system on a disk of 128 GiB, of which a tenth is the eviction threshold.
_DISK, _DISK_MIB = 128, 129_886_128 / 1024


class NodeNames:
    """The names of machines that are nodes, and their provider ids, by the id of their hardware: both stay known after their end."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, str, bool]] = {}

    def learn(self, hardware: str, *, node: str, provider_id: str, managed: bool) -> None:
        """Keep the names of a machine; ``managed`` is one of AKS."""
        self._names[hardware] = (node, provider_id, managed)

    def knows(self, hardware: str) -> bool:
        return hardware in self._names

    def naming(self) -> Naming:
        """How Nodes of these machines are named and completed."""
        return Naming(
            node=lambda machine: self._names[machine.id][0],
            provider_id=lambda machine: self._names[machine.id][1],
            scheme=f"{SCHEME}/",
            bare=True,
            finish=self._finish,
        )

    def _finish(self, machine: CloudMachine, node: dict[str, Any]) -> None:
        finish(machine, node, managed=self._names[machine.id][2])


def provider_id(scale_set: ScaleSet, machine: Machine) -> str:
    """``spec.providerID`` of the machine's Node: cloud-node-manager writes the resource group in lower case."""
    return SCHEME + machine_id(scale_set, machine).replace(
        f"/resourceGroups/{scale_set.group}/", f"/resourceGroups/{scale_set.group.lower()}/"
    )


def register_nodes(account: Contents, machines: Machines, names: NodeNames) -> None:
    """Create a Node for each machine of ``account`` whose kubelet starts."""

    def hear(event: CloudEvent) -> None:
        hardware = event.machine
        if hardware is None:
            return
        owner = account.owners.get(hardware.id)
        if owner is not None and event.kind in {REGISTERED, VISIBLE}:
            scale_set, machine = owner
            if machine.doomed is not None:
                # Its extension fails before the kubelet starts.
                return
            managed = scale_set.agent_pool is not None
            names.learn(hardware.id, node=machine.computer.lower(), provider_id=provider_id(scale_set, machine), managed=managed)
            hardware = with_node_properties(scale_set, machine, hardware)
        if names.knows(hardware.id):
            machines.hear(CloudEvent(event.at, event.kind, hardware, gone_at=event.gone_at, why=event.why))

    machines.devices.faults = account.conditions.machines
    account.listeners.append(hear)


def with_node_properties(scale_set: ScaleSet, machine: Machine, hardware: CloudMachine) -> CloudMachine:
    """A machine with the properties of its Node."""
    offering, pool, cluster = hardware.offering, scale_set.agent_pool, scale_set.cluster
    details = size_of(machine.size)
    labels = _by_cloud(scale_set, machine, details)
    if pool is not None and cluster is not None:
        labels |= _by_aks(cluster, pool, machine, details) | dict(pool.settings.get("nodeLabels") or {})
        texts = [*(pool.settings.get("nodeTaints") or ()), *(pool.settings.get("nodeInitializationTaints") or ())]
        taints, pods = _taints(texts), int(pool.settings.get("maxPods", _PODS))
        disk = int(pool.settings.get("osDiskSizeGB") or _DISK)
    else:
        flags = _flags(scale_set)
        labels |= dict(pair.partition("=")[::2] for pair in flags.get("node-labels", "").split(",") if pair)
        taints, pods, disk = _taints(flags.get("register-with-taints", "").split(",")), _PODS, _DISK
    amounts = _amounts(offering.allocatable, details, pods=pods, disk=disk)
    named = replace(offering, pool=pool.name if pool is not None else scale_set.name, labels=labels, taints=taints, allocatable=amounts)
    return replace(hardware, offering=named)


def zone_label(scale_set: ScaleSet, machine: Machine) -> str:
    """The zone of a Node: ``eastus-1``, or the fault domain ``0`` if the machine is in no zone."""
    return f"{scale_set.location}-{machine.zone}" if machine.zone not in {"", "0"} else "0"


def _by_cloud(scale_set: ScaleSet, machine: Machine, details: InstanceType | None) -> dict[str, str]:
    """Labels that cloud-node-manager, the kubelet by itself and the disk driver write."""
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": details.arch if details is not None else "amd64"}
    labels |= {f"beta.{key}": value for key, value in labels.items()}
    size = details.name if details is not None else machine.size
    labels |= {"node.kubernetes.io/instance-type": size, "beta.kubernetes.io/instance-type": size}
    zone = zone_label(scale_set, machine)
    for key, value in (("zone", zone), ("region", scale_set.location)):
        labels |= {f"topology.kubernetes.io/{key}": value, f"failure-domain.beta.kubernetes.io/{key}": value}
    return {**labels, "topology.disk.csi.azure.com/zone": zone if zone != "0" else ""}


def _by_aks(cluster: Cluster, pool: AgentPool, machine: Machine, details: InstanceType | None) -> dict[str, str]:
    prefix = "kubernetes.azure.com/"
    disk = str(pool.settings.get("osDiskType", "Managed")).lower()
    labels = {
        "agentpool": pool.name,
        f"{prefix}agentpool": pool.name,
        f"{prefix}azure-cni-overlay": "true",
        f"{prefix}cluster": cluster.node_group,
        f"{prefix}consolidated-additional-properties": "00000000-0000-11f0-0000-000000000000",
        f"{prefix}kubelet-identity-client-id": "00000000-0000-0000-0000-0000000000bb",
        f"{prefix}kubelet-serving-ca": "cluster",
        f"{prefix}localdns-state": "disabled",
        f"{prefix}mode": str(pool.settings.get("mode", "User")).lower(),
        f"{prefix}network-name": f"aks-vnet-{cluster.hash}",
        f"{prefix}network-resourcegroup": cluster.group,
        f"{prefix}network-stateless-cni": "false",
        f"{prefix}network-subnet": "aks-subnet",
        f"{prefix}network-subscription": cluster.subscription,
        f"{prefix}node-image-version": str(pool.settings.get("nodeImageVersion", "")),
        f"{prefix}nodenetwork-vnetguid": "00000000-0000-0000-0000-0000000000cc",
        f"{prefix}nodepool-type": pool.kind,
        f"{prefix}os-sku": str(pool.settings.get("osSKU", "Ubuntu")),
        f"{prefix}os-sku-effective": "Ubuntu2204",
        f"{prefix}os-sku-requested": str(pool.settings.get("osSKU", "Ubuntu")),
        f"{prefix}podnetwork-type": "overlay",
        f"{prefix}role": "agent",
        f"{prefix}storageprofile": disk,
        f"{prefix}storagetier": "Premium_LRS",
        "storageprofile": disk,
        "storagetier": "Premium_LRS",
    }
    if details is not None:
        labels |= {f"{prefix}sku-cpu": str(details.vcpu), f"{prefix}sku-memory": str(details.memory_mib)}
        if details.gpus and details.gpu_manufacturer == "nvidia":
            labels |= {"accelerator": "nvidia", f"{prefix}accelerator": "nvidia"}
    if machine.market == "spot":
        labels[f"{prefix}scalesetpriority"] = "spot"
    return labels


def _taints(texts: Iterable[str]) -> tuple[Taint, ...]:
    matches = (_TAINT.fullmatch(text) for text in texts)
    return tuple(Taint(match["key"], match["value"] or "", match["effect"]) for match in matches if match is not None)


def _flags(scale_set: ScaleSet) -> Mapping[str, str]:
    """The kubelet's flags in a scale set's custom data."""
    encoded = str((scale_set.profile.get("osProfile") or {}).get("customData") or "")
    try:
        text = b64decode(encoded).decode(errors="replace")
    except ValueError:
        return {}
    return {match["flag"]: match["value"] for match in _FLAG.finditer(text)}


def _amounts(allocatable: Resources, details: InstanceType | None, *, pods: int, disk: int) -> dict[str, int]:
    """Allocatable resources, by AKS's rules since Kubernetes 1.29."""
    amounts = {**allocatable, "pods": pods, "ephemeral-storage": int(_DISK_MIB * disk / _DISK * 0.9) * MIB}
    if details is not None:
        shown = shown_memory(details.memory_mib)
        reserved = min((_A_POD * pods + _BASE) / MIB, details.memory_mib / 4)
        amounts["memory"] = int(shown - reserved - _EVICTION) * MIB
    return amounts
