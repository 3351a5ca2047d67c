"""Which nodes have GPUs, and which DaemonSets make them usable."""

import re
from collections.abc import Iterator

from gpuscaler.doctor.documents import without_tag
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Pool
from gpuscaler.model.taints import HARD_EFFECTS, Taint
from gpuscaler.model.well_known import GPU_COUNT, INSTANCE_TYPE_LABELS, POOL_LABEL, PRODUCT_LABELS
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.capacity.node_templates import daemon_sets

#: Drivers are installed, and plugins register GPUs, within this time after a node was created; GPU operator compiles drivers. Seconds.
SETTLED_AFTER = 1200.0
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
#: Labels that only nodes with accelerators have: their value is the model, or says that there is one.
_MODEL_LABELS = (*PRODUCT_LABELS, "kubernetes.azure.com/accelerator", "accelerator")
#: Labels of NFD and of GPU operator. 10de and 1002 are the PCI vendors NVIDIA and AMD, 02 and 03 the PCI classes of GPUs.
_PRESENT_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_1002.present",
    "feature.node.kubernetes.io/pci-1002.present",
)
#: Types with NVIDIA GPUs: AWS (p, g except for g4ad), Azure (N series except for those with AMD), Google Cloud (a2, a3, a4, g2, g4).
_NVIDIA_TYPES = re.compile(
    r"(p[2-9][a-z]*|g4dn|g[35-9][a-z]*|gr\d[a-z]*)\.(metal|nano|(\d*x)?large|\d+xlarge).*"
    r"|Standard_N[CD]\S*|Standard_NV(?!\d+as_v4)(?!\d+ads_V710)\S*"
    r"|(a2-(high|mega|ultra)gpu|a3-\w+gpu|a4x?-\w+gpu|g2-standard|g4-standard)-\S+"
)
_AMD_TYPES = re.compile(r"g4ad\..*|Standard_NV\d+as_v4|Standard_NV\d+ads_V710\S*|Standard_ND\S*MI\d+X\S*")
#: Taints that clusters set and remove on their own: they say nothing about a pool.
PASSING_TAINTS = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "gpuscaler.io/",
    "karpenter.sh/",
    "node.cilium.io/",
    "ebs.csi.aws.com/",
    "efs.csi.aws.com/",
    "aws-node-termination-handler/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "remediation.medik8s.io/",
)
#: Labels with the name of a node's group: whose nodes are made alike.
_GROUP_LABELS = (
    POOL_LABEL,
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kops.k8s.io/instancegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "cloud.google.com/gke-nodepool",
    "node.cluster.x-k8s.io/deployment",
)


def is_of(node: Node, pool: Pool) -> bool:
    """Whether something other than its instance type says that ``node`` belongs to ``pool``: others, as Karpenter, buy the same types."""
    by_label = bool(pool.match_labels) or any(node.labels.get(key) == pool.name for key in _GROUP_LABELS)
    return node.bought is not None or by_label


def devices_in(resources: Resources) -> int:
    """How many accelerators, or parts of them, there are in ``resources``."""
    return sum(amount for name, amount in resources.items() if is_device(name))


def vendor_of(node: Node) -> str:
    """The resource that the accelerators of ``node`` should be: NVIDIA's or AMD's. Empty if nothing says that it has any."""
    for name in (NVIDIA, AMD):
        if any(resource.startswith(name) for resource in (*node.capacity, *node.allocatable)):
            return name
    labels = node.labels
    if labels.get("kubernetes.io/os") == "windows":
        return ""
    instance_type = first_label(node, INSTANCE_TYPE_LABELS)
    if _AMD_TYPES.fullmatch(instance_type) or any(labels.get(key) == "true" for key in _PRESENT_LABELS if "1002" in key):
        return AMD
    if _NVIDIA_TYPES.fullmatch(instance_type) or gpu_label(node):
        return AMD if "amd" in gpu_label(node) else NVIDIA
    return ""


def gpu_label(node: Node) -> str:
    """The label, as ``key=value``, that says that ``node`` has GPUs; empty if there is none."""
    labels = node.labels
    for key in _MODEL_LABELS:
        value = labels.get(key, "")
        if value and value.lower() not in ("false", "none", "no") and not _other_vendor(value):
            return f"{key}={value}"
    if labels.get(GPU_COUNT, "").isdecimal() and labels[GPU_COUNT] != "0":
        return f"{GPU_COUNT}={labels[GPU_COUNT]}"
    return next((f"{key}=true" for key in _PRESENT_LABELS if labels.get(key) == "true"), "")


