"""``gpuscaler why hpa`` as users run it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, served
from tests.metrics.chain.test_looking import autoscaler, pods_metric

from gpuscaler.cli import main
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import DEPLOYMENTS
from gpuscaler.metrics.autoscale.controller import AUTOSCALERS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A cluster with an autoscaler on GPU metrics that nothing serves, and one without GPU metrics."""
    template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    spec = {"selector": {"matchLabels": {"app": "llm"}}, "template": template}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}

    async def fill(client: Client) -> None:
        deployment: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm", "namespace": "ml"}}
        await client.create(DEPLOYMENTS, {**deployment, "spec": spec}, namespace="ml")
        await client.create(AUTOSCALERS, autoscaler(pods_metric("duty_cycle_current")), namespace="ml")
        plain = autoscaler(cpu)
        plain["metadata"]["name"] = "plain"
        await client.create(AUTOSCALERS, plain, namespace="ml")

    with served(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.load({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        cluster.ask(fill)
        yield cluster


def ask(cluster: Served, *words: str) -> Result:
    return CliRunner().invoke(main, ["why", "hpa", *words, "--kubeconfig", str(cluster.kubeconfig)])


def test_why_hpa_shows_each_step_of_a_metric_and_names_the_broken_one(cluster: Served) -> None:
    done = ask(cluster, "ml/llm")

    assert done.exit_code == 1, done.output
    assert done.output.splitlines() == [
        "hpa ml/llm:",
        "  duty_cycle_current (Pods):",
        "    unknown exporter  no pod is labelled as an exporter of gpuscaler; assuming that another exporter is used",
        "    unknown scrape    the API cannot be asked",
        "    unknown rule      the API cannot be asked",
        "    broken  API       there is no APIService for this group; install the metrics API",
        "    unknown HPA       the autoscaler has not read it yet",
        "    the chain is broken at the API",
    ]


def test_why_hpa_prints_the_steps_of_a_metric_as_json(cluster: Served) -> None:
    (metric,) = json.loads(ask(cluster, "ml/llm", "--json").output)

    assert metric["metric"] == "duty_cycle_current"
    assert [link["name"] for link in metric["links"]] == ["exporter", "scrape", "rule", "API", "HPA"]


def test_why_hpa_says_that_an_autoscaler_uses_no_metric_of_gpuscaler(cluster: Served) -> None:
    done = ask(cluster, "ml/plain")

    assert done.exit_code == 0, done.output
    assert "it uses only metrics of metrics-server" in done.output


def test_why_hpa_reports_a_missing_autoscaler(cluster: Served) -> None:
    done = ask(cluster, "missing")

    assert done.exit_code == 2
    assert "hpa default/missing: saw" in done.output


def test_why_hpa_rejects_an_invalid_name(cluster: Served) -> None:
    assert "expected NAMESPACE/NAME" in ask(cluster, "a/b/c").output
