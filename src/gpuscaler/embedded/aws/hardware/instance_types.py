"""Instance types as EC2 describes them, from our catalogue."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from gpuscaler.catalogue import InstanceType, lookup, types
from gpuscaler.embedded.aws.hardware.neuron_types import CORES, DEVICES, neuron_types
from gpuscaler.embedded.aws.hardware.small_types import small_types
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.model.accelerators import gpus_in

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
    priced = {one.name for one in types("aws", region)}
    catalogue = [one for one in types("aws") if not priced or one.name in priced or not (one.gpus or one.efa)]
    return (*catalogue, *small_types().values(), *neuron_types().values())


def known(name: str) -> InstanceType:
    """The type of that name. Raises :class:`AwsError` if there is none."""
    found = lookup(name) or small_types().get(name) or neuron_types().get(name)
    if found is None or found.cloud != "aws":
        raise AwsError("InvalidInstanceType", f"The following supplied instance types do not exist: [{name}]")
    return found


def price(name: str, region: str, market: str) -> float:
    """US dollars per hour, from the catalogue; the price of us-east-1 if the region's is unknown."""
    prices = known(name).prices
    found = prices.get(region) or prices.get("us-east-1") or next(iter(prices.values()))
    return (found.spot or found.on_demand) if market == "spot" else found.on_demand


def per_dollar(region: str) -> float:
    """A dollar in the currency of a region's prices: yuan in China."""
    return _YUAN if region.startswith("cn-") else 1.0


def info(found: InstanceType) -> dict[str, Any]:
    """A type as in DescribeInstanceTypes, as far as our catalogue has the data."""
    reply: dict[str, Any] = {
        "InstanceType": found.name,
        "CurrentGeneration": True,
        "FreeTierEligible": False,
        "SupportedUsageClasses": [*(["capacity-block"] if found.name in _IN_BLOCKS else []), "on-demand", "spot"],
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "BareMetal": ".metal" in found.name,
        "Hypervisor": "nitro",
        "ProcessorInfo": {"SupportedArchitectures": ["arm64" if found.arch == "arm64" else "x86_64"]},
        "VCpuInfo": {"DefaultVCpus": found.vcpu},
        "MemoryInfo": {"SizeInMiB": found.memory_mib},
        "NetworkInfo": network(found),
        "BurstablePerformanceSupported": found.name.startswith("t"),
    }
    if found.gpus and found.gpu_manufacturer:
        reply["GpuInfo"] = {
            "Gpus": [
                {
                    "Name": gpu_name(found),
                    "Manufacturer": found.gpu_manufacturer.upper(),
                    "Count": found.gpus,
                    "MemoryInfo": {"SizeInMiB": found.gpu_memory_mib},
                }
            ],
            "TotalGpuMemoryInMiB": found.gpus * found.gpu_memory_mib,
        }
    if devices := found.allocatable.get(DEVICES):
        cores = {"Count": found.allocatable[CORES] // devices, "Version": 1 if found.name.startswith("inf1.") else 2}
        name = "Trainium" if found.name.startswith("trn") else "Inferentia" if cores["Version"] == 1 else "Inferentia2"
        memory = 8192 if cores["Version"] == 1 else 32768
        device = {"Count": devices, "Name": name, "CoreInfo": cores, "MemoryInfo": {"SizeInMiB": memory}}
        reply["NeuronInfo"] = {"NeuronDevices": [device], "TotalNeuronDeviceMemoryInMiB": devices * memory}
    return reply


def gpu_name(found: InstanceType) -> str:
    """EC2's name of a GPU."""
    own = found.gpu_karpenter_name
    return _GPU_NAMES.get(own, own.upper())


def network(found: InstanceType) -> dict[str, Any]:
    """Interfaces, as far as they determine the pods per node: a number and addresses that give exactly the catalogue's pods."""
    interfaces, addresses = _network_of(found.allocatable["pods"])
    reply: dict[str, Any] = {
        "MaximumNetworkInterfaces": interfaces,
        "MaximumNetworkCards": max(1, found.efa),
        "DefaultNetworkCardIndex": 0,
        "Ipv4AddressesPerInterface": addresses,
        "Ipv6Supported": True,
        "EnaSupport": "required",
        "EfaSupported": found.efa > 0,
    }
    if found.efa:
        reply["EfaInfo"] = {"MaximumEfaInterfaces": found.efa}
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
    for found in in_region(region):
        memory, count, gpus = requirements.get("MemoryMiB", {}), requirements.get("AcceleratorCount"), gpus_in(found.allocatable)
        if (
            any(fnmatchcase(found.name, one) for one in allowed)
            and not any(fnmatchcase(found.name, one) for one in excluded)
            and ("arm64" if found.arch == "arm64" else "x86_64") in set(architectures)
            and _inside(found.vcpu, requirements.get("VCpuCount", {}))
            and _inside(found.memory_mib, memory)
            and (_inside(gpus, count) if count else not gpus or bool(requirements.get("AcceleratorTypes")))
            and _accelerated(found, requirements)
        ):
            names.append(found.name)
    return names


def _inside(value: float, bounds: Mapping[str, float]) -> bool:
    return bounds.get("Min", 0) <= value <= bounds.get("Max", float("inf"))


def _accelerated(found: InstanceType, requirements: Mapping[str, Any]) -> bool:
    makers, names = requirements.get("AcceleratorManufacturers"), requirements.get("AcceleratorNames")
    total = requirements.get("AcceleratorTotalMemoryMiB")
    if makers and found.gpu_manufacturer not in makers:
        return False
    if names and gpu_name(found).lower() not in names:
        return False
    return not total or _inside(found.gpus * found.gpu_memory_mib, total)
