"""Names of labels and taints of Kubernetes, clouds, GPU vendors and this program."""

from collections.abc import Mapping

#: Prefix of all names of this program.
OWN_PREFIX = "gpuscaler.io/"

# Labels of nodes. If a label has an older name too, the newer one comes first and takes precedence.
HOSTNAME = "kubernetes.io/hostname"
ARCH = "kubernetes.io/arch"
INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
#: Labels for how a node was bought, with the market for each value.
MARKET_LABELS: Mapping[str, Mapping[str, str]] = {
    "karpenter.sh/capacity-type": {"spot": "spot", "on-demand": "on-demand", "reserved": "reserved"},
    "eks.amazonaws.com/capacityType": {"SPOT": "spot", "ON_DEMAND": "on-demand", "CAPACITY_BLOCK": "reserved"},
    "cloud.google.com/gke-spot": {"true": "spot"},
    "cloud.google.com/gke-provisioning": {"spot": "spot", "standard": "on-demand"},
    "kubernetes.azure.com/scalesetpriority": {"spot": "spot", "regular": "on-demand"},
}
#: GPU feature discovery's label for the GPU model.
GPU_PRODUCT = "nvidia.com/gpu.product"
#: Labels with the GPU model, most common first.
PRODUCT_LABELS = (
    GPU_PRODUCT,
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "amd.com/gpu.product-name",
)
#: GPU feature discovery's count of a node's GPUs, regardless of sharing or slicing.
GPU_COUNT = "nvidia.com/gpu.count"
#: The name of a node's pool, for users: planning reads it only if the cloud provides no list of machines.
POOL_LABEL = "gpuscaler.io/pool"
#: Cloud controllers take nodes with this label out of load balancers (Kubernetes 1.21 and later). It is set on a node that is being
#: drained; the value distinguishes gpuscaler's label from one that something else set, which stays.
EXCLUDE_LABEL, EXCLUDE_VALUE = "node.kubernetes.io/exclude-from-external-load-balancers", "gpuscaler-leaving"

# Taints of nodes.
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
#: Taints of a machine that is not open yet, and of a kept one (``closed``, ``min_gpus_per_pod``): closed until a plan places pods there.
ARRIVING_TAINT, KEPT_TAINT = CLOSING_TAINTS = ("gpuscaler.io/arriving", "gpuscaler.io/kept")
#: Taint of a machine that is being removed.
LEAVING_TAINT = "gpuscaler.io/leaving"
