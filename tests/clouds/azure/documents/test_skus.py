from typing import Any

import pytest
from tests.clouds.azure.documents.documents import FAMILY, SIZE, restriction, sku, sku_document

from gpuscaler import catalogue
from gpuscaler.clouds.azure.documents.skus import sku_in_catalogue, sku_of, skus_of
from gpuscaler.clouds.azure.documents.wire import ReadingError


def test_a_size_has_its_gpus_from_azure_and_their_product_from_the_catalogue() -> None:
    read = sku()

    assert (read.name, read.family, read.vcpus, read.memory_mib, read.gpus) == (SIZE, FAMILY, 24, 225_280, 1)
    assert (read.gpu_resource, read.product, read.arch, read.zones) == ("nvidia.com/gpu", "NVIDIA-A100-80GB-PCIe", "amd64", ("1", "2", "3"))


def test_a_size_that_the_catalogue_does_not_list_has_the_product_of_its_model() -> None:
    read = sku("Standard_NC12ads_H200_v9")

    assert catalogue.lookup(read.name) is None
    assert (read.gpus, read.gpu_resource, read.product) == (1, "nvidia.com/gpu", "NVIDIA-H200")


@pytest.mark.parametrize("name", ["Standard_ND96isr_MI355X_v6", "Standard_NV24ads_V710_v5"])
def test_gpus_of_amd_are_distinguished_by_their_model(name: str) -> None:
    assert sku(name).gpu_resource == "amd.com/gpu"


def test_a_part_of_a_gpu_counts_as_the_one_device_that_the_driver_shows() -> None:
    assert sku("Standard_NV6ads_A10_v5", GPUs="0.167").gpus == 1


@pytest.mark.parametrize("gpus", [None, "0"])
def test_a_size_without_gpus_has_no_gpu_resource(gpus: str | None) -> None:
    assert (sku(GPUs=gpus).gpus, sku(GPUs=gpus).gpu_resource) == (0, "")


def test_a_restriction_of_the_location_covers_machines_without_a_zone() -> None:
    read = sku(restrictions=[restriction()])

    assert read.restricted_everywhere
    assert read.is_restricted_in("")
    assert read.reason == "NotAvailableForSubscription"


def test_a_restriction_of_zones_covers_only_these() -> None:
    read = sku(restrictions=[restriction("1", "2")])

    assert [read.is_restricted_in(zone) for zone in ("", "1", "2", "3")] == [False, True, True, False]


def test_restrictions_of_other_locations_do_not_count() -> None:
    assert not sku(restrictions=[restriction(location="westus")]).is_restricted_in("")


def test_a_size_that_has_no_spot_machines_says_so() -> None:
    assert not sku(LowPriorityCapable="False").spot


def test_disks_and_other_locations_are_no_sizes() -> None:
    assert sku_of({**sku_document(), "resourceType": "disks"}, "eastus") is None
    assert sku_of(sku_document(), "westus") is None


@pytest.mark.parametrize(
    ("capabilities", "seen"),
    [
        ({"vCPUs": "many"}, "vCPUs"),
        ({"vCPUs": "-1"}, "vCPUs"),
        ({"vCPUs": "nan"}, "vCPUs"),
        ({"vCPUs": "1e300"}, "vCPUs"),
        ({"vCPUs": "0"}, "0 vCPUs"),
        ({"MemoryGB": None}, "MemoryGB"),
        ({"CpuArchitectureType": "Sparc"}, "Sparc"),
        ({"GPUs": 7}, "$.capabilities"),
    ],
)
def test_an_odd_size_is_reported_with_what_was_seen(capabilities: dict[str, Any], seen: str) -> None:
    with pytest.raises(ReadingError) as raised:
        sku_of(sku_document(**capabilities), "eastus")

    assert seen in str(raised.value)


def test_only_wanted_sizes_are_kept_and_an_odd_one_does_not_stop_the_rest() -> None:
    documents = [None, {"name": 7}, sku_document("Standard_Odd", vCPUs="x"), sku_document("Standard_Other"), sku_document()]
    skus, unreadable = skus_of(documents, "eastus", [SIZE.upper(), "standard_odd", "Standard_Missing"])

    assert list(skus) == [SIZE.lower()]
    assert list(unreadable) == ["standard_odd"]


def test_a_retired_size_has_the_numbers_of_the_catalogue() -> None:
    listed = sku_in_catalogue("Standard_NC6s_v3")

    assert listed is not None
    assert (listed.vcpus, listed.gpus, listed.gpu_resource) == (6, 1, "nvidia.com/gpu")
    assert sku_in_catalogue("p4d.24xlarge") is None
    assert sku_in_catalogue("Standard_Unknown") is None


def test_a_size_as_a_type_of_the_catalogue_has_what_akss_rule_leaves() -> None:
    read, listed = sku().instance_type(), catalogue.lookup(SIZE)

    assert listed is not None
    assert read.allocatable == listed.allocatable
