"""Objects of autoscaling/v2, as people write them."""

import random
from typing import Any

import pytest
from tests.simulation.horizontal.kit import CPU, LOAD, QUEUE, Json

from gpuscaler.simulation.horizontal import AutoscalerError, read_autoscaler
from gpuscaler.simulation.horizontal.specs import SCALE_DOWN, SCALE_UP, Autoscaler


def read(**spec: Any) -> Autoscaler:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serving"}
    return read_autoscaler({"metadata": {"name": "web"}, "spec": {"scaleTargetRef": reference, "maxReplicas": 5, **spec}})


def test_without_metrics_the_cpu_target_is_80_percent() -> None:
    metric = read().metrics[0]

    assert (metric.type, metric.name, metric.target.average_utilization) == ("Resource", "cpu", 80)


def test_a_behaviour_of_one_direction_leaves_the_other_at_its_defaults() -> None:
    behavior = read(behavior={"scaleUp": {"stabilizationWindowSeconds": 30}}).behavior

    assert behavior is not None
    assert (behavior.up.window, behavior.up.policies, behavior.down) == (30, SCALE_UP.policies, SCALE_DOWN)


def test_autoscalers_are_read_from_text_and_fields_unrelated_to_scaling_are_ignored() -> None:
    text = b"""{"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "web", "labels": {"a": "b"}},
      "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "StatefulSet", "name": "db", "apiVersion": "apps/v1"}}, "status": {"x": 1}}"""

    assert (read_autoscaler(text).target.kind, read_autoscaler(text).min_replicas) == ("StatefulSet", 1)


def test_quantities_are_read_as_thousandths() -> None:
    target = {"type": "AverageValue", "averageValue": "1500m"}

    assert read(metrics=[{"type": "Pods", "pods": {"metric": {"name": "x"}, "target": target}}]).metrics[0].target.average_value == 1500


def external(**target: Any) -> list[Json]:
    return [{"type": "External", "external": {"metric": {"name": "queue"}, "target": target}}]


