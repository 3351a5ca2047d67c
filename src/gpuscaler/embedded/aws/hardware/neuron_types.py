"""Instance types with AWS's own accelerators, Inferentia and Trainium, which are missing in the catalogue.

Sizes, devices and cores are from DescribeInstanceTypes (moto 5, autumn 2026), pods from amazon-eks-ami's ``eni-max-pods.txt``, list prices
of us-east-1 from karpenter-provider-aws's generated data (January 2026).
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from gpuscaler.catalogue import InstanceType
from gpuscaler.embedded.aws.hardware.small_types import make_type

DEVICES, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
#: vCPUs, memory in MiB, pods, dollars per hour; devices, cores of each, EFA interfaces.
_TYPES: Final[Mapping[str, tuple[tuple[int, int, int, float], tuple[int, int, int]]]] = {
    "inf1.xlarge": ((4, 8192, 38, 0.228), (1, 4, 0)),
    "inf1.2xlarge": ((8, 16384, 38, 0.362), (1, 4, 0)),
    "inf1.6xlarge": ((24, 49152, 234, 1.18), (4, 4, 0)),
    "inf1.24xlarge": ((96, 196608, 321, 4.721), (16, 4, 1)),
    "inf2.xlarge": ((4, 16384, 58, 0.7582), (1, 2, 0)),
    "inf2.8xlarge": ((32, 131072, 234, 1.96786), (1, 2, 0)),
    "inf2.24xlarge": ((96, 393216, 737, 6.49063), (6, 2, 0)),
    "inf2.48xlarge": ((192, 786432, 737, 12.98127), (12, 2, 0)),
    "trn1.2xlarge": ((8, 32768, 58, 1.34375), (1, 2, 0)),
    "trn1.32xlarge": ((128, 524288, 247, 21.5), (16, 2, 8)),
    "trn1n.32xlarge": ((128, 524288, 247, 24.78), (16, 2, 16)),
}


@cache
def neuron_types() -> Mapping[str, InstanceType]:
    """These types, by name."""
    return {name: _type(name, size, *devices) for name, (size, devices) in _TYPES.items()}


def _type(name: str, size: tuple[int, int, int, float], devices: int, cores: int, efa: int) -> InstanceType:
    resources = {DEVICES: devices, CORES: devices * cores, **({"vpc.amazonaws.com/efa": efa} if efa else {})}
    return make_type(name, *size, efa=efa, devices=resources)
