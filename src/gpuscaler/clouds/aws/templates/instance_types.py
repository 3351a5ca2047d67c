"""Converts entries of DescribeInstanceTypes to the catalogue's form; the account's answer takes precedence over the catalogue."""

from collections.abc import Mapping
from functools import cache

import msgspec

from gpuscaler import catalogue
from gpuscaler.catalogue import MIB, InstanceType
from gpuscaler.clouds.aws.api.groups import Reply

ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
#: The share of memory that the hypervisor and the kernel use: Karpenter's default.
OVERHEAD = 0.075
#: MiB that the kubelet reserves: a base, an amount per pod, and the eviction threshold.
_BASE, _A_POD, _EVICTION = 255, 11, 100
#: MiB that the arm64 kernel reserves for devices.
_CMA = 64
_SOURCE, _RULE = "DescribeInstanceTypes", "by Karpenter's rule for EKS: kubelet reservations, 7.5 % of memory for the hypervisor"
_HABANA = "habana"


def type_of(reply: Reply) -> InstanceType:
    """One entry of ``InstanceTypes``. Raises ValueError with what was seen and expected."""
    try:
        return _type(reply)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"saw {type(error).__name__}: {error}, expected an entry as DescribeInstanceTypes gives it") from error


def _type(reply: Reply) -> InstanceType:
    name = reply["InstanceType"]
    listed = reply["ProcessorInfo"]["SupportedArchitectures"]
    arch = next((ARCHITECTURES[architecture] for architecture in listed if architecture in ARCHITECTURES), "")
    if not arch:
        raise ValueError(f"saw the architectures {', '.join(listed)}, expected {' or '.join(ARCHITECTURES)}")
    vcpu, memory = int(reply["VCpuInfo"]["DefaultVCpus"]), int(reply["MemoryInfo"]["SizeInMiB"])
    network = reply.get("NetworkInfo") or {}
    efa = int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0)
    gpus, maker, model, gpu_memory = _gpus(reply.get("GpuInfo") or {})
    instance_type = catalogue.lookup(name)
    product, visible = _product(instance_type, maker, model, gpu_memory)
    return InstanceType(
        name=name,
        cloud="aws",
        arch=arch,
        vcpu=vcpu,
        memory_mib=memory,
        gpus=gpus,
        gpu_product=product,
        gpu_karpenter_name=instance_type.gpu_karpenter_name if instance_type else model,
        gpu_manufacturer=maker,
        gpu_memory_mib=gpu_memory,
        gpu_visible_memory_mib=visible,
        efa=efa,
        allocatable=_allocatable(vcpu, memory, _pods(network), arch=arch) | _devices(reply, gpus, maker),
        prices=instance_type.prices if instance_type else {},
        zone_ids=instance_type.zone_ids if instance_type else {},
        source=_SOURCE,
        allocatable_source=_RULE,
        instance_store=int((reply.get("InstanceStorageInfo") or {}).get("TotalSizeInGB") or 0) * 10**9,
    )


def _gpus(info: Reply) -> tuple[int, str, str, int]:
    """(count, manufacturer, name, MiB each). A fraction of a GPU counts as the one device that the driver shows."""
    entries = info.get("Gpus") or ()
    if not entries:
        return 0, "", "", 0
    first = entries[0]
    count = sum(int(entry.get("LogicalGpuCount") or entry["Count"]) for entry in entries)
    maker = str(first.get("Manufacturer", "")).lower()
    model = str(first.get("Name", "")).lower().replace(" ", "-")
    return count, maker, model, int((first.get("MemoryInfo") or {}).get("SizeInMiB") or 0)


def _product(instance_type: InstanceType | None, maker: str, model: str, memory: int) -> tuple[str, int]:
    """(value of ``nvidia.com/gpu.product``, visible MiB): the catalogue's for the type, else for another type with this GPU."""
    if instance_type is not None:
        return instance_type.gpu_product, instance_type.gpu_visible_memory_mib
    return _products().get((maker, model, memory), ("", memory))


