"""``gpuscaler doctor`` on a live cluster, over HTTP, with fewer and fewer rights."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, kubeconfig, repeat_reads_at_once, served
from tests.doctor.corpus import objects_of

from gpuscaler.cli import main
from gpuscaler.cli.doctor.reading import OTHERS
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.resources import WATCHED

BROKEN = Path(__file__).parents[1] / "doctor" / "broken" / "d34-budgets.yaml"
RESOURCES = {resource.kind: resource for resource in (*WATCHED, *OTHERS)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        yield server


def doctor(cluster: Served, *more: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--kubeconfig", str(cluster.kubeconfig), *more], catch_exceptions=False)


def examined(cluster: Served) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(doctor(cluster, "--json").stdout)
    return document


def forbid(cluster: Served, plural: str) -> None:
    cluster.api.faults.add(Fault(path=f"/{plural}", refusal=Failure(403, "Forbidden", f"{plural} is forbidden")))


def test_a_live_cluster_is_read_and_nothing_is_changed(cluster: Served) -> None:
    cluster.load(*objects_of(BROKEN))
    done = doctor(cluster)

    assert done.exit_code == 1
    assert "CRITICAL D34 PodDisruptionBudget default/never" in done.stdout
    assert cluster.api.writes == ()


@pytest.mark.parametrize("kind", sorted({source for check in CHECKS for source in check.needs} & RESOURCES.keys()))
def test_a_missing_right_is_named_and_its_checks_are_never_passed(cluster: Served, kind: str) -> None:
    forbid(cluster, RESOURCES[kind].plural)
    document = examined(cluster)
    reasons = [(entry["id"], entry["subject"], entry["reason"]) for entry in document["unchecked"]]

    for check in CHECKS:
        if kind in check.needs:
            reason = f"{kind} could not be read: there is no permission to list {RESOURCES[kind].label}"
            assert any(place[:2] == (check.id, check.title) and reason in place[2] for place in reasons)
    assert doctor(cluster).exit_code == 3


def test_a_cluster_that_forbids_everything_ends_with_5(cluster: Served) -> None:
    for resource in RESOURCES.values():
        forbid(cluster, resource.plural)

    assert doctor(cluster).exit_code == 5


def test_a_cluster_that_does_not_answer_ends_with_3_at_once(cluster: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    cluster.kubeconfig.write_text(kubeconfig(tmp_path, "http://127.0.0.1:9").read_text())
    done = doctor(cluster)

    assert done.exit_code == 3
    assert "127.0.0.1:9" in done.stdout
    assert "expected an API server that answers: check the server, the network and the context" in done.stdout
    assert doctor(cluster, "--partial-ok").exit_code == 3


def test_a_cluster_that_answers_only_with_failures_ends_with_3(cluster: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    cluster.api.faults.add(Fault(path="", refusal=Failure(500, "InternalError", "etcd is gone")))
    done = doctor(cluster)

    assert done.exit_code == 3
    assert done.stdout.count("etcd is gone") == 1


def test_of_two_controllers_that_of_the_namespace_in_the_run_file_is_no_finding(cluster: Served, tmp_path: Path) -> None:
    spec = {"holderIdentity": "vm", "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    for namespace in ("kube-system", "gpuscaler"):
        metadata = {"name": "gpuscaler", "namespace": namespace}
        cluster.load({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})

    def rivals(settings: str) -> list[str]:
        config = tmp_path / "run.yaml"
        config.write_text(f"region: us-east-1\ncloud: simulated\npools: [{{name: a, types: [g5.xlarge], zones: [us-east-1a]}}]\n{settings}")
        findings = json.loads(doctor(cluster, "--json", "--config", str(config)).stdout)["findings"]
        return [finding["object"] for finding in findings if finding["id"] == "D3"]

    assert rivals("") == rivals("namespace: kube-system") == ["Lease gpuscaler/gpuscaler"]
    assert rivals("namespace: gpuscaler") == ["Lease kube-system/gpuscaler"]


def test_what_could_not_be_checked_is_a_sentence(cluster: Served) -> None:
    names = {"namespace": "monitoring", "name": "metrics"}
    spec = {"group": "custom.metrics.k8s.io", "version": "v1beta2", "groupPriorityMinimum": 100, "versionPriority": 100, "service": names}
    cluster.load(
        {"apiVersion": "v1", "kind": "Service", "metadata": names, "spec": {"ports": [{"port": 443}]}},
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta2.custom.metrics.k8s.io"},
            "spec": spec,
        },
    )
    (line,) = [line for line in doctor(cluster).stdout.splitlines() if line.startswith("  D44: ")]

    assert line == (
        "  D44: the certificate behind APIService v1beta2.custom.metrics.k8s.io could not be checked because "
        "Service monitoring/metrics has no clusterIP, and its Endpoints name no ready address for this port"
    )
