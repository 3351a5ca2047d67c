"""Budgets and pods that are not Ready: only those that have not been Ready for long are stuck."""

from datetime import UTC, datetime

import pytest
from tests.doctor.corpus import NOW

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.budgets import find_hindered_pods
from gpuscaler.doctor.evidence import Evidence

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
