"""Accelerators among resources: names of whole devices, and conversion of amounts to numbers of devices."""

from collections.abc import Mapping
from functools import lru_cache

from gpuscaler.model.pods import Resources
from gpuscaler.model.well_known import GPU_COUNT

#: Resources that count physical accelerators.
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "aws.amazon.com/neuron", "google.com/tpu")
#: Thousandths of GPUs, as in traces.
GPU_MILLI = "gpuscaler.io/gpu-milli"
#: Accelerators that are counted as units or in thousandths.
DIVISIBLE = (*ACCELERATORS, GPU_MILLI)
#: Prefixes of resources of device plug-ins: whole devices, and their replicas, slices and cores.
_PREFIXES = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "habana.ai/", "aws.amazon.com/neuron", "google.com/tpu")
#: What is meant by names that look like those of GPUs, in lower case.
_MEANT = {
    "alpha.kubernetes.io/nvidia-gpu": "nvidia.com/gpu",
    "kubernetes.io/nvidia-gpu": "nvidia.com/gpu",
    "nvidia/gpu": "nvidia.com/gpu",
    "nvidia.com/gpus": "nvidia.com/gpu",
    "nvidia.com.gpu": "nvidia.com/gpu",
    "nvidia.com/nvidia-gpu": "nvidia.com/gpu",
    "nvidia.com/gpu.count": "nvidia.com/gpu",
    "nvidia-gpu": "nvidia.com/gpu",
    "nvidia.io/gpu": "nvidia.com/gpu",
    "nvidia.gpu": "nvidia.com/gpu",
    "gpu": "nvidia.com/gpu",
    "gpus": "nvidia.com/gpu",
    "amd/gpu": "amd.com/gpu",
    "amd.com/gpus": "amd.com/gpu",
}
_NONE = (0,) * len(ACCELERATORS)


def count_accelerators(resources: Resources) -> int:
    """Return the number of physical accelerators in ``resources``; thousandths count as parts of a device."""
    count = sum(map(resources.get, ACCELERATORS, _NONE))
    return count or resources.get(GPU_MILLI, 0) // 1000


def node_accelerators(allocatable: Resources, labels: Mapping[str, str]) -> int:
    """Return the number of physical accelerators of a node. If it offers only replicas or slices of them, its label counts them."""
    label = labels.get(GPU_COUNT, "")
    return count_accelerators(allocatable) or (int(label) if label.isdecimal() else 0)


def are_divided(allocatable: Resources, sold: Resources) -> bool:
    """Whether a node offers parts of the accelerators that its type is ``sold`` with under other names: MIG slices, or renamed shares."""
    vendors = {name.partition("/")[0] for name in ACCELERATORS if sold.get(name)}
    parts = (name for name, amount in allocatable.items() if amount > 0 and not sold.get(name) and is_device(name))
    return any(name.partition("/")[0] in vendors for name in parts)


@lru_cache(maxsize=1 << 12)
def is_device(resource: str) -> bool:
    """Whether a resource is an accelerator or a part of one."""
    return resource == GPU_MILLI or resource.startswith(_PREFIXES)


def right_name(resource: str) -> str:
    """The name that was meant by ``resource``; empty if it may be right."""
    meant = _MEANT.get(resource.lower(), "")
    return meant or (resource.lower() if resource.lower() in ("nvidia.com/gpu", "amd.com/gpu") and not resource.islower() else "")
