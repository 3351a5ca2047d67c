"""The labels that a new node has without being configured.

Sources: Kubernetes' list of well-known labels; GPU feature discovery; the label lists of Karpenter's AWS, Azure and GCP providers; the
EKS, AKS and GKE documentation of node labels.
"""

import re
from collections.abc import Mapping

from gpuscaler.catalogue import InstanceType
from gpuscaler.model.pods import Resources

#: Parts that Karpenter's AWS provider reads from a type's name: category, generation (``p5en.48xlarge`` is p, 5).
_AWS_FAMILY = re.compile(r"([a-z]+)(?:-[0-9]+tb)?([0-9]+).*")

#: The zone label of each cloud's disk driver. Volumes and storage classes refer to it: EBS volumes that were created
#: before v1.33 of the driver have no other. Sources: aws-ebs-csi-driver#729; azuredisk-csi-driver, ``deploy/example/topology``; GKE's
#: regional persistent disks, and ``k8s.io/csi-translation-lib``, which writes the first and the last for disks of in-tree plug-ins.
STORAGE_ZONES = {
    "aws": "topology.ebs.csi.aws.com/zone",
    "azure": "topology.disk.csi.azure.com/zone",
    "gcp": "topology.gke.io/zone",
}

#: GKE's name of each product, in ``cloud.google.com/gke-accelerator``.
_GKE_ACCELERATOR = {
    "NVIDIA-L4": "nvidia-l4",
    "NVIDIA-A100-SXM4-40GB": "nvidia-tesla-a100",
    "NVIDIA-A100-SXM4-80GB": "nvidia-a100-80gb",
    "NVIDIA-H100-80GB-HBM3": "nvidia-h100-80gb",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": "nvidia-rtx-pro-6000",
}


def node_labels(
    *,
    pool: str,
    instance_type: str,
    market: str,
    zone: str,
    region: str,
    arch: str,
    cloud: str,
    details: InstanceType | None,
    allocatable: Resources,
) -> dict[str, str]:
    """Return the labels of a node of this offering. ``details`` is the catalogue's entry, if there is one; ``cloud`` may be ""."""
    labels = {
        "gpuscaler.io/pool": pool,
        "node.kubernetes.io/instance-type": instance_type,
        "beta.kubernetes.io/instance-type": instance_type,
        "kubernetes.io/arch": arch,
        "beta.kubernetes.io/arch": arch,
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        "karpenter.sh/capacity-type": market,
    }
    for name, value in (("zone", zone), ("region", region)):
        if value:
            labels[f"topology.kubernetes.io/{name}"] = value
            labels[f"failure-domain.beta.kubernetes.io/{name}"] = value
    if zone and cloud in STORAGE_ZONES:
        labels[STORAGE_ZONES[cloud]] = zone
    labels |= _market(cloud, market)
    labels |= gpu_feature_discovery(details, allocatable)
    if details is not None:
        labels |= {"aws": _aws, "azure": _azure, "gcp": _gcp}[details.cloud](details)
    return labels


def _market(cloud: str, market: str) -> Mapping[str, str]:
    """Return the cloud's labels for the capacity type. AKS and GKE label spot machines only."""
    spot = market == "spot"
    if cloud == "aws":
        return {"eks.amazonaws.com/capacityType": "SPOT" if spot else "ON_DEMAND"}
    if cloud == "azure" and spot:
        return {"kubernetes.azure.com/scalesetpriority": "spot"}
    if cloud == "gcp" and spot:
        return {"cloud.google.com/gke-spot": "true"}
    return {}


def gpu_feature_discovery(instance_type: InstanceType | None, allocatable: Resources) -> Mapping[str, str]:
    """Return the labels of NVIDIA's discovery. For types not in the catalogue, GPUs come from ``resources``, without a model."""
    model = instance_type if instance_type is not None and instance_type.gpus else None
    if model is not None and model.gpu_manufacturer != "nvidia":
        return {}
    count = model.gpus if model is not None else allocatable.get("nvidia.com/gpu", 0)
    if not count:
        return {}
    labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": str(count)}
    if model is not None:
        labels["nvidia.com/gpu.memory"] = str(model.gpu_visible_memory_mib)
        if model.gpu_product:
            labels["nvidia.com/gpu.product"] = model.gpu_product
    return labels


def _aws(instance_type: InstanceType) -> Mapping[str, str]:
    prefix = "karpenter.k8s.aws/instance-"
    family, _, size = instance_type.name.partition(".")
    labels = {
        f"{prefix}family": family,
        f"{prefix}size": size,
        f"{prefix}cpu": str(instance_type.vcpu),
        f"{prefix}memory": str(instance_type.memory_mib),
    }
    parts = _AWS_FAMILY.fullmatch(family)
    if parts:
        labels[f"{prefix}category"], labels[f"{prefix}generation"] = parts[1], parts[2]
    if instance_type.gpus:
        labels |= {
            f"{prefix}gpu-name": instance_type.gpu_karpenter_name,
            f"{prefix}gpu-manufacturer": instance_type.gpu_manufacturer,
            f"{prefix}gpu-count": str(instance_type.gpus),
            f"{prefix}gpu-memory": str(instance_type.gpu_memory_mib),
        }
    return labels


def _azure(instance_type: InstanceType) -> Mapping[str, str]:
    prefix = "karpenter.azure.com/sku-"
    family = instance_type.name.removeprefix("Standard_")[:1]
    labels = {
        f"{prefix}name": instance_type.name,
        f"{prefix}family": family,
        f"{prefix}cpu": str(instance_type.vcpu),
        f"{prefix}memory": str(instance_type.memory_mib),
    }
    if instance_type.gpus:
        labels |= {
            f"{prefix}gpu-name": instance_type.gpu_karpenter_name,
            f"{prefix}gpu-manufacturer": instance_type.gpu_manufacturer,
            f"{prefix}gpu-count": str(instance_type.gpus),
        }
        if instance_type.gpu_manufacturer == "nvidia":
            labels["kubernetes.azure.com/accelerator"] = "nvidia"
    return labels


def _gcp(instance_type: InstanceType) -> Mapping[str, str]:
    prefix = "karpenter.k8s.gcp/instance-"
    family = instance_type.name.partition("-")[0]
    labels = {
        f"{prefix}family": family,
        f"{prefix}cpu": str(instance_type.vcpu),
        f"{prefix}memory": str(instance_type.memory_mib),
        "cloud.google.com/machine-family": family,
    }
    if instance_type.gpus:
        labels[f"{prefix}gpu-count"] = str(instance_type.gpus)
        accelerator = (
            "nvidia-h100-mega-80gb" if instance_type.name.startswith("a3-mega") else _GKE_ACCELERATOR.get(instance_type.gpu_product)
        )
        if accelerator:
            labels["cloud.google.com/gke-accelerator"] = accelerator
    return labels
