"""Instance types as EC2 describes them, from our catalogue."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from gpuscaler.catalogue import InstanceType, lookup, types
from gpuscaler.embedded.aws.hardware.neuron_types import CORES, DEVICES, neuron_types
from gpuscaler.embedded.aws.hardware.small_types import small_types
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.model.accelerators import count_accelerators

#: Karpenter's GPU names in the spelling of DescribeInstanceTypes, where that is not simply upper case.
_GPU_NAMES: Final = {"rtx-pro-server-6000": "RTX PRO Server 6000", "radeon-pro-v520": "Radeon Pro V520", "t4g": "T4g"}

#: EC2's combinations of addresses per network interface and interfaces; the first that gives a type's pods is used.
_ADDRESSES: Final = (10, 15, 30, 50, 12, 6, 4, 20, 18, 8, 5, 2)
_INTERFACES: Final = range(2, 65)

#: Amazon's prices in China are in yuan.
_YUAN: Final = 7.12

#: Types that are also sold in Capacity Blocks, by DescribeInstanceTypes of us-east-1 (as moto 5 has it, autumn 2026).
_IN_BLOCKS: Final = frozenset(
    {"p4d.24xlarge", "p4de.24xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"}
    | {"trn1.32xlarge", "trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"}
)


def in_region(region: str) -> tuple[InstanceType, ...]:
    """The types of a region: all without accelerators, and those with accelerators that have a price there, or all if none has one."""
    priced = {instance_type.name for instance_type in types("aws", region)}
    catalogue = [
        instance_type
        for instance_type in types("aws")
        if not priced or instance_type.name in priced or not (instance_type.gpus or instance_type.efa)
    ]
    return (*catalogue, *small_types().values(), *neuron_types().values())


def get_type(name: str) -> InstanceType:
    """The type of that name. Raises :class:`AwsError` if there is none."""
    instance_type = lookup(name) or small_types().get(name) or neuron_types().get(name)
    if instance_type is None or instance_type.cloud != "aws":
        raise AwsError("InvalidInstanceType", f"The following supplied instance types do not exist: [{name}]")
    return instance_type


def price(name: str, region: str, market: str) -> float:
    """US dollars per hour, from the catalogue; the price of us-east-1 if the region's is unknown."""
    prices = get_type(name).prices
    price = prices.get(region) or prices.get("us-east-1") or next(iter(prices.values()))
    return (price.spot or price.on_demand) if market == "spot" else price.on_demand


def per_dollar(region: str) -> float:
    """A dollar in the currency of a region's prices: yuan in China."""
    return _YUAN if region.startswith("cn-") else 1.0


