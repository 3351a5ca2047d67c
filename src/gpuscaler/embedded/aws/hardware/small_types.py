"""Instance types that are common in first groups and missing in the catalogue: small ones without accelerators.

Sizes and list prices of us-east-1 are from AWS' pages of instance types and of on-demand prices, pods from amazon-eks-ami's
``eni-max-pods.txt`` (November 2026).
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from gpuscaler.catalogue import MIB, InstanceType, Price

_SOURCE: Final = "AWS' pages of instance types and on-demand prices, November 2026"
#: vCPUs, memory in MiB, pods, dollars per hour.
_TYPES: Final[Mapping[str, tuple[int, int, int, float]]] = {
    "t2.micro": (1, 1024, 4, 0.0116),
    "t2.small": (1, 2048, 11, 0.023),
    "t2.medium": (2, 4096, 17, 0.0464),
    "t2.large": (2, 8192, 35, 0.0928),
    "t2.xlarge": (4, 16384, 44, 0.1856),
    "t3.micro": (2, 1024, 4, 0.0104),
    "t3.small": (2, 2048, 11, 0.0208),
    "t3.medium": (2, 4096, 17, 0.0416),
    "m4.large": (2, 8192, 20, 0.10),
    "m4.xlarge": (4, 16384, 58, 0.20),
    "c4.large": (2, 3840, 29, 0.10),
}


@cache
def small_types() -> Mapping[str, InstanceType]:
    """These types, by name."""
    return {name: make_type(name, *row) for name, row in _TYPES.items()}


def make_type(
    name: str, vcpu: int, memory: int, pods: int, price: float, *, efa: int = 0, devices: Mapping[str, int] | None = None
) -> InstanceType:
    """A type that is missing in the catalogue, with ``memory`` in MiB and ``price`` in dollars per hour in us-east-1."""
    allocatable_mib = int(memory * 0.925) - 255 - 11 * pods - 100
    reserved = 60 if vcpu == 1 else 70 if vcpu == 2 else 70 + 5 * (min(vcpu, 4) - 2) + int(2.5 * max(0, vcpu - 4))
    return InstanceType(
        name=name,
        cloud="aws",
        arch="amd64",
        vcpu=vcpu,
        memory_mib=memory,
        gpus=0,
        gpu_product="",
        gpu_karpenter_name="",
        gpu_manufacturer="",
        gpu_memory_mib=0,
        gpu_visible_memory_mib=0,
        efa=efa,
        allocatable={
            "cpu": vcpu * 1000 - reserved,
            "memory": allocatable_mib * MIB,
            "ephemeral-storage": 17 * 1024 * MIB,
            "pods": pods,
            **(devices or {}),
        },
        prices={"us-east-1": Price(price, None, _SOURCE)},
        zone_ids={},
        source=_SOURCE,
        allocatable_source="Karpenter's rule for EKS",
    )
