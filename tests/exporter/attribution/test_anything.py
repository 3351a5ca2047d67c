"""Any input from outside is parsed or skipped: nothing else happens."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporter.attribution.kubelet import claim, container, devices, part, pod
from tests.soaking import examples

from gpuscaler.exporter.attribution.cgroups import parse_cgroups
from gpuscaler.exporter.attribution.checkpoint import CheckpointError, read_checkpoint
from gpuscaler.exporter.attribution.ids import DeviceIndex
from gpuscaler.exporter.attribution.messages import ListAnswers, NotListedError
from gpuscaler.exporter.attribution.names import ContainerNames
from gpuscaler.exporter.parts import Device, Instance

GPU = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000001"
PART = "MIG-5c0d3ef1-9a7b-5d10-a1c4-0123456789ab"
NODE = DeviceIndex([Device(GPU, 0, 0, "NVIDIA H100 80GB HBM3", "00000000:07:00.0", (Instance(PART, 9, 0, "1g.10gb"),))])
ANSWER = b"".join(
    part(1, pod("ml", f"p{n}", container("main", devices(GPU, "x"), devices("y", resource="r")), container("b", claims=[claim("gpu-0")])))
    for n in range(3)
)

few = settings(max_examples=examples(150), deadline=None)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Data", "PodDeviceEntries", "PodUID", "DeviceIDs", "ContainerName", "0"]), inner, max_size=4)
    ),
    max_leaves=12,
)
#: Numbers of any length; Python refuses to read those of thousands of digits.
digits = st.text("0123456789", min_size=1, max_size=3) | st.sampled_from(["9" * 30, "1" * 5000, "\u0663"])
FORMS = (
    "{n}",
    "{n}:{m}",
    "nvidia{n}",
    "nvidia{n}/gi{m}",
    "nvidia{n}/vgpu{m}",
    f"{GPU}::{{n}}",
    f"MIG-{GPU}/{{n}}/{{m}}",
    "gpu-{n}-mig-1g10gb-{m}-0",
)
names = st.text(max_size=60) | st.builds(lambda form, n, m: form.format(n=n, m=m), st.sampled_from(FORMS), digits, digits)


@few
@given(st.lists(st.tuples(st.integers(0, len(ANSWER) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(ANSWER)))
def test_a_damaged_kubelet_response_is_parsed_or_skipped(changes: list[tuple[int, int]], end: int) -> None:
    damaged = bytearray(ANSWER)
    for place, value in changes:
        damaged[place] = value
    for answer in (bytes(damaged), bytes(damaged[:end])):
        try:
            allocations = ListAnswers().read(answer)
        except NotListedError:
            continue
        assert all(allocation.devices for allocation in allocations.allocations)


@few
@given(json_values)
def test_a_checkpoint_with_any_json_is_parsed_or_skipped(value: Any) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubelet_internal_checkpoint"
        path.write_text(json.dumps(value))
        try:
            allocations = read_checkpoint(path)
        except CheckpointError:
            return
        assert all(allocation.devices for allocation in allocations.allocations)


@few
@given(names, st.sampled_from(["nvidia.com/gpu", "example.com/gpu", ""]))
def test_any_device_name_is_resolved_or_reported_as_unknown(name: str, resource: str) -> None:
    assert NODE.of_plugin(name, resource=resource) in (None, GPU, PART)
    assert NODE.of_claim(name) in (None, GPU, PART)


@few
@given(st.text(max_size=200) | st.builds(lambda text: f"0::/kubepods/pod{text}/x", st.text(max_size=40)))
def test_a_cgroup_with_any_path_is_parsed_or_skipped(cgroups: str) -> None:
    place = parse_cgroups(cgroups)
    assert place is None or set(place.uid) <= set("0123456789abcdef-")


@few
@given(st.binary(min_size=1, max_size=60).filter(lambda raw: b"\0" not in raw))
def test_a_container_log_link_to_any_path_is_parsed_or_skipped(target: bytes) -> None:
    with TemporaryDirectory() as folder:
        for name, place in (("a.log", target), ("b.log", b"/var/log/pods/ml_" + target.replace(b"/", b"") + b"_0f8e1a52/main/0.log")):
            (Path(folder) / name).symlink_to(os.fsdecode(place))
        names = ContainerNames(Path(folder))
        names.refresh()
        names_of_pod = names.pod("0f8e1a52")
        assert names_of_pod is None or "_".join(names_of_pod).isascii()
