"""Names of labels and taints that Kubernetes, clouds, GPU vendors and this program give, for all that read them from nodes and pods."""

from collections.abc import Mapping

#: What every name of this program begins with.
OWN_PREFIX = "gpuscaler.io/"

# Labels of nodes. Where a label has an older name too, the newer one comes first and decides.
HOSTNAME = "kubernetes.io/hostname"
ARCH = "kubernetes.io/arch"
INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
#: Labels that say how a node was bought, with the market that each value means.
MARKET_LABELS: Mapping[str, Mapping[str, str]] = {
    "karpenter.sh/capacity-type": {"spot": "spot", "on-demand": "on-demand", "reserved": "reserved"},
    "eks.amazonaws.com/capacityType": {"SPOT": "spot", "ON_DEMAND": "on-demand", "CAPACITY_BLOCK": "reserved"},
    "cloud.google.com/gke-spot": {"true": "spot"},
    "cloud.google.com/gke-provisioning": {"spot": "spot", "standard": "on-demand"},
    "kubernetes.azure.com/scalesetpriority": {"spot": "spot", "regular": "on-demand"},
}
#: GPU feature discovery's name of the GPU model.
GPU_PRODUCT = "nvidia.com/gpu.product"
#: Labels that name the GPU model, most common first.
PRODUCT_LABELS = (
    GPU_PRODUCT,
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "amd.com/gpu.product-name",
)
#: GPU feature discovery's count of a node's GPUs, however they are shared or sliced.
GPU_COUNT = "nvidia.com/gpu.count"
#: The name of a node's pool, written for people: planning reads it only where the cloud gives no list of machines.
POOL_LABEL = "gpuscaler.io/pool"
#: Cloud controllers take nodes with this label out of load balancers (Kubernetes 1.21 and later). It is set on a node that is being
#: drained; the value tells our label from one that somebody else set, which stays.
EXCLUDE_LABEL, EXCLUDE_VALUE = "node.kubernetes.io/exclude-from-external-load-balancers", "gpuscaler-leaving"

# Taints of nodes.
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
#: A machine that is not open yet, and one that is kept for large pods (``min_gpus_per_pod``): both close it until a plan puts pods there.
ARRIVING_TAINT, KEPT_TAINT = CLOSING_TAINTS = ("gpuscaler.io/arriving", "gpuscaler.io/kept")
#: A machine that is being removed.
LEAVING_TAINT = "gpuscaler.io/leaving"
