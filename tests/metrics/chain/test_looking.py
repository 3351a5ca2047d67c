"""Facts about an autoscaler's metrics on the embedded API server, with our own API behind a small aggregator."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.metrics.building import Serving, pod, serving
from tests.metrics.chain.test_judging import FAILED
from tests.metrics.prometheus_double import PrometheusDouble

from gpuscaler.embedded.apiserver.wire.replies import reply
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Forbidden, NotFound, Unreachable
from gpuscaler.kube.portforward import NotAnsweredError, PodPort
from gpuscaler.kube.resources import DEPLOYMENTS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.metrics.api.answering import Responder
from gpuscaler.metrics.api.documents.statuses import Failure
from gpuscaler.metrics.api.paths import parse_request
from gpuscaler.metrics.autoscale.controller import AUTOSCALERS
from gpuscaler.metrics.chain.judging import first_broken, judge
from gpuscaler.metrics.chain.looking import Pages, collect_facts
from gpuscaler.metrics.sources.prometheus import PrometheusAway

SERVICE = {"spec": {"service": {"namespace": "gpu", "name": "gpuscaler-metrics"}}}
PAGE = 'nvidia_gpu_duty_cycle{node_name="n0",uuid="a",pod_name="p0",namespace_name="ml"} 40\n'


class AggregatedApi:
    """``here`` with our APIs at the paths of an aggregator; ``available`` is the condition of the APIService."""

    def __init__(self, here: Serving) -> None:
        self._here, self._rest = here, MemoryTransport(here.api)
        self.available = True
        self.installed = True
        #: The aggregator's answer in place of the server's.
        self.unheard = ""

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        if "apiregistration" in request.path:
            status = {"conditions": [{"type": "Available", "status": str(self.available), "message": "no endpoints"}]}
            body = {**SERVICE, "status": status} if self.installed else {"kind": "Status", "code": 404, "reason": "NotFound"}
            yield reply(json.dumps(body).encode(), status=200 if self.installed else 404)
        elif ".metrics.k8s.io" in request.path:
            yield await self._metrics(request)
        else:
            async with self._rest.exchange(request) as answer:
                yield answer

    async def close(self) -> None:
        await self._rest.close()

    async def _metrics(self, request: Request) -> Answer:
        if self.unheard:
            return reply(self.unheard.encode(), status=503)
        query = "&".join(f"{name}={value}" for name, value in request.query.items())
        try:
            served = await Responder(self._here.source).answer(parse_request("GET", f"{request.path}?{query}"), {})  # type: ignore[arg-type]  # no header is asked for
        except Failure as failure:
            return reply(failure.body(), status=failure.code)
        return reply(served.body, status=served.status)


def autoscaler(*metrics: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llm", "namespace": "ml"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
            "maxReplicas": 8,
            "metrics": list(metrics),
        },
    }


def pods_metric(name: str) -> dict[str, Any]:
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": "60"}}}


def running(name: str, node: str, namespace: str = "ml", **labels: str) -> dict[str, Any]:
    manifest = pod(name, namespace, **labels)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {**manifest, "spec": {**manifest["spec"], "nodeName": node}, "status": status}


@asynccontextmanager
async def metric_chain(*metrics: dict[str, Any], measured: bool = True) -> AsyncIterator[tuple[Serving, Client, AggregatedApi]]:
    """One pod with a GPU on n0, its exporter, and an autoscaler."""
    double = PrometheusDouble()
    if measured:
        double.put("nvidia_gpu_duty_cycle", 40, uuid="a", pod_name="p0", namespace_name="ml", node_name="n0")
    labels = {"app.kubernetes.io/name": "gpuscaler", "app.kubernetes.io/component": "exporter"}
    async with serving(running("p0", "n0", app="llm"), running("exporter-x", "n0", "gpu", **labels), prometheus=double) as here:
        template = {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm", "namespace": "ml"}}
        spec = {"selector": {"matchLabels": {"app": "llm"}}, "template": template}
        await here.client.create(DEPLOYMENTS, {**deployment, "spec": spec}, namespace="ml")
        await here.client.create(AUTOSCALERS, autoscaler(*(metrics or (pods_metric("duty_cycle_current"),))), namespace="ml")

        await asyncio.sleep(5)
        aggregated = AggregatedApi(here)
        yield here, Client(aggregated), aggregated


def show_page(page: str = PAGE) -> Pages:
    """The exporter's page."""

    async def pages(where: PodPort, path: str) -> tuple[int, bytes]:
        assert (where, path) == (PodPort(namespace="gpu", pod="exporter-x", port=9400), "/metrics")
        return 200, page.encode()

    return pages


async def first_broken_link(client: Client, page: str = PAGE) -> tuple[str, str]:
    """The broken link of the only metric, and its description."""
    (facts,) = await collect_facts(client, "ml", "llm", pages=show_page(page))
    link = first_broken(judge(facts))
    return (link.name, link.text) if link else ("", "")


async def test_every_link_is_ok_if_there_are_no_problems() -> None:
    async with metric_chain() as (_, client, _):
        (facts,) = await collect_facts(client, "ml", "llm", pages=show_page())
        assert dict(facts.values) == {"p0": "40"}
        assert facts.exporters["n0"].shows == frozenset({"ml/p0"})
        assert [link.verdict for link in judge(facts)] == ["ok", "ok", "ok", "ok", "unknown"]