def selecting(**expression: Any) -> list[Json]:
    target = {"type": "AverageValue", "averageValue": "1"}
    return [{"type": "Pods", "pods": {"metric": {"name": "x", "selector": {"matchExpressions": [expression]}}, "target": target}}]


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"minReplicas": -1}, "spec.minReplicas: saw -1"),
        ({"minReplicas": 6}, "spec.maxReplicas: saw 5, expected at least minReplicas"),
        ({"maxReplicas": 0}, "spec.maxReplicas: saw 0"),
        ({"maxReplicas": 2**40}, r"maxReplicas"),
        ({"minReplicas": 0, "metrics": [LOAD]}, "spec.metrics: saw no Object or External metric"),
        ({"metrics": [{"type": "Pods"}]}, r"spec.metrics\[0\]: saw nothing beside type Pods"),
        ({"metrics": [LOAD, {**QUEUE, "pods": LOAD["pods"]}]}, r"spec.metrics\[1\]: saw external and pods"),
        ({"metrics": [{"type": "Disk"}]}, "Disk"),
        ({"metrics": external(type="AverageValue", averageValue="0")}, r"target.averageValue: saw 0, expected a quantity above 0"),
        ({"metrics": external(type="AverageValue", averageValue="1e17")}, r"target.averageValue: saw 1e17"),
        ({"metrics": external(type="AverageValue", averageValue="ten")}, "expected a quantity such as"),
        ({"metrics": external(type="AverageValue")}, "target: saw nothing, expected value or averageValue"),
        ({"metrics": external(type="Value", value="1", averageValue="1")}, "saw value and averageValue, expected only one"),
        ({"metrics": external(type="Often", value="1")}, "Often"),
        ({"metrics": [{"type": "Resource", "resource": {"name": "", "target": CPU["resource"]["target"]}}]}, "resource.name: saw nothing"),
        (
            {"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 0}}}]},
            "averageUtilization: saw 0",
        ),
        (
            {"metrics": [{"type": "ContainerResource", "containerResource": CPU["resource"]}]},
            "containerResource.container: saw nothing",
        ),
        ({"metrics": selecting(key="a", operator="Like", values=["b"])}, r"matchExpressions\[0\]: saw a Like with 1 values"),
        ({"metrics": selecting(key="a", operator="In")}, "saw a In with 0 values"),
        ({"metrics": selecting(operator="Exists")}, "saw no key Exists"),
        ({"scaleTargetRef": {"kind": "Deployment", "name": "a/b"}}, "scaleTargetRef.name: saw a/b"),
        ({"scaleTargetRef": {"kind": "Deployment", "name": "a", "apiVersion": "v1"}}, "scaleTargetRef.apiVersion: saw v1"),
        ({"scaleTargetRef": {"kind": "Deployment", "name": "a"}}, "scaleTargetRef.apiVersion: saw nothing, expected a group"),
        ({"behavior": {"scaleUp": {"policies": []}}}, "scaleUp.policies: saw none"),
        ({"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]}}}, r"policies\[0\].value: saw 0"),
        ({"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}}}, r"periodSeconds: saw 1801"),
        ({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 3601}}}, "stabilizationWindowSeconds: saw 3601"),
        ({"behavior": {"scaleDown": {"tolerance": "-0.1"}}}, "scaleDown.tolerance: saw -0.1"),
        ({"behavior": {"scaleDown": {"tolerance": "x"}}}, "scaleDown.tolerance: saw 'x'"),
        ({"behavior": {"scaleDown": {"selectPolicy": "Often"}}}, "Often"),
    ],
)
def test_autoscalers_that_the_api_server_refuses_are_refused_with_the_field(spec: Json, place: str) -> None:
    with pytest.raises(AutoscalerError, match=place):
        read(**spec)


def test_error_messages_contain_no_control_characters() -> None:
    with pytest.raises(AutoscalerError) as refused:
        read(scaleTargetRef={"kind": "Deployment", "name": "a/\x1b[31m", "apiVersion": "apps/v1"})

    assert str(refused.value).isprintable()


def test_a_null_field_is_read_as_absent() -> None:
    assert read(minReplicas=None, metrics=None, behavior=None) == read()


@pytest.mark.parametrize("text", [b"", b"[]", b'{"spec": 1}', b'{"spec": {}}', b"\xff", b"[" * 100_000])
def test_input_that_is_no_autoscaler_is_rejected(text: bytes) -> None:
    with pytest.raises(AutoscalerError, match="cannot be read"):
        read_autoscaler(text)


def damaged(tree: Any, rng: random.Random) -> Any:
    """A copy with one place replaced by something else, or left out."""
    if isinstance(tree, dict | list) and tree and rng.random() < 0.85:
        copy: Any = dict(tree) if isinstance(tree, dict) else list(tree)
        place = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        if rng.random() < 0.1:
            del copy[place]
        else:
            copy[place] = damaged(copy[place], rng)
        return copy
    return rng.choice([None, True, -1, 0, 2**31, 2**70, 1.5, float("nan"), "", "x", "1e999", "-5", [], ["a"], {}, {"a": 1}, "\ud800"])


def test_a_damaged_autoscaler_object_is_read_or_rejected_without_other_errors() -> None:
    behavior = {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}], "tolerance": "50m"}, "scaleDown": {}}
    selector = selecting(key="a", operator="In", values=["b"])
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serving"}
    spec = {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 5, "metrics": [LOAD, QUEUE, CPU, *selector], "behavior": behavior}
    rng, refused = random.Random(1), 0
    for _ in range(3000):
        try:
            read_autoscaler(damaged({"metadata": {"name": "web", "namespace": "x"}, "spec": spec}, rng))
        except AutoscalerError:
            refused += 1

    assert 1500 < refused < 2900


@pytest.mark.parametrize("header", [{"kind": "Deployment"}, {"apiVersion": "autoscaling/v1"}])
def test_objects_of_another_kind_or_version_are_rejected(header: Json) -> None:
    with pytest.raises(AutoscalerError, match=r"expected (HorizontalPodAutoscaler|autoscaling/v2)"):
        read_autoscaler(
            {"spec": {"maxReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}}, **header}
        )
