"""The kubelet's checkpoint is read in every format that it has had."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscaler.exporter.attribution.allocations import Allocation, PluginDevice
from gpuscaler.exporter.attribution.checkpoint import CheckpointError, read_checkpoint
from gpuscaler.exporter.parts import Owner

UID = "0f8e1a52-3b61-4b0c-9a4e-6e2d5c1b7a90"
GPU = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000001"
SECOND = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000002"


def entry(ids: Any, **changes: Any) -> dict[str, Any]:
    return {"PodUID": UID, "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ids, "AllocResp": "CgA=", **changes}


def write_checkpoint(folder: Path, content: Any) -> Path:
    path = folder / "kubelet_internal_checkpoint"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "content",
    [
        # Kubernetes 1.20 and later: a list for each NUMA node, -1 if the plugin reports none
        {"Data": {"PodDeviceEntries": [entry({"0": [GPU], "1": [SECOND]})], "RegisteredDevices": {}}, "Checksum": 3001870236},
        {"Data": {"PodDeviceEntries": [entry({"-1": [GPU, SECOND]})], "RegisteredDevices": {"nvidia.com/gpu": [GPU]}}, "Checksum": 1},
        # The newest versions: with the boot id
        {"Data": {"PodDeviceEntries": [entry({"0": [GPU, SECOND], "1": None})]}, "Checksum": 1, "BootID": "d2c0a1f0"},
        # 1.11 to 1.19
        {"Data": {"PodDeviceEntries": [entry([GPU, SECOND])], "RegisteredDevices": {}}, "Checksum": 1},
        # 1.10 and before
        {"PodDeviceEntries": [entry([GPU, SECOND])], "RegisteredDevices": {}},
    ],
)
def test_checkpoint_entries_are_read_in_every_format(tmp_path: Path, content: Any) -> None:
    allocations = read_checkpoint(write_checkpoint(tmp_path, content))
    assert allocations.problems == ()
    assert allocations.allocations == (
        Allocation(Owner("", "", "main", UID), (PluginDevice("nvidia.com/gpu", GPU), PluginDevice("nvidia.com/gpu", SECOND))),
    )


@pytest.mark.parametrize("content", [{"Data": {"PodDeviceEntries": None}, "Checksum": 0}, {"Data": None}, {}, {"Data": {}}])
def test_a_node_without_allocations_has_an_empty_checkpoint(tmp_path: Path, content: Any) -> None:
    assert read_checkpoint(write_checkpoint(tmp_path, content)).allocations == ()


def test_an_invalid_checkpoint_entry_is_skipped_and_the_others_are_used(tmp_path: Path) -> None:
    content = {"Data": {"PodDeviceEntries": [entry("GPU"), 7, None, entry({"0": [GPU]}), entry(None), entry({})]}}
    allocations = read_checkpoint(write_checkpoint(tmp_path, content))
    assert [allocation.devices for allocation in allocations.allocations] == [(PluginDevice("nvidia.com/gpu", GPU),)]
    assert len(allocations.problems) == 3
    assert all(str(tmp_path) in problem for problem in allocations.problems)


@pytest.mark.parametrize("content", ["", '{"Data":{"PodDeviceEntr', "[]", '{"Data": 7}', "v1\x00\x01"])
def test_an_unparsable_checkpoint_raises_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(CheckpointError, match=r"kubelet_internal_checkpoint is not a kubelet checkpoint: "):
        read_checkpoint(write_checkpoint(tmp_path, content))


def test_a_missing_checkpoint_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no kubelet checkpoint at .*\(No such file or directory\)"):
        read_checkpoint(tmp_path / "kubelet_internal_checkpoint")


def test_an_oversized_checkpoint_is_not_read(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "")
    with path.open("r+b") as file:
        file.truncate(33 * 2**20)
    with pytest.raises(CheckpointError, match="is larger than"):
        read_checkpoint(path)
