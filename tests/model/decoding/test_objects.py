"""Decoding of single objects: kinds, versions, and errors."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.model import realistic
from tests.soaking import examples

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import Workload

KINDS = (
    "Pod", "Node", "PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity",
    "VolumeAttachment", "PodDisruptionBudget", "PriorityClass", "DaemonSet", "ReplicaSet", "Deployment", "StatefulSet", "Job",
    "Namespace", "RuntimeClass", "PodGroup", "JobSet", "Workload", "ResourceClaim", "ResourceSlice", "DeviceClass",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_every_kind_is_read_from_its_name_alone_with_or_without_a_version(kind: str) -> None:
    decoded = decode_object({"kind": kind, "metadata": {"name": "x"}}, Interner())
    assert decoded is not None
    assert not isinstance(decoded, Skipped)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_any_kind_without_a_name_is_skipped(kind: str) -> None:
    decoded = decode_object({"kind": kind, "metadata": {"namespace": "n"}}, Interner())
    assert decoded == Skipped(f"{kind} n", "metadata.name: saw nothing, expected the object's name")


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [("ConfigMap", "v1"), ("Pod", "example.com/v1"), ("Job", "v1"), ("PodMetrics", "metrics.k8s.io/v1beta1"), ("Node", "a/b/v1")],
)
def test_kinds_of_other_api_groups_are_not_read(kind: str, api_version: str) -> None:
    assert decode_object({"kind": kind, "apiVersion": api_version, "metadata": {"name": "x"}}, Interner()) is None


def test_bytes_and_mappings_decode_to_the_same_object() -> None:
    raw = realistic.pod(7, node="node-1")
    data = json.dumps(raw).encode()
    assert decode_object(data, Interner()) == decode_object(raw, Interner()) == decode_object(memoryview(data), Interner())


def test_the_caller_can_supply_the_kind_of_an_object_without_one() -> None:
    raw = {"metadata": {"name": "x"}}
    assert isinstance(decode_object(raw, Interner(), kind="Job", api_version="batch/v1"), Workload)
    assert decode_object(raw, Interner()) == Skipped("object x", "kind: saw nothing, expected the kind of the object")


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b"[]", "object: saw [], expected object"),
        (b"5", "object: saw 5, expected object"),
        (b"null", "object: saw null, expected object"),
        (b'{"kind": 5}', "kind: saw 5, expected text"),
        (b'{"kind": "Pod", "metadata": {"name": "x"}} trailing', "trailing characters"),
        (b'{"kind": "Pod", "metadata": {"name": "\xff"}}', "can't decode byte 0xff"),
        (b'{"kind": "Pod", "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"kind": "Pod", "metadata": {"name": "x"}, "spec": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_values_that_are_not_objects_are_skipped(data: bytes, seen: str) -> None:
    decoded = decode_object(data, Interner())
    assert isinstance(decoded, Skipped)
    assert seen in decoded.reason


def test_objects_with_values_that_json_cannot_express_are_skipped() -> None:
    cyclic: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "x"}}
    cyclic["spec"] = cyclic
    odd: list[Any] = [cyclic, {"kind": "Pod", "metadata": {"name": "x"}, "spec": object()}]
    for raw in (*odd, {"kind": "Pod", "metadata": {"name": "x"}, True: 1}):
        decoded = decode_object(raw, Interner())
        assert isinstance(decoded, Skipped)
        assert decoded.object == "Pod x"


def test_the_reason_for_skipping_stays_short_for_any_value() -> None:
    raw = {"kind": "Pod", "metadata": {"name": "x"}, "status": {"phase": ["y" * 1_000_000]}}
    decoded = decode_object(raw, Interner())
    assert isinstance(decoded, Skipped)
    assert len(decoded.reason) < 200


def test_names_with_unprintable_characters_are_escaped() -> None:
    decoded = decode_object({"kind": "Pod", "metadata": {"name": "a\x1b[2J", "namespace": "n"}, "spec": 5}, Interner())
    assert decoded == Skipped("Pod n/a\\x1b[2J", "spec: saw 5, expected object")


def test_a_skipped_object_leaves_the_interner_unchanged() -> None:
    interner = Interner()
    before = decode_object(realistic.pod(1), interner)
    broken = realistic.pod(2)
    broken["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "?"}
    assert isinstance(decode_object(broken, interner), Skipped)
    after = decode_object(realistic.pod(3), interner)
    assert isinstance(before, Pod)
    assert isinstance(after, Pod)
    assert before.spec is after.spec


def test_an_interner_drops_unused_entries_and_stays_correct() -> None:
    interner = Interner(limit=2)
    pods = [decode_object(realistic.pod(number, replicas=1), interner) for number in range(30)]
    again = [decode_object(realistic.pod(number, replicas=1), Interner()) for number in range(30)]
    assert pods == again
    recent = decode_object(realistic.pod(29, replicas=1), interner)
    assert isinstance(recent, Pod)
    assert isinstance(pods[29], Pod)
    assert recent.spec is pods[29].spec


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
names = st.sampled_from(
    "metadata spec status name namespace labels annotations containers resources requests limits template selector matchLabels "
    "matchExpressions affinity podAffinity tolerations volumes ownerReferences conditions capacity allocatable taints storage cpu uid "
    "creationTimestamp items kind priority nodeSelector".split()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=4), inner, max_size=5), max_leaves=25
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(KINDS), st.dictionaries(names, values, max_size=6))
def test_any_json_decodes_without_an_exception(kind: str, raw: dict[str, Any]) -> None:
    decoded = decode_object({**raw, "kind": kind}, Interner())
    found_from_bytes = decode_object(json.dumps({**raw, "kind": kind}).encode(), Interner())
    assert type(decoded) is type(found_from_bytes)
    if isinstance(decoded, Skipped):
        assert decoded.object.startswith(kind)
        assert decoded.reason


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_pod_with_one_wrong_value_decodes_or_is_skipped_with_a_reason(data: st.DataObject) -> None:
    raw = realistic.pod(1, node="node-1")
    place: Any = raw
    while True:
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.sampled_from(range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(values)
    decoded = decode_object(raw, Interner())
    assert decoded is None or isinstance(decoded, Skipped | Pod)
    if isinstance(decoded, Pod):
        assert Cluster.of([decoded]).pods == {decoded.key: decoded}


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_decode_without_an_exception(data: bytes) -> None:
    assert isinstance(decode_object(data, Interner()), Skipped | None)
