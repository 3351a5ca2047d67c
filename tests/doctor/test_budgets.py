"""Budgets: which of them keep nodes of pools, and how long pods have not been Ready that are stuck."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.doctor.corpus import NOW

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.budgets import find_blocking_budgets, find_hindered_pods, find_refusing_budgets
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING
from gpuscaler.model.pools import Offering, Policy, Pool

BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    "status": {"expectedPods": 2, "currentHealthy": 0, "desiredHealthy": 1, "disruptionsAllowed": 0},
}


@pytest.mark.parametrize(("seconds", "stuck"), [(60.0, False), (1799.0, False), (1800.0, True), (None, True)])
def test_without_documents_it_counts_since_when_a_pod_is_not_ready_and_not_its_age(seconds: float | None, *, stuck: bool) -> None:
    changed = "soon" if seconds is None else datetime.fromtimestamp(NOW - seconds, UTC).isoformat()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default", "creationTimestamp": "2026-11-01T00:00:00Z", "labels": {"app": "web"}},
        "spec": {"nodeName": "a", "containers": [{"name": "web"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": changed}]},
    }
    evidence = Evidence(NOW, cluster=evidence_of_objects([BUDGET, pod], now=NOW).cluster)

    assert bool(list(find_hindered_pods(evidence))) == stuck


NEVER = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
}


def a_node(name: str, *, gpus: int = 0) -> dict[str, Any]:
    resources = {"cpu": "8", "memory": "32Gi", "pods": "20", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    labels = {"kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "gpu-server" if gpus else "cpu-server"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_pod(node: str, *, gpus: int = 0, owner: str = "ReplicaSet", name: str = "web-1") -> dict[str, Any]:
    container: dict[str, Any] = {"name": "web", "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": "web", "uid": "u", "controller": True}],
        },
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": {"phase": "Running" if node else "Pending", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_deployment(*, gpus: int) -> dict[str, Any]:
    pod = a_pod("", gpus=gpus)
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"}, "spec": spec}


NODES = (a_node("cpu-1"), a_node("gpu-1", gpus=1))


@pytest.mark.parametrize(
    ("others", "severity"),
    [
        ((), WARNING),
        ((a_pod("cpu-1"),), WARNING),
        ((a_pod("gpu-1"),), CRITICAL),
        ((a_pod("cpu-1"), a_pod("gpu-1", name="web-2")), CRITICAL),
        # A drain does not evict them.
        ((a_pod("gpu-1", owner="DaemonSet"),), WARNING),
        ((a_pod("gpu-1", owner="Node"),), WARNING),
        # They will be on a node with GPUs.
        ((a_pod("", gpus=1),), CRITICAL),
        ((a_pod(""),), WARNING),
        ((a_deployment(gpus=1),), CRITICAL),
        ((a_deployment(gpus=0),), WARNING),
    ],
)
def test_a_budget_is_critical_only_if_it_keeps_nodes_of_pools(others: tuple[dict[str, Any], ...], severity: str) -> None:
    evidence = evidence_of_objects([NEVER, *NODES, *others], now=NOW)

    assert [finding.severity for finding in find_blocking_budgets(evidence)] == [severity]


@pytest.mark.parametrize(("node", "severity"), [("cpu-1", CRITICAL), ("gpu-1", WARNING)])
def test_with_a_run_file_its_pools_count_and_not_the_gpus(node: str, severity: str) -> None:
    offering = Offering("cpu", "on-demand", "cpu-server", "a", 1.0, {}, {})
    evidence = replace(evidence_of_objects([NEVER, *NODES, a_pod(node)], now=NOW), policy=Policy((Pool("cpu", (offering,)),)))

    assert [finding.severity for finding in find_blocking_budgets(evidence)] == [severity]
    assert [finding.severity for finding in find_blocking_budgets(replace(evidence, unlisted=frozenset(("cpu-1", "gpu-1"))))] == [WARNING]


@pytest.mark.parametrize(("node", "severity"), [("cpu-1", WARNING), ("gpu-1", CRITICAL)])
def test_the_same_holds_for_budgets_that_overlap_and_for_those_that_kubernetes_cannot_count(node: str, severity: str) -> None:
    failed = {"conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no controller"}]}
    uncounted = {**BUDGET, "status": failed}
    second = {**BUDGET, "metadata": {"name": "web-2", "namespace": "default"}}

    assert [found.severity for found in find_refusing_budgets(evidence_of_objects([uncounted, *NODES, a_pod(node)], now=NOW))] == [severity]
    overlap = evidence_of_objects([BUDGET, second, *NODES, a_pod(node)], now=NOW)
    assert [found.severity for found in find_hindered_pods(overlap) if found.field == "spec.selector"] == [severity]
