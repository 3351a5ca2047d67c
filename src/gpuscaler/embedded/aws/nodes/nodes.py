"""The instances of an account as Nodes of a cluster, with the fields that the components of real clusters write.

Labels and taints come from the cloud controller and the kubelet, from user data, from EKS on nodes of its managed node groups, from kOps'
controller on nodes of its instance groups, and from DaemonSets. The ``node-template`` tags of a group are hints for an autoscaler and do
not change a node. What was seen on real nodes is in ``tests/embedded/aws/recorded_nodes.py``.
"""

from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Final

import structlog
from msgspec.structs import replace

from gpuscaler.catalogue import MIB, InstanceType
from gpuscaler.catalogue.node_labels import gpu_feature_discovery
from gpuscaler.clouds.aws.templates.user_data import Kubelet, UserDataError, kubelet_of
from gpuscaler.embedded.aws.ec2.instances import private_name
from gpuscaler.embedded.aws.hardware.instance_types import get_type
from gpuscaler.embedded.aws.hardware.zones import zone_id
from gpuscaler.embedded.aws.nodes.kubelet_writes import finish, shown_memory
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Instance
from gpuscaler.embedded.nodes.machines import Machines, Naming
from gpuscaler.model.pods import Resources
from gpuscaler.simulation.cloud.machines import REGISTERED, VISIBLE, CloudEvent, CloudMachine

_LOG = structlog.get_logger(__name__)
SCHEME: Final = "aws:///"
#: Tags of the groups that EKS and kOps create.
NODEGROUP, EKS_CLUSTER, INSTANCE_GROUP = "eks:nodegroup-name", "eks:cluster-name", "kops.k8s.io/instancegroup"
#: Tags that kOps' controller copies from an instance to its node: kops, ``pkg/nodeidentity/aws/identify.go``.
_COPIED: Final = "k8s.io/cluster-autoscaler/node-template/label/"
EFFECTS: Final = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}
#: Maximum pods of nodes in managed node groups of EKS, below 30 vCPUs and above: EKS user guide, "Increase the available IP
#: addresses for your node". kOps' networks have the kubelet's default.
_MANAGED_PODS, _LARGE_MANAGED_PODS, _LARGE, _KOPS_PODS = 110, 250, 30, 110
#: Disks with the files of pods, by images of Amazon Linux, Ubuntu and Bottlerocket.
_DISKS: Final = ("/dev/xvda", "/dev/sda1", "/dev/xvdb")
#: MiB that the kubelet reserves: a base, an amount for each pod, and the eviction threshold. From amazon-eks-ami, ``bootstrap.sh``.
_BASE, _A_POD, _EVICTION = 255, 11, 100
_EFA: Final = "vpc.amazonaws.com/efa"


def provider_id(machine: CloudMachine) -> str:
    """``spec.providerID`` of the instance's Node."""
    return f"{SCHEME}{machine.offering.zone}/{machine.id}"


NAMING: Final = Naming(node=private_name, provider_id=provider_id, scheme=SCHEME, bare=True, finish=finish)


def register_nodes(region: Region, machines: Machines) -> None:
    """Create a Node for each instance of a group of ``region`` whose kubelet starts."""

    def hear(event: CloudEvent) -> None:
        machine = event.machine
        instance = region.instances.get(machine.id) if machine is not None else None
        if machine is None or instance is None or not instance.group:
            return
        if instance.lifecycle.startswith("Warmed") and event.kind in {REGISTERED, VISIBLE}:
            instance.held.append(event)
            return
        try:
            shown = with_node_properties(region, instance, machine)
        except UserDataError as error:
            # The kubelet ends before it registers; the reason is in the machine's log.
            _LOG.warning("the kubelet of a simulated instance does not start", instance=instance.id, problem=str(error))
            return
        machines.hear(replace_machine(event, shown))

    machines.devices.faults = region.conditions.machines
    region.listeners.append(hear)


def replace_machine(event: CloudEvent, machine: CloudMachine) -> CloudEvent:
    """The event, of ``machine``."""
    return CloudEvent(event.at, event.kind, machine, gone_at=event.gone_at, why=event.why)


def with_node_properties(region: Region, instance: Instance, machine: CloudMachine) -> CloudMachine:
    """A machine with the properties of its Node. Raises :class:`UserDataError` if its kubelet does not start."""
    offering = machine.offering
    group = region.groups.get(instance.group)
    tags = {key: tag["Value"] for key, tag in group.tags.items()} if group is not None else {}
    instance_type = get_type(offering.instance_type)
    kubelet = kubelet_of(instance.launch.get("UserData") or "", first=_flags_of_eks(region, instance, tags))
    labels = {
        **_by_cloud_controller(region, instance, instance_type),
        **kubelet.labels,
        **_by_kops(instance),
        **_by_daemons(region, offering.zone, instance_type, offering.allocatable),
    }
    amounts = _amounts(instance, instance_type, offering.allocatable, pods=_pods(kubelet, tags, instance_type, offering.allocatable))
    return replace(machine, offering=replace(offering, pool=instance.group, labels=labels, taints=kubelet.taints, allocatable=amounts))