def info(instance_type: InstanceType) -> dict[str, Any]:
    """A type as in DescribeInstanceTypes, as far as our catalogue has the data."""
    reply: dict[str, Any] = {
        "InstanceType": instance_type.name,
        "CurrentGeneration": True,
        "FreeTierEligible": False,
        "SupportedUsageClasses": [*(["capacity-block"] if instance_type.name in _IN_BLOCKS else []), "on-demand", "spot"],
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "BareMetal": ".metal" in instance_type.name,
        "Hypervisor": "nitro",
        "ProcessorInfo": {"SupportedArchitectures": ["arm64" if instance_type.arch == "arm64" else "x86_64"]},
        "VCpuInfo": {"DefaultVCpus": instance_type.vcpu},
        "MemoryInfo": {"SizeInMiB": instance_type.memory_mib},
        "NetworkInfo": network(instance_type),
        "BurstablePerformanceSupported": instance_type.name.startswith("t"),
    }
    if instance_type.gpus and instance_type.gpu_manufacturer:
        reply["GpuInfo"] = {
            "Gpus": [
                {
                    "Name": gpu_name(instance_type),
                    "Manufacturer": instance_type.gpu_manufacturer.upper(),
                    "Count": instance_type.gpus,
                    "MemoryInfo": {"SizeInMiB": instance_type.gpu_memory_mib},
                }
            ],
            "TotalGpuMemoryInMiB": instance_type.gpus * instance_type.gpu_memory_mib,
        }
    if devices := instance_type.allocatable.get(DEVICES):
        cores = {"Count": instance_type.allocatable[CORES] // devices, "Version": 1 if instance_type.name.startswith("inf1.") else 2}
        name = "Trainium" if instance_type.name.startswith("trn") else "Inferentia" if cores["Version"] == 1 else "Inferentia2"
        memory = 8192 if cores["Version"] == 1 else 32768
        device = {"Count": devices, "Name": name, "CoreInfo": cores, "MemoryInfo": {"SizeInMiB": memory}}
        reply["NeuronInfo"] = {"NeuronDevices": [device], "TotalNeuronDeviceMemoryInMiB": devices * memory}
    return reply


def gpu_name(instance_type: InstanceType) -> str:
    """EC2's name of a GPU."""
    own = instance_type.gpu_karpenter_name
    return _GPU_NAMES.get(own, own.upper())


def network(instance_type: InstanceType) -> dict[str, Any]:
    """Interfaces, as far as they determine the pods per node: a number and addresses that give exactly the catalogue's pods."""
    interfaces, addresses = _network_of(instance_type.allocatable["pods"])
    reply: dict[str, Any] = {
        "MaximumNetworkInterfaces": interfaces,
        "MaximumNetworkCards": max(1, instance_type.efa),
        "DefaultNetworkCardIndex": 0,
        "Ipv4AddressesPerInterface": addresses,
        "Ipv6Supported": True,
        "EnaSupport": "required",
        "EfaSupported": instance_type.efa > 0,
    }
    if instance_type.efa:
        reply["EfaInfo"] = {"MaximumEfaInterfaces": instance_type.efa}
    return reply


def _network_of(pods: int) -> tuple[int, int]:
    """Interfaces and addresses of each: all but one address of each interface are for pods, and two pods use the host's network."""
    for addresses in _ADDRESSES:
        interfaces, rest = divmod(pods - 2, addresses - 1)
        if not rest and interfaces in _INTERFACES:
            return interfaces, addresses
    return 1, pods - 1


def satisfying(requirements: Mapping[str, Any], region: str, architectures: Iterable[str]) -> list[str]:
    """The types that match attribute-based requirements, by name: vCPUs, memory, accelerators, included and excluded types."""
    allowed, excluded = requirements.get("AllowedInstanceTypes") or ["*"], requirements.get("ExcludedInstanceTypes") or []
    names = []
    for instance_type in in_region(region):
        memory, count, gpus = (
            requirements.get("MemoryMiB", {}),
            requirements.get("AcceleratorCount"),
            count_accelerators(instance_type.allocatable),
        )
        if (
            any(fnmatchcase(instance_type.name, pattern) for pattern in allowed)
            and not any(fnmatchcase(instance_type.name, pattern) for pattern in excluded)
            and ("arm64" if instance_type.arch == "arm64" else "x86_64") in set(architectures)
            and _inside(instance_type.vcpu, requirements.get("VCpuCount", {}))
            and _inside(instance_type.memory_mib, memory)
            and (_inside(gpus, count) if count else not gpus or bool(requirements.get("AcceleratorTypes")))
            and _accelerated(instance_type, requirements)
        ):
            names.append(instance_type.name)
    return names


def _inside(value: float, bounds: Mapping[str, float]) -> bool:
    return bounds.get("Min", 0) <= value <= bounds.get("Max", float("inf"))


def _accelerated(instance_type: InstanceType, requirements: Mapping[str, Any]) -> bool:
    makers, names = requirements.get("AcceleratorManufacturers"), requirements.get("AcceleratorNames")
    total = requirements.get("AcceleratorTotalMemoryMiB")
    if makers and instance_type.gpu_manufacturer not in makers:
        return False
    if names and gpu_name(instance_type).lower() not in names:
        return False
    return not total or _inside(instance_type.gpus * instance_type.gpu_memory_mib, total)
