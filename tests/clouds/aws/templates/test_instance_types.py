from typing import Any

import pytest

from gpuscaler import catalogue
from gpuscaler.catalogue import MIB
from gpuscaler.clouds.aws.templates.instance_types import type_of, with_disk, with_local_disks, with_pods


def reply(name: str = "x9.xlarge", **fields: Any) -> dict[str, Any]:
    return {
        "InstanceType": name,
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": 4},
        "MemoryInfo": {"SizeInMiB": 16_384},
        "NetworkInfo": {"MaximumNetworkInterfaces": 4, "Ipv4AddressesPerInterface": 15},
        **fields,
    }


def gpu(maker: str, name: str, count: int, memory: int, **more: Any) -> dict[str, Any]:
    return {"GpuInfo": {"Gpus": [{"Manufacturer": maker, "Name": name, "Count": count, "MemoryInfo": {"SizeInMiB": memory}, **more}]}}


def test_allocatable_resources_agree_with_the_catalogue_for_every_type() -> None:
    """The catalogue's figures come from Karpenter's own tables, this formula from its documentation."""
    for instance_type in catalogue.types("aws"):
        interfaces, addresses = 1, instance_type.allocatable["pods"] - 1
        made = type_of(
            reply(
                instance_type.name,
                ProcessorInfo={"SupportedArchitectures": ["arm64" if instance_type.arch == "arm64" else "x86_64"]},
                VCpuInfo={"DefaultVCpus": instance_type.vcpu},
                MemoryInfo={"SizeInMiB": instance_type.memory_mib},
                NetworkInfo={"MaximumNetworkInterfaces": interfaces, "Ipv4AddressesPerInterface": addresses},
            )
        )

        for resource in ("cpu", "pods", "ephemeral-storage"):
            assert made.allocatable[resource] == instance_type.allocatable[resource], instance_type.name
        assert abs(made.allocatable["memory"] - instance_type.allocatable["memory"]) <= MIB, instance_type.name


def test_an_uncatalogued_type_has_the_gpu_product_label_of_another_type_with_that_gpu() -> None:
    instance_type = catalogue.lookup("g5.xlarge")
    assert instance_type is not None

    made = type_of(reply(**gpu("NVIDIA", "A10G", 2, instance_type.gpu_memory_mib)))

    assert made.allocatable["nvidia.com/gpu"] == 2
    assert (made.gpu_product, made.gpu_visible_memory_mib) == (instance_type.gpu_product, instance_type.gpu_visible_memory_mib)


def test_a_fraction_of_a_gpu_counts_as_one_device() -> None:
    made = type_of(reply(**gpu("NVIDIA", "L4", 0, 2_861, LogicalGpuCount=1, GpuPartitionSize=0.125)))

    assert made.allocatable["nvidia.com/gpu"] == 1


def test_accelerators_of_other_vendors_have_their_own_resource_names() -> None:
    assert type_of(reply(**gpu("AMD", "Radeon Pro V520", 1, 8_192))).allocatable["amd.com/gpu"] == 1
    assert type_of(reply(**gpu("Habana", "Gaudi HL-205", 8, 32_768))).allocatable["habana.ai/gaudi"] == 8
    neuron: dict[str, Any] = {"NeuronInfo": {"NeuronDevices": [{"Count": 16, "Name": "Trainium", "CoreInfo": {"Count": 2}}]}}
    allocatable = type_of(reply(**neuron)).allocatable
    assert (allocatable["aws.amazon.com/neuron"], allocatable["aws.amazon.com/neuroncore"]) == (16, 32)
    assert "aws.amazon.com/neurondevice" not in allocatable


def test_the_pod_limit_is_computed_from_the_addresses_of_the_default_network_card() -> None:
    cards = {"NetworkCards": [{"MaximumNetworkInterfaces": 15}, {"MaximumNetworkInterfaces": 15}], "Ipv4AddressesPerInterface": 50}

    assert type_of(reply(NetworkInfo={**cards, "MaximumNetworkInterfaces": 60})).allocatable["pods"] == 15 * 49 + 2
    assert type_of(reply(NetworkInfo={})).allocatable["pods"] == 110


def test_a_larger_disk_gives_more_allocatable_ephemeral_storage() -> None:
    kind = type_of(reply())

    assert with_disk(kind, 0) is kind
    assert with_disk(kind, 100).allocatable["ephemeral-storage"] == 89 * 2**30


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"ProcessorInfo": {"SupportedArchitectures": ["arm64_mac"]}}, "saw the architectures arm64_mac"),
        ({"VCpuInfo": {}}, "DefaultVCpus"),
        ({"MemoryInfo": None}, "TypeError"),
        ({"GpuInfo": {"Gpus": [{"Name": "A10G"}]}}, "Count"),
    ],
)
def test_an_unparsable_instance_type_raises_an_error_with_the_value(odd: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        type_of(reply(**odd))


def test_instance_store_disks_count_as_ephemeral_storage_if_pods_use_them() -> None:
    """A p5.48xlarge: eight disks of 3,840 GB."""
    kind = type_of(reply(InstanceStorageInfo={"TotalSizeInGB": 30_720}))

    assert with_local_disks(kind).allocatable["ephemeral-storage"] > 25_000 * 2**30
    assert kind.allocatable["ephemeral-storage"] == 17 * 2**30
    assert with_local_disks(plain := type_of(reply())) is plain


def test_a_kubelet_with_another_pod_limit_reserves_memory_for_each_pod() -> None:
    kind = type_of(reply())

    assert with_pods(kind, 0) is kind
    assert with_pods(kind, 110).allocatable["pods"] == 110
    assert kind.allocatable["memory"] - with_pods(kind, 110).allocatable["memory"] == (110 - kind.allocatable["pods"]) * 11 * MIB
