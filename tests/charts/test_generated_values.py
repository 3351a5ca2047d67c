"""Helm takes the values that ``gpuscaler generate cluster`` writes, and the controller stays off the machines that it can remove."""

from typing import Any

import pytest
import yaml
from tests.charts.rendering import merge_values, objects, text
from tests.generating.corpus import NAMES, description, generated

pytestmark = pytest.mark.charts


def _values(name: str, *paths: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path in paths:
        if path in (files := generated(name)):
            values = merge_values(values, yaml.safe_load(files[path].text(explain=True)))
    return values


@pytest.mark.parametrize("name", NAMES)
def test_the_controller(name: str) -> None:
    values = _values(name, "gpuscaler/values.yaml", "gpuscaler/metrics-rules.yaml")
    rendered = objects(text(values, namespace=description(name).controller.namespace))
    pod = rendered["Deployment/gpuscaler-controller"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "gpuscaler.io/pool", "operator": "DoesNotExist"} in term["matchExpressions"]
    (types,) = (item["values"] for item in term["matchExpressions"] if item["key"] == "node.kubernetes.io/instance-type")
    assert {group.instance_type.name for group in description(name).groups} <= set(types)
    assert ("Deployment/gpuscaler-metrics" in rendered) == bool(description(name).prometheus)
    if description(name).prometheus:
        assert "nvidia_gpu_" in rendered["ConfigMap/gpuscaler-metrics"]["data"]["rules.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_the_exporter(name: str) -> None:
    rendered = objects(text(_values(name, "gpuscaler/exporter-values.yaml"), namespace="gpu-exporter"))
    assert "DaemonSet/gpuscaler-exporter" in rendered
    assert "Deployment/gpuscaler-controller" not in rendered
