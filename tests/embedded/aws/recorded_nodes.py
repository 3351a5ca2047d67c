"""Fields that nodes on AWS were seen to have, by kind of node: keys of labels and annotations, amounts, conditions, addresses.

From nodes that users printed in public threads. Labels from their user data are left out: those are specific to a test. Fields without a
thread of their own are the kubelet's and the same on all nodes.
"""

from msgspec import Struct

#: What the kubelet and the cloud controller write on every node since Kubernetes 1.30. ``topology.k8s.aws/zone-id`` came with that release:
#: kubernetes/kubernetes#123223, 2024.
CLOUD_CONTROLLER = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "k8s.io/cloud-provider-aws",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.k8s.aws/zone-id",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
EBS_CSI = frozenset({"topology.ebs.csi.aws.com/zone"})
EKS = frozenset(
    {
        "eks.amazonaws.com/capacityType",
        "eks.amazonaws.com/nodegroup",
        "eks.amazonaws.com/nodegroup-image",
        "eks.amazonaws.com/sourceLaunchTemplateId",
        "eks.amazonaws.com/sourceLaunchTemplateVersion",
    }
)
KOPS = frozenset({"kops.k8s.io/instancegroup", "node-role.kubernetes.io/node"})
#: GPU feature discovery of NVIDIA's operator: opencost/opencost#2862, September 2024. It writes more than these.
DISCOVERY = frozenset({"nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.present", "nvidia.com/gpu.product"})

ANNOTATIONS = frozenset(
    {
        "alpha.kubernetes.io/provided-node-ip",
        "csi.volume.kubernetes.io/nodeid",
        "node.alpha.kubernetes.io/ttl",
        "volumes.kubernetes.io/controller-managed-attach-detach",
    }
)
AMOUNTS = frozenset({"cpu", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "memory", "pods"})
CONDITIONS = frozenset({"DiskPressure", "MemoryPressure", "PIDPressure", "Ready"})
ADDRESSES = frozenset({"Hostname", "InternalDNS", "InternalIP"})
NODE_INFO = frozenset(
    {
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    }
)


class Recorded(Struct, frozen=True):
    """Labels of one kind of node, by key, and where and when they were printed."""

    labels: frozenset[str]
    seen: str


MANAGED = Recorded(
    CLOUD_CONTROLLER | EBS_CSI | EKS,
    "aws-samples/eks-workshop-v2, troubleshooting of CoreDNS (m5.large, us-west-2, 2025); with the EBS CSI driver: "
    "aws/containers-roadmap#1706 (t3.medium, us-east-1)",
)
SELF_MANAGED = Recorded(CLOUD_CONTROLLER | EBS_CSI, "the same nodes, without what EKS writes for its node groups")
BOTTLEROCKET = Recorded(
    CLOUD_CONTROLLER, "bottlerocket-os/bottlerocket-core-kit#952 (c6gd.16xlarge, us-west-2, July 2026), no EBS CSI driver"
)
KOPS_NODE = Recorded(
    CLOUD_CONTROLLER | EBS_CSI | KOPS, "scylladb/scylla-operator#170 (c5.large, us-east-1, August 2020) and kOps' own source of 2026"
)


class Size(Struct, frozen=True):
    """Memory of one node in KiB, total and allocatable, and its maximum number of pods."""

    instance_type: str
    managed: bool
    capacity: int
    allocatable: int
    pods: int
    seen: str


SIZES = (
    Size("g5.8xlarge", False, 130_461_372, 127_462_076, 234, "aws/aws-k8s-tester#471"),
    Size("r5.4xlarge", True, 130_402_500, 128_799_940, 110, "eksctl-io/eksctl#4434 (Bottlerocket, November 2021); what it keeps, by rule"),
)
