import re
import subprocess
import sys

import pytest

from gpuscaler import catalogue

GIB = 2**30
MIB = 2**20


def test_an_instance_type_is_found_by_its_exact_name_with_allocatable_resources() -> None:
    instance_type = catalogue.lookup("g5.xlarge")

    assert instance_type is not None
    assert (instance_type.cloud, instance_type.arch, instance_type.vcpu, instance_type.memory_mib, instance_type.gpus) == (
        "aws",
        "amd64",
        4,
        16384,
        1,
    )
    assert (instance_type.gpu_product, instance_type.gpu_karpenter_name) == ("NVIDIA-A10G", "a10g")
    assert instance_type.allocatable == {
        "cpu": 3920,
        "memory": 14162 * MIB,
        "ephemeral-storage": 17 * GIB,
        "pods": 58,
        "nvidia.com/gpu": 1,
    }
    assert instance_type.prices["us-east-1"].on_demand == 1.006


@pytest.mark.parametrize("name", ["", "g5", "G5.XLARGE", "g5.xlarge ", "ecs.gn7i-c8g1.2xlarge", "g6f.large", "Standard_NV4as_v4"])
def test_looking_up_an_unknown_instance_type_gives_none(name: str) -> None:
    assert catalogue.lookup(name) is None


def test_looking_up_a_type_in_a_region_without_a_price_gives_none() -> None:
    assert catalogue.lookup("g5.xlarge", "eu-west-1") is not None
    assert catalogue.lookup("g5.xlarge", "eu-north-1") is None


def test_instance_types_can_be_filtered_by_cloud_and_region() -> None:
    west = {instance_type.name for instance_type in catalogue.types("aws", "us-west-2")}

    assert "g5.xlarge" in west
    assert "m6i.xlarge" not in west  # known and priced in us-east-1 only
    assert {instance_type.cloud for instance_type in catalogue.types("gcp")} == {"gcp"}
    assert catalogue.types("aws", "us-central1") == ()
    assert {instance_type.cloud for instance_type in catalogue.types()} == set(catalogue.CLOUDS)


@pytest.mark.parametrize(
    ("name", "cpu", "memory", "pods"),
    [
        # 8 vCPU: 140 m of the first four cores and 10 m for each of four more; 57344 * 0.925 - (20e6 * 250 + 50e6) / 2**20 - 100
        ("Standard_NC8as_T4_v3", 7820, 48127, 250),
        # 4 vCPU, 8 GiB: a quarter of the memory is less than 20 MB per pod
        ("Standard_F4s_v2", 3860, 5429, 250),
        # 96 vCPU: 60 + 10 + 10 + 92 * 2.5 m; 393216 * 0.925 - (1024 + 819.2 + 819.2 + 6881.28 + 262144 * 0.02) - 100
        ("g2-standard-96", 95690, 348838, 110),
    ],
)
def test_unknown_allocatable_resources_are_estimated_by_the_reservation_rules_of_the_cloud(
    name: str, cpu: int, memory: int, pods: int
) -> None:
    instance_type = catalogue.lookup(name)

    assert instance_type is not None
    assert instance_type.allocatable["cpu"] == cpu
    assert instance_type.allocatable["memory"] == memory * MIB
    assert instance_type.allocatable["pods"] == pods
    assert instance_type.allocatable_source.startswith("DERIVED")


@pytest.mark.parametrize(
    ("name", "resource", "count"),
    [
        ("p4d.24xlarge", "nvidia.com/gpu", 8),
        ("g4ad.8xlarge", "amd.com/gpu", 2),
        ("Standard_ND96isr_MI300X_v5", "amd.com/gpu", 8),
        ("a2-megagpu-16g", "nvidia.com/gpu", 16),
        ("p5.48xlarge", "vpc.amazonaws.com/efa", 32),
    ],
)
def test_devices_are_offered_under_the_resource_name_of_their_vendor(name: str, resource: str, count: int) -> None:
    instance_type = catalogue.lookup(name)

    assert instance_type is not None
    assert instance_type.allocatable[resource] == count


def test_a_cpu_type_has_neither_gpus_nor_a_gpu_name() -> None:
    instance_type = catalogue.lookup("m6i.xlarge")

    assert instance_type is not None
    assert not any(resource.endswith("/gpu") for resource in instance_type.allocatable)
    assert (instance_type.gpus, instance_type.gpu_product, instance_type.gpu_memory_mib) == (0, "", 0)


def test_fractional_gpu_types_have_their_own_names_and_sizes() -> None:
    sixth, whole = catalogue.lookup("Standard_NV6ads_A10_v5"), catalogue.lookup("Standard_NV36ads_A10_v5")

    assert sixth is not None
    assert whole is not None
    assert (sixth.gpu_product, sixth.gpu_memory_mib) == ("NVIDIA-A10-4Q", 4096)
    assert (whole.gpu_product, whole.gpu_memory_mib) == ("NVIDIA-A10-24Q", 24576)


def test_every_price_is_positive_and_has_a_source() -> None:
    for instance_type in catalogue.types():
        assert instance_type.prices, instance_type.name
        for region, price in instance_type.prices.items():
            assert 0 < price.on_demand < 200, (instance_type.name, region)
            assert re.search(r"20[0-9]{2}-[0-9]{2}", price.source), (instance_type.name, region)
            assert (price.spot is None) == (price.spot_source == ""), (instance_type.name, region)
            if price.spot is not None:
                assert 0 < price.spot <= price.on_demand, (instance_type.name, region)


def test_allocatable_resources_are_below_those_of_the_machine() -> None:
    for instance_type in catalogue.types():
        assert 0 < instance_type.allocatable["cpu"] < instance_type.vcpu * 1000, instance_type.name
        assert 0 < instance_type.allocatable["memory"] < instance_type.memory_mib * MIB, instance_type.name
        assert instance_type.allocatable["pods"] > 0, instance_type.name
        assert (instance_type.gpus > 0) == (instance_type.gpu_memory_mib > 0) == (instance_type.gpu_manufacturer in {"nvidia", "amd"}), (
            instance_type.name
        )
        assert instance_type.gpu_visible_memory_mib <= instance_type.gpu_memory_mib * 1.02, instance_type.name


def test_gcp_prices_cover_regions_that_are_only_in_the_price_history() -> None:
    instance_type = catalogue.lookup("g2-standard-4", "europe-west3")

    assert instance_type is not None
    assert instance_type.prices["europe-west3"].spot is not None


def test_gpu_types_of_aws_list_the_zone_ids_that_sell_them() -> None:
    instance_type = catalogue.lookup("g5.xlarge")

    assert instance_type is not None
    assert "use1-az3" not in instance_type.zone_ids["us-east-1"]
    assert "use1-az1" in instance_type.zone_ids["us-east-1"]


def test_every_region_belongs_to_a_cloud() -> None:
    assert catalogue.regions()["us-east-1"] == "aws"
    assert catalogue.regions()["us-east1"] == "gcp"
    assert catalogue.regions()["eastus"] == "azure"


def test_importing_the_catalogue_reads_no_file_and_loading_is_quick() -> None:
    program = (
        "import time; from gpuscaler import catalogue\n"
        "assert catalogue._by_name.cache_info().currsize == 0\n"
        "best = 9.0\n"
        "for _ in range(5):\n"
        "    catalogue._by_name.cache_clear(); start = time.process_time(); catalogue.lookup('g5.xlarge')\n"
        "    best = min(best, time.process_time() - start)\n"
        "print(best)"
    )

    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    assert float(printed) < 0.1  # 15 ms on the machine where this was written; the margin is for slower ones
