"""Values of fields that are no mistakes, or that are odd: L5 and L24 to L27."""

import random
from typing import Any

import pytest
import yaml

from gpuscaler.doctor.findings import Finding, Report
from gpuscaler.doctor.manifests.fields.shapes import SHAPES
from gpuscaler.doctor.manifests.reading import read_manifests
from gpuscaler.doctor.manifests.running import lint_manifests

#: What stands in places of all types.
ODD: tuple[Any, ...] = (
    *(None, 1, -1, 1.5, float("inf"), float("nan"), 10**400, True, "", "x", "64 GB", "${A}", "9" * 300 + "Gi", "1" * 5000),
    *([], {}, [1], [None], [[]], {"a": 1}, {"": None}, [{"a": [1]}]),
)
KINDS = {
    "Pod": ("v1", "PodSpec"),
    "Deployment": ("apps/v1", "DeploymentSpec"),
    "Job": ("batch/v1", "JobSpec"),
    "CronJob": ("batch/v1", "CronJobSpec"),
    "PodDisruptionBudget": ("policy/v1", "PodDisruptionBudgetSpec"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "HorizontalPodAutoscalerSpec"),
    "NodePool": ("karpenter.sh/v1", "NodePoolSpec"),
    "ScaledObject": ("keda.sh/v1alpha1", "ScaledObjectSpec"),
    "InstanceGroup": ("kops.k8s.io/v1alpha2", "InstanceGroup"),
}


def look(text: str) -> Report:
    return lint_manifests(read_manifests([("a.yaml", text)], now=0))


def found(*lines: str) -> list[Finding]:
    """The findings in a pod whose spec has ``lines``."""
    spec = "\n".join(f"  {line}" for line in lines)
    return list(look(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a, namespace: b}}\nspec:\n{spec}\n").findings)


def _made(name: str, chance: random.Random, depth: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, field in SHAPES[name].fields.items():
        kind = chance.random()
        if kind < 0.4:
            continue
        if field.holds in SHAPES and kind < 0.8 and depth < 7:
            inside = _made(field.holds, chance, depth + 1)
            made[key] = [inside] if field.several else inside
        else:
            made[key] = chance.choice(ODD)
    if chance.random() < 0.3:
        made[chance.choice(("limits", "metadata", "$patch", "other"))] = chance.choice(ODD)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_odd_values_break_no_rule(kind: str) -> None:
    version, spec = KINDS[kind]
    chance = random.Random(kind)

    for _ in range(8):
        text = yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": _made(spec, chance)})
        assert not look(text).unchecked


@pytest.mark.parametrize("value", ["'${GPUS}'", "'{{ gpus }}'", "<GPUs>", "1", "'1'", "1.0"])
def test_numbers_of_gpus_that_are_right_or_filled_in_later(value: str) -> None:
    assert not found(f"containers: [{{name: a, image: b, resources: {{limits: {{nvidia.com/gpu: {value}}}}}}}]")


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        ("64GB", "64G (did you mean that?)"),
        ("64 Gi", "64Gi (did you mean that?)"),
        ("64gib", "64Gi (did you mean that?)"),
        ("500kb", "500k (did you mean that?)"),
        ("much", "a quantity of Kubernetes, such as 500m, 2 or 64Gi"),
        ("512m", "a quantity with its unit, such as 64Gi"),
    ],
)
def test_quantities_that_are_meant(amount: str, expected: str) -> None:
    (finding,) = found(f"containers: [{{name: a, image: b, resources: {{requests: {{memory: {amount}}}}}}}]")

    assert (finding.check, finding.expected) == ("L25", expected)


@pytest.mark.parametrize("name", ["restartpolicy", "restartPolicys", "RestartPolicy"])
def test_names_that_are_misspelt(name: str) -> None:
    (finding,) = found("containers: [{name: a, image: b}]", f"{name}: Never")

    assert (finding.check, finding.severity, finding.expected) == ("L24", "critical", "restartPolicy (did you mean that?)")
    assert "+  restartPolicy: Never" in finding.fix.patch


def test_fields_that_may_be_newer_are_a_warning() -> None:
    (finding,) = found("containers: [{name: a, image: b}]", "quantumBits: 3")

    assert (finding.check, finding.severity, finding.fix.patch) == ("L24", "warning", "")


def test_other_versions_are_not_compared() -> None:
    assert not look("apiVersion: example.com/v1\nkind: Pod\nmetadata: {name: a}\nspec: {contaners: []}\n").findings
