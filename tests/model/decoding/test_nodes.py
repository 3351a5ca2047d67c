"""Nodes from Kubernetes JSON."""

from typing import Any

import pytest
from tests.model import realistic

from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.nodes import Node
from gpuscaler.model.scheduled_events import SCHEDULED_EVENT, ScheduledEvent
from gpuscaler.model.taints import Taint

Json = dict[str, Any]


def node(spec: Json | None = None, status: Json | None = None, **metadata: Any) -> Node:
    raw = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", **metadata}, "spec": spec, "status": status}
    decoded = decode_object(raw, Interner())
    assert isinstance(decoded, Node), decoded
    return decoded


def test_a_decoded_node_keeps_all_fields_that_plans_need() -> None:
    decoded = decode_object(realistic.node(4), Interner())
    assert isinstance(decoded, Node)
    assert (decoded.name, decoded.provider_id) == ("ip-10-0-4-1.ec2.internal", "aws:///us-east-1b/i-00000000000000004")
    assert decoded.allocatable == {
        "cpu": 95690,
        "memory": 1163346944 * 1024,
        "ephemeral-storage": 76224326324,
        "nvidia.com/gpu": 8,
        "pods": 250,
    }
    assert decoded.capacity["cpu"] == 96000
    assert decoded.labels["topology.kubernetes.io/zone"] == "us-east-1b"
    assert decoded.taints == (Taint("nvidia.com/gpu", "", "NoSchedule"),)
    assert decoded.ready
    assert decoded.created == 1772352000.0


def test_a_node_without_allocatable_resources_is_read_with_its_capacity() -> None:
    assert node(status={"capacity": {"cpu": "4"}}).allocatable == {"cpu": 4000}
    assert node(status={"capacity": {"cpu": "4"}, "allocatable": {}}).allocatable == {}


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        (None, True),
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "MemoryPressure", "status": "True"}], False),
    ],
)
def test_a_node_is_ready_if_its_condition_says_so_or_if_it_has_no_conditions(conditions: list[Json] | None, ready: bool) -> None:
    assert node(status={"conditions": conditions}).ready is ready


def test_taints_with_unknown_effects_are_read_and_exclude_no_pod() -> None:
    taint = node({"taints": [{"key": "a", "effect": "Whatever"}], "unschedulable": True})
    assert taint.taints == (Taint("a", "", "Whatever"),)
    assert taint.unschedulable


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, (False, False)),
        ({"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}, (True, False)),
        ({"karpenter.sh/do-not-disrupt": "true"}, (False, True)),
        ({"karpenter.sh/do-not-disrupt": "false"}, (False, False)),
    ],
)
def test_annotations_of_other_autoscalers_protect_a_node(annotations: Json, expected: tuple[bool, bool]) -> None:
    decoded = node(annotations=annotations)
    assert (decoded.scale_down_disabled, decoded.do_not_disrupt) == expected
    assert decoded.warnings == ()


def test_an_unreadable_protection_annotation_protects_the_node_and_is_a_warning() -> None:
    decoded = node(annotations={"karpenter.sh/do-not-disrupt": "please"})
    assert decoded.do_not_disrupt
    assert decoded.warnings == (
        'karpenter.sh/do-not-disrupt: saw a value of 6 characters, expected "true" or "false"; the node is not removed',
    )


def test_a_node_with_an_unreadable_quantity_is_skipped() -> None:
    raw = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "eight"}}}
    reason = "status.allocatable.nvidia.com/gpu: saw 'eight', expected a quantity such as 500m, 2, 1.5Gi or 1e3"
    assert decode_object(raw, Interner()) == Skipped("Node n", reason)


def test_a_scheduled_event_is_read_from_the_annotation_of_the_node() -> None:
    value = '{"kind":"Preempt","id":"e-1","at":"2027-01-15T08:00:30Z","description":"gone"}'

    assert node(annotations={SCHEDULED_EVENT: value}).scheduled_event == ScheduledEvent("Preempt", "e-1", 1_800_000_030.0, "gone")


def test_an_unreadable_scheduled_event_is_reported_on_the_node_and_ignored() -> None:
    decoded = node(annotations={SCHEDULED_EVENT: '{"kind":"Vanish","id":"e-1"}'})

    assert decoded.scheduled_event is None
    (warning,) = decoded.warnings
    assert warning.startswith(f"{SCHEDULED_EVENT}: saw ")
    assert warning.endswith("expected a kind of Preempt, Terminate, Redeploy, Reboot, Freeze; ignored")