def _by_cloud_controller(region: Region, instance: Instance, instance_type: InstanceType) -> dict[str, str]:
    """Labels that the cloud controller manager writes, and the kubelet by itself."""
    _, _, name, zone = instance.machine.offering.key
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": instance_type.arch, "node.kubernetes.io/instance-type": name}
    labels |= {f"beta.{key}": value for key, value in labels.items() if key.startswith("kubernetes.io/")}
    labels["beta.kubernetes.io/instance-type"] = name
    for key, value in (("zone", zone), ("region", region.name)):
        labels |= {f"topology.kubernetes.io/{key}": value, f"failure-domain.beta.kubernetes.io/{key}": value}
    # The tagging controller's mark for the tags that it has written.
    labels["k8s.io/cloud-provider-aws"] = md5(region.account.encode(), usedforsecurity=False).hexdigest()
    return {**labels, "topology.k8s.aws/zone-id": zone_id(zone)}


def _flags_of_eks(region: Region, instance: Instance, tags: Mapping[str, str]) -> Iterator[str]:
    """The kubelet's flags that EKS puts before those of user data, for nodes of its managed node groups."""
    if (name := tags.get(NODEGROUP)) is None:
        return
    nodegroup = region.nodegroups.get((tags.get(EKS_CLUSTER, ""), name), {})
    market = "SPOT" if instance.machine.offering.market == "spot" else "ON_DEMAND"
    labels = {
        "eks.amazonaws.com/nodegroup": name,
        "eks.amazonaws.com/nodegroup-image": instance.image,
        "eks.amazonaws.com/capacityType": nodegroup.get("capacityType") or market,
    }
    if instance.template:
        labels["eks.amazonaws.com/sourceLaunchTemplateId"] = instance.template["LaunchTemplateId"]
        labels["eks.amazonaws.com/sourceLaunchTemplateVersion"] = instance.template["Version"]
    labels |= nodegroup.get("labels") or {}
    yield f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}"
    if taints := nodegroup.get("taints"):
        rows = (f"{taint['key']}={taint.get('value', '')}:{EFFECTS[taint['effect']]}" for taint in taints)
        yield f"--register-with-taints={','.join(rows)}"


def _by_kops(instance: Instance) -> dict[str, str]:
    if INSTANCE_GROUP not in instance.tags:
        return {}
    copied = {key.removeprefix(_COPIED): value for key, value in instance.tags.items() if key.startswith(_COPIED)}
    return {"node-role.kubernetes.io/node": "", INSTANCE_GROUP: instance.tags[INSTANCE_GROUP], **copied}


def _by_daemons(region: Region, zone: str, instance_type: InstanceType, allocatable: Resources) -> dict[str, str]:
    """Labels of node plugins and discovery, if they run."""
    labels = {"topology.ebs.csi.aws.com/zone": zone} if region.conditions.ebs_csi else {}
    return labels | (dict(gpu_feature_discovery(instance_type, allocatable)) if region.conditions.gpu_feature_discovery else {})


def _pods(kubelet: Kubelet, tags: Mapping[str, str], instance_type: InstanceType, allocatable: Resources) -> int:
    """Pods per node: from user data, else by the network and the limit of EKS."""
    if kubelet.max_pods:
        return kubelet.max_pods
    if INSTANCE_GROUP in tags:
        return _KOPS_PODS
    pods = allocatable.get("pods", _KOPS_PODS)
    if NODEGROUP in tags:
        return min(pods, _LARGE_MANAGED_PODS if instance_type.vcpu >= _LARGE else _MANAGED_PODS)
    return pods


def _amounts(instance: Instance, instance_type: InstanceType, allocatable: Resources, *, pods: int) -> dict[str, int]:
    """Allocatable resources. EFA devices exist only if the launch template attaches them."""
    memory = shown_memory(instance_type.memory_mib) - _BASE - _A_POD * pods - _EVICTION
    amounts = {**allocatable, "pods": pods, "memory": memory * MIB}
    disk = max((volume.settings["VolumeSize"] for volume in instance.volumes if volume.device in _DISKS), default=0)
    if disk:
        # A tenth is the eviction threshold, and 1 GiB is for the kubelet.
        amounts["ephemeral-storage"] = max(int(disk * 0.9 * 1024) - 1024, 0) * MIB
    attached = sum(interface.get("InterfaceType") in {"efa", "efa-only"} for interface in instance.launch.get("NetworkInterfaces") or ())
    if attached and amounts.get(_EFA):
        amounts[_EFA] = min(attached, amounts[_EFA])
    else:
        amounts.pop(_EFA, None)
    return amounts
