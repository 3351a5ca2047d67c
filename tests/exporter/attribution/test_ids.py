"""All names that plugins and drivers give to a GPU are resolved to the device of the driver."""

import pytest

from gpuscaler.exporter.attribution.ids import DeviceIndex
from gpuscaler.exporter.parts import Device, Instance

FIRST = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000001"
SPLIT = "GPU-8e0b7a90-0a55-4a3c-8f5d-77aa00000002"
SMALL = "MIG-5c0d3ef1-9a7b-5d10-a1c4-0123456789ab"
LARGE = "MIG-77aa11bb-1f2e-5d10-b2d5-ba9876543210"
OLD = "GPU-3d9f4e61-2b6d-4f0c-a7a8-99bb00000003"
OLD_PART = f"MIG-{OLD}/7/0"

NODE = DeviceIndex(
    [
        Device(FIRST, 0, 1, "NVIDIA A100-SXM4-40GB", "00000000:07:00.0"),
        Device(
            SPLIT, 1, 0, "NVIDIA A100-SXM4-40GB", "00000001:0F:00.0", (Instance(SMALL, 9, 0, "1g.5gb"), Instance(LARGE, 2, 0, "3g.20gb"))
        ),
        Device(OLD, 2, -1, "NVIDIA A100-PCIE-40GB", "", (Instance(OLD_PART, 7, 0, "1g.5gb+me"),)),
    ]
)


@pytest.mark.parametrize(
    ("device_id", "resource", "key"),
    [
        # NVIDIA's device plugin: whole GPUs, MIG devices, and replicas of both for time-slicing and MPS
        (FIRST, "nvidia.com/gpu", FIRST),
        (FIRST.upper(), "nvidia.com/gpu", FIRST),
        (f"{FIRST}::0", "nvidia.com/gpu.shared", FIRST),
        (f"{FIRST}::11", "nvidia.com/gpu", FIRST),
        (FIRST, "example.com/renamed-gpu", FIRST),
        (SMALL, "nvidia.com/mig-1g.5gb", SMALL),
        (f"{SMALL}::3", "nvidia.com/mig-1g.5gb.shared", SMALL),
        # MIG devices of drivers before 470, whether or not the driver still uses these names
        (OLD_PART, "nvidia.com/mig-1g.5gb", OLD_PART),
        (f"{OLD_PART}::2", "nvidia.com/mig-1g.5gb", OLD_PART),
        (f"MIG-{SPLIT}/9/0", "nvidia.com/mig-1g.5gb", SMALL),
        (f"MIG-{SPLIT}/2/0", "nvidia.com/gpu", LARGE),
        # GKE's device plugin: device files, by minor number
        ("nvidia1", "nvidia.com/gpu", FIRST),
        ("nvidia0/gi2", "nvidia.com/gpu", LARGE),
        ("nvidia1/vgpu3", "nvidia.com/gpu", FIRST),
        ("nvidia0/gi9/vgpu0", "nvidia.com/gpu", SMALL),
        # Numbers as in nvidia-smi
        ("0", "nvidia.com/gpu", FIRST),
        ("0::4", "nvidia.com/gpu", FIRST),
        ("1:0", "nvidia.com/mig-1g.5gb", SMALL),
        # Other plugins: shares, and PCI addresses
        (f"{FIRST}-7", "nvidia.com/gpumem", FIRST),
        (f"{FIRST}-_-12", "aliyun.com/gpu-mem", FIRST),
        ("0000:07:00.0", "amd.com/gpu", FIRST),
        ("0001:0f:00.0", "nvidia.com/gpu", SPLIT),
    ],
)
def test_a_device_is_found_by_each_of_its_names(device_id: str, resource: str, key: str) -> None:
    assert NODE.of_plugin(device_id, resource=resource) == key


@pytest.mark.parametrize(
    ("device_id", "resource"),
    [
        ("GPU-00000000-7c1e-4c11-9d3e-5b1c00000001", "nvidia.com/gpu"),
        (f"MIG-{SPLIT}/9/1", "nvidia.com/mig-1g.5gb"),
        (f"MIG-{FIRST}/1/0", "nvidia.com/mig-1g.5gb"),
        ("nvidia7", "nvidia.com/gpu"),
        ("nvidia1/gi1", "nvidia.com/gpu"),
        ("nvidia0/gi4", "nvidia.com/gpu"),
        ("9", "nvidia.com/gpu"),
        ("1:2", "nvidia.com/gpu"),
        ("0000:08:00.0", "amd.com/gpu"),
        ("", "nvidia.com/gpu"),
        ("::1", "nvidia.com/gpu"),
        ("GPU-", "nvidia.com/gpu"),
        # Other plugins use numbers too, for things that are not GPUs.
        ("0", "rdma/hca"),
        ("nvidia0", "example.com/disk"),
        ("fuse-1", "smarter-devices/fuse"),
    ],
)
def test_a_name_of_no_device_of_the_driver_is_unknown(device_id: str, resource: str) -> None:
    assert NODE.of_plugin(device_id, resource=resource) is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gpu-1", FIRST),
        ("gpu-0", SPLIT),
        ("gpu-0-mig-1g5gb-19-4", SMALL),
        ("gpu-0-mig-3g20gb-9-0", LARGE),
        ("gpu-0-mig-7g40gb-0-0", None),
        ("gpu-5", None),
        ("gpu-vfio-0", None),
        ("channel-0", None),
    ],
)
def test_the_device_of_a_resource_claim_is_found_by_minor_number_and_profile(name: str, key: str | None) -> None:
    assert NODE.of_claim(name) == key


def test_an_ambiguous_profile_of_two_mig_devices_resolves_to_none() -> None:
    parts = Instance(SMALL, 9, 0, "1g.5gb"), Instance(LARGE, 10, 0, "1g.5gb")
    node = DeviceIndex([Device(SPLIT, 0, 0, "NVIDIA A100-SXM4-40GB", "", parts)])
    assert node.of_claim("gpu-0-mig-1g5gb-19-4") is None


def test_a_mig_profile_with_a_suffix_is_found_by_its_name_in_a_resource_claim() -> None:
    node = DeviceIndex([Device(OLD, 0, 4, "NVIDIA A100-PCIE-40GB", "", (Instance(OLD_PART, 7, 0, "1g.5gb+me"),))])
    assert node.of_claim("gpu-4-mig-1g5gb-me-20-6") == OLD_PART