@cache
def _products() -> Mapping[tuple[str, str, int], tuple[str, int]]:
    return {
        (instance_type.gpu_manufacturer, instance_type.gpu_karpenter_name, instance_type.gpu_memory_mib): (
            instance_type.gpu_product,
            instance_type.gpu_visible_memory_mib,
        )
        for instance_type in catalogue.types("aws")
        if instance_type.gpus
    }


def _devices(reply: Reply, gpus: int, maker: str) -> dict[str, int]:
    if gpus:
        return {"habana.ai/gaudi" if maker == _HABANA else f"{maker}.com/gpu": gpus}
    neuron = (reply.get("NeuronInfo") or {}).get("NeuronDevices") or ()
    devices = sum(int(device["Count"]) for device in neuron)
    cores = sum(int(device["Count"]) * int((device.get("CoreInfo") or {}).get("Count") or 0) for device in neuron)
    if not devices:
        return {}
    # The device plug-in of Neuron 2.20 (September 2024) and later no longer shows "neurondevice".
    return {"aws.amazon.com/neuron": devices, "aws.amazon.com/neuroncore": cores}


def _pods(network: Reply) -> int:
    """The pod limit: addresses of the default card's interfaces, minus one each, plus two on the host's network; 110 if unknown."""
    cards = network.get("NetworkCards") or ()
    interfaces = int(cards[0]["MaximumNetworkInterfaces"]) if cards else int(network.get("MaximumNetworkInterfaces") or 0)
    addresses = int(network.get("Ipv4AddressesPerInterface") or 0)
    return interfaces * (addresses - 1) + 2 if interfaces and addresses else 110


def _allocatable(vcpu: int, memory: int, pods: int, *, arch: str) -> dict[str, int]:
    """Karpenter's rule for EKS: it reserves 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest."""
    memory -= _CMA if arch == "arm64" else 0
    tiers = ((0, 1, 60.0), (1, 2, 10.0), (2, 4, 5.0), (4, vcpu, 2.5))
    reserved = sum((min(vcpu, high) - low) * rate for low, high, rate in tiers if vcpu > low)
    remaining = memory * (1 - OVERHEAD) - (_BASE + _A_POD * pods) - _EVICTION
    return {"cpu": vcpu * 1000 - int(reserved), "memory": int(remaining) * MIB, "ephemeral-storage": 17 * 1024 * MIB, "pods": pods}


def with_disk(kind: InstanceType, gib: int) -> InstanceType:
    """The type with a disk of ``gib`` GiB: a tenth stays free for the eviction threshold, 1 GiB is for the kubelet.

    0 keeps the 20 GiB of the rule.
    """
    if not gib:
        return kind
    room = max(int(gib * 0.9 * 1024) - 1024, 0) * MIB
    return msgspec.structs.replace(kind, allocatable={**kind.allocatable, "ephemeral-storage": room})


def with_local_disks(kind: InstanceType) -> InstanceType:
    """The type with pods' files on all its local disks as one (RAID 0); unchanged if it has no local disks."""
    if not kind.instance_store:
        return kind
    room = max(int(kind.instance_store * 0.9) // MIB - 1024, 0) * MIB
    return msgspec.structs.replace(kind, allocatable={**kind.allocatable, "ephemeral-storage": room})


def with_pods(kind: InstanceType, pods: int) -> InstanceType:
    """The type with a kubelet limit of ``pods`` pods, regardless of addresses, with memory reserved for each. 0 keeps the rule's number."""
    if not pods or pods == kind.allocatable["pods"]:
        return kind
    memory = kind.allocatable["memory"] - (pods - kind.allocatable["pods"]) * _A_POD * MIB
    return msgspec.structs.replace(kind, allocatable={**kind.allocatable, "pods": pods, "memory": max(memory, 0)})