@pytest.mark.parametrize(
    ("error", "phrase"),
    [
        (NotAnsweredError("pod gpu/exporter-x, port 9400: connection refused"), "connection refused"),
        (Forbidden(403, "pods/portforward is forbidden"), "pods/portforward is forbidden"),
        (Unreachable("away"), "away"),
    ],
)
async def test_the_exporter_link_is_unknown_if_the_exporters_page_cannot_be_read(error: Exception, phrase: str) -> None:
    async def pages(_where: PodPort, _path: str) -> tuple[int, bytes]:
        raise error

    async with metric_chain(measured=False) as (_, client, _):
        (facts,) = await collect_facts(client, "ml", "llm", pages=pages)
    link = judge(facts)[0]

    assert (link.name, link.verdict) == ("exporter", "unknown")
    assert phrase in link.text


async def test_an_exporter_without_metrics_of_the_pod_is_named() -> None:
    async with metric_chain(measured=False) as (_, client, _):
        name, text = await first_broken_link(client, page="")
        assert (name, text) == (
            "exporter",
            "pod gpu/exporter-x on node n0 shows no GPU of pod p0: the pod has none, or its GPUs are not known",
        )


async def test_an_unavailable_prometheus_is_named() -> None:
    async with metric_chain() as (here, client, _):
        here.prometheus.error = PrometheusAway("prometheus:9090: cannot connect")
        await asyncio.sleep(60)
        name, text = await first_broken_link(client)
        assert name == "scrape"
        assert "prometheus:9090: cannot connect" in text


async def test_an_exporter_that_prometheus_does_not_scrape_is_distinguished_from_a_missing_one() -> None:
    async with metric_chain() as (_, client, _):
        await asyncio.sleep(200)
        assert await first_broken_link(client) == (
            "scrape",
            "exporters show p0 but there is no fresh sample; see the targets of Prometheus",
        )


async def test_a_metric_that_no_rule_produces_is_named() -> None:
    async with metric_chain(pods_metric("nothing")) as (_, client, _):
        name, text = await first_broken_link(client)
        assert name == "rule"
        assert text.startswith("no rule makes nothing of pods")


async def test_a_misspelled_metric_is_a_mistake_of_the_autoscaler_and_the_served_metric_is_suggested() -> None:
    async with metric_chain(pods_metric("duty_cycle_curent")) as (_, client, _):
        (facts,) = await collect_facts(client, "ml", "llm", pages=show_page())
        links = judge(facts)

        assert [link.name for link in links if link.verdict == "broken"] == ["HPA"]
        assert links[-1].text == "saw the metric duty_cycle_curent, expected one that is served; did you mean duty_cycle_current?"
        assert links[2].text == "no rule makes duty_cycle_curent of pods; rules make duty_cycle_current"


async def test_a_metrics_api_that_is_missing_or_does_not_answer_is_named() -> None:
    async with metric_chain() as (_, client, aggregated):
        aggregated.available = False
        assert await first_broken_link(client) == ("API", "Service gpu/gpuscaler-metrics does not answer: no endpoints")
        aggregated.installed = False
        assert (await first_broken_link(client))[0] == "API"


async def test_an_untrusted_metrics_server_is_distinguished_from_an_unavailable_prometheus() -> None:
    async with metric_chain() as (_, client, aggregated):
        aggregated.unheard = "error trying to reach service: tls: failed to verify certificate: x509: certificate has expired"
        assert await first_broken_link(client) == ("API", f"Service gpu/gpuscaler-metrics does not answer: {aggregated.unheard}")


async def test_the_condition_of_the_autoscaler_is_shown_if_all_other_links_are_ok() -> None:
    async with metric_chain() as (_, client, _):
        conditions = [{"type": "ScalingActive", "status": FAILED[0], "reason": FAILED[1], "message": FAILED[2]}]
        status = {"status": {"conditions": conditions, "desiredReplicas": 1, "currentReplicas": 1}}
        await client.merge_patch(AUTOSCALERS, "llm", status, namespace="ml", subresource="status")
        assert await first_broken_link(client) == ("HPA", f"{FAILED[1]}: {FAILED[2]}")


async def test_objects_and_external_metrics_are_requested_like_the_autoscaler_does() -> None:
    target = {"type": "AverageValue", "averageValue": "10"}
    selector = {"matchLabels": {"queue": "a"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}
    external = {"type": "External", "external": {"metric": {"name": "queue_length", "selector": selector}, "target": target}}
    about = {"apiVersion": "v1", "kind": "Namespace", "name": "ml"}
    of_object = {"type": "Object", "object": {"metric": {"name": "duty_cycle_current"}, "describedObject": about, "target": target}}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
    async with metric_chain(external, of_object, cpu) as (here, client, _):
        here.prometheus.put("queue_length", 5, queue="a", namespace="ml")
        here.prometheus.put("queue_length", 9, queue="b", namespace="ml")
        await asyncio.sleep(70)
        queue, space = await collect_facts(client, "ml", "llm", pages=show_page())
        assert list(queue.values.values()) == ["5"]
        assert queue.listed
        assert dict(space.values) == {"ml": "40"}


async def test_a_missing_autoscaler_raises_a_not_found_error() -> None:
    async with metric_chain() as (_, client, _):
        with pytest.raises(NotFound):
            await collect_facts(client, "ml", "missing", pages=show_page())
