"""Fields of a Node, beside labels and taints, that a kubelet of EKS' images, the cloud controller and the EBS CSI driver write."""

import json
from typing import Any, Final

from gpuscaler.catalogue import MIB
from gpuscaler.embedded.aws.ec2.instances import address
from gpuscaler.embedded.aws.hardware.instance_types import get_type
from gpuscaler.simulation.cloud.machines import CloudMachine

#: Conditions that are false on a healthy node.
_PRESSURES: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)
#: The kernel shows this part of a machine's memory, less these MiB: 127,404 of a g5.8xlarge's 131,072, 127,346 of an r5.4xlarge's 131,072.
_SHOWN, _KERNEL = 0.9735, 200
#: Huge pages are listed even if there are none.
_NONE: Final = {"hugepages-1Gi": "0", "hugepages-2Mi": "0"}


def shown_memory(mib: int) -> int:
    """The MiB of memory that the kernel of a machine of ``mib`` MiB shows."""
    return int(mib * _SHOWN) - _KERNEL


def finish(machine: CloudMachine, node: dict[str, Any]) -> None:
    """Complete the Node of an instance."""
    status, where = node["status"], address(machine)
    instance_type = get_type(machine.offering.instance_type)
    node["metadata"]["annotations"] = {
        "alpha.kubernetes.io/provided-node-ip": where,
        "csi.volume.kubernetes.io/nodeid": json.dumps({"ebs.csi.aws.com": machine.id}),
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    }
    if "topology.ebs.csi.aws.com/zone" not in node["metadata"]["labels"]:
        del node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"]
    name = node["metadata"]["name"]
    status["addresses"] = [
        {"type": "InternalIP", "address": where},
        {"type": "InternalDNS", "address": name},
        {"type": "Hostname", "address": name},
    ]
    (ready,) = status["conditions"]
    times = {key: ready[key] for key in ("lastHeartbeatTime", "lastTransitionTime")}
    pressures = [{"type": kind, "status": "False", "reason": reason, "message": text, **times} for kind, reason, text in _PRESSURES]
    status["conditions"] = [*pressures, ready]
    status["allocatable"] = {**status["allocatable"], **_NONE}
    status["capacity"] = {
        **status["allocatable"],
        "cpu": str(instance_type.vcpu),
        "memory": str(shown_memory(instance_type.memory_mib) * MIB),
    }
    status["nodeInfo"] = {
        "architecture": instance_type.arch,
        "bootID": machine.id,
        "containerRuntimeVersion": "containerd://2.1.5",
        "kernelVersion": "6.12.46-66.121.amzn2023.x86_64",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.35.4-eks-3cfe0ce",
        "machineID": machine.id,
        "operatingSystem": "linux",
        "osImage": "Amazon Linux 2023.9.20251117",
        "systemUUID": machine.id,
    }