def _other_vendor(value: str) -> bool:
    """Whether a model is no GPU of NVIDIA or AMD: Trainium, Inferentia, Gaudi, TPUs."""
    return any(name in value.lower() for name in ("inferentia", "trainium", "neuron", "gaudi", "habana", "tpu"))


def sign_of_gpus(node: Node) -> str:
    """What shows that ``node`` should have GPUs: a label, or its instance type."""
    return gpu_label(node) or f"{INSTANCE_TYPE_LABELS[0]}={first_label(node, INSTANCE_TYPE_LABELS)}"


def is_settled(node: Node, now: float) -> bool:
    """Whether drivers and plugins had time to register the GPUs of ``node``."""
    return node.ready and not node.deleted and now - node.created >= SETTLED_AFTER


def drivers_of_claims(cluster: Cluster) -> frozenset[str]:
    """The nodes whose devices are given out as ResourceSlices (DRA) instead of resources."""
    return frozenset(item.node_name for item in cluster.devices.values() if item.kind == "ResourceSlice" and item.node_name)


def nodes_without_gpus(evidence: Evidence) -> Iterator[tuple[Node, str]]:
    """The nodes that should have GPUs and offer none, each with the resource that is missing."""
    claimed = drivers_of_claims(evidence.cluster)
    for node in evidence.cluster.nodes.values():
        vendor = vendor_of(node)
        # Shares of GPUs have the names that their plugins choose: aliyun.com/gpu-mem.
        offered = any("gpu" in name and amount for shown in (node.allocatable, node.capacity) for name, amount in shown.items())
        if vendor and not offered and not devices_in(node.capacity) and node.name not in claimed and is_settled(node, evidence.now):
            yield node, vendor


def gpu_nodes(cluster: Cluster) -> tuple[Node, ...]:
    """The nodes that offer accelerators."""
    return tuple(node for node in cluster.nodes.values() if devices_in(node.allocatable) or devices_in(node.capacity))


def lasting_taints(node: Node) -> tuple[Taint, ...]:
    """The taints of ``node`` that keep pods away and that nothing removes on its own."""
    return tuple(taint for taint in node.taints if taint.effect in HARD_EFFECTS and not taint.key.startswith(PASSING_TAINTS))


def group_of(node: Node) -> str:
    """The group that a node was made by, as ``label=value``; empty if no label says so."""
    return next((f"{key}={node.labels[key]}" for key in _GROUP_LABELS if node.labels.get(key)), "")


def plugins(evidence: Evidence) -> tuple[tuple[Workload, str], ...]:
    """The DaemonSets that register GPUs, with the resource that each registers."""
    images = _images(evidence)
    found = ((daemon, _plugin_vendor(daemon, images.get((daemon.namespace, daemon.name), ()))) for daemon in daemon_sets(evidence.cluster))
    return tuple((daemon, vendor) for daemon, vendor in found if vendor)


def _images(evidence: Evidence) -> dict[tuple[str, str], tuple[str, ...]]:
    """The images of each DaemonSet, without tags, where its document is known."""
    return {
        (document.namespace or "default", document.name): tuple(
            without_tag(container.text("image")) for container in document.parts("spec", "template", "spec", "containers")
        )
        for document in evidence.of("DaemonSet")
    }


def _plugin_vendor(daemon: Workload, images: tuple[str, ...]) -> str:
    words = " ".join((daemon.name, *daemon.template_labels.values()))
    # The same chart has DaemonSets for MPS and for labels, with the name of the release in their names.
    if any(word in daemon.name for word in ("mps-control", "feature-discovery", "-gfd", "dra-driver", "validat")):
        return ""
    for vendor, names, of_images in (
        (
            NVIDIA,
            ("nvidia-device-plugin", "nvidia-gpu-device-plugin", "hami-device-plugin"),
            ("/k8s-device-plugin", "/nvidia-k8s-device-plugin", "/nvidia-gpu-device-plugin"),
        ),
        (
            AMD,
            ("amdgpu-device-plugin", "amd-gpu-device-plugin", "amdgpu-dp", "rocm-device-plugin"),
            ("/rocm/k8s-device-plugin", "/rocm-k8s-device-plugin"),
        ),
    ):
        if any(name in words for name in names):
            return vendor
        # AMD's image has the same last part. Plugins of others have such a name with a word before it: aws-efa-k8s-device-plugin.
        if any(f"/{image}".endswith(of_images) and (vendor == AMD or "rocm" not in image) for image in images):
            return vendor
    return ""
