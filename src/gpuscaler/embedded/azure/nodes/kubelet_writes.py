"""Fields of a Node, beside labels and taints, that a kubelet of AKS's images, cloud-node-manager and the CSI drivers write."""

import json
from typing import Any, Final

from gpuscaler.catalogue import MIB
from gpuscaler.embedded.azure.aks.models import VERSION
from gpuscaler.embedded.azure.hardware.sizes import size_of
from gpuscaler.simulation.cloud.machines import CloudMachine

#: Conditions that are false on a healthy node: of the kubelet, and of AKS's node problem detector.
_HEALTHY: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)
_PROBLEMS: Final = (
    ("VMEventScheduled", "NoVMEventScheduled", "VM has no scheduled event"),
    ("FrequentKubeletRestart", "NoFrequentKubeletRestart", "kubelet is functioning properly"),
    ("KubeletProblem", "KubeletIsUp", "kubelet service is up"),
    ("FrequentContainerdRestart", "NoFrequentContainerdRestart", "containerd is functioning properly"),
    ("ReadonlyFilesystem", "FilesystemIsNotReadOnly", "Filesystem is not read-only"),
    ("FilesystemCorruptionProblem", "FilesystemIsOK", "Filesystem is healthy"),
    ("FrequentUnregisterNetDevice", "NoFrequentUnregisterNetDevice", "node is functioning properly"),
    ("ContainerRuntimeProblem", "ContainerRuntimeIsUp", "container runtime service is up"),
    ("KernelDeadlock", "KernelHasNoDeadlock", "kernel has no deadlock"),
    ("FrequentDockerRestart", "NoFrequentDockerRestart", "docker is functioning properly"),
)
#: The kernel shows this part of a machine's memory: 115,397,144 KiB of a Standard_NC6s_v3's 114,688 MiB.
_SHOWN: Final = 0.9826
_NONE: Final = {"hugepages-1Gi": "0", "hugepages-2Mi": "0"}


def shown_memory(mib: int) -> int:
    """The MiB of memory that the kernel of a machine of ``mib`` MiB shows."""
    return int(mib * _SHOWN)


def finish(machine: CloudMachine, node: dict[str, Any], *, managed: bool) -> None:
    """Complete the Node of a machine; ``managed`` is one of AKS."""
    status, name = node["status"], node["metadata"]["name"]
    number = int(machine.id.rpartition("-")[2], 16)
    where = f"10.224.{number // 250 % 256}.{number % 250 + 4}"
    details = size_of(machine.offering.instance_type)
    drivers = {"disk.csi.azure.com": name, "file.csi.azure.com": name}
    node["metadata"]["annotations"] = {
        "alpha.kubernetes.io/provided-node-ip": where,
        "csi.volume.kubernetes.io/nodeid": json.dumps(drivers, separators=(",", ":")),
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    }
    status["addresses"] = [{"type": "InternalIP", "address": where}, {"type": "Hostname", "address": name}]
    (ready,) = status["conditions"]
    times = {key: ready[key] for key in ("lastHeartbeatTime", "lastTransitionTime")}
    rows = (*(_PROBLEMS if managed else ()), *_HEALTHY)
    status["conditions"] = [
        *({"type": kind, "status": "False", "reason": reason, "message": text, **times} for kind, reason, text in rows),
        ready,
    ]
    status["allocatable"] = {**status["allocatable"], **_NONE}
    status["capacity"] = {**status["allocatable"]}
    if details is not None:
        status["capacity"] |= {"cpu": str(details.vcpu), "memory": str(shown_memory(details.memory_mib) * MIB)}
    status["nodeInfo"] = {
        "architecture": details.arch if details is not None else "amd64",
        "bootID": machine.id,
        "containerRuntimeVersion": "containerd://1.7.28-1",
        "kernelVersion": "5.15.0-1098-azure",
        "kubeProxyVersion": "",
        "kubeletVersion": f"v{VERSION}",
        "machineID": machine.id,
        "operatingSystem": "linux",
        "osImage": "Ubuntu 22.04.5 LTS",
        "systemUUID": machine.id,
    }
