"""Deployments scaled by HorizontalPodAutoscalers of the embedded cluster, and the status of these."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.embedded.asking import TABLE, asker
from tests.embedded.workloads.lab import Lab, lab

from gpuscaler.embedded.apiserver.wire.replies import json_reply, text_reply
from gpuscaler.embedded.autoscaling.controller import RESOURCE
from gpuscaler.kube.resources import CORE_EVENTS, DEPLOYMENTS
from gpuscaler.kube.transport import Answer, Request

CUSTOM, EXTERNAL = "/apis/custom.metrics.k8s.io", "/apis/external.metrics.k8s.io"
ASKED = "(get pods.custom.metrics.k8s.io *)"
DUTY = {"type": "Pods", "pods": {"metric": {"name": "duty"}, "target": {"type": "AverageValue", "averageValue": "60"}}}
SERIES = {
    "matchLabels": {"queue": "a"},
    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["x", "y"]}, {"key": "old", "operator": "DoesNotExist"}],
}
SELECTED = "queue=a,zone in (x,y),!old"
WEB = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
VALUE, AVERAGE = {"type": "Value", "value": "2"}, {"type": "AverageValue", "averageValue": "2"}
QUEUE = {"type": "External", "external": {"metric": {"name": "queue", "selector": SERIES}, "target": AVERAGE}}
OF_WEB = {"type": "Object", "object": {"metric": {"name": "rps"}, "describedObject": WEB, "target": VALUE}}
OF_NAMESPACE = {
    "type": "Object",
    "object": {"metric": {"name": "rps", "selector": SERIES}, "describedObject": {"kind": "Namespace", "name": "ml"}, "target": AVERAGE},
}


@dataclass
class Metrics:
    """Metrics servers behind an aggregator. ``total`` is spread over the pods; ``failure`` is an answer to return instead."""

    lab: Lab
    total: float = 60.0
    values: dict[str, str] = field(default_factory=dict)
    failure: Callable[[], Answer] | None = None
    freshness: str = "Current"
    asked: list[Request] = field(default_factory=list)

    async def answer(self, request: Request) -> Answer | None:
        if not request.path.startswith((CUSTOM, EXTERNAL)):
            return None
        self.asked.append(request)
        if self.failure is not None:
            return self.failure()
        if "/pods/*/" in request.path:
            pods = [pod["metadata"]["name"] for pod in await self.lab.pods() if pod["status"]["phase"] == "Running"]
            each = f"{int(1000 * self.total / max(1, len(pods)))}m"
            return json_reply({"items": [{"describedObject": {"name": pod}, "value": each} for pod in pods]})
        return json_reply({"items": [{"value": value} for path, value in self.values.items() if path in request.path]})

    def groups(self) -> dict[str, list[dict[str, Any]]]:
        return {"custom.metrics.k8s.io": [{"version": version, "freshness": self.freshness} for version in ("v1beta2", "v1beta1")]}


@asynccontextmanager
async def scaled(*metrics: dict[str, Any], replicas: int = 1, **spec: Any) -> AsyncIterator[tuple[Lab, Metrics]]:
    """A Deployment with an autoscaler of one to eight replicas."""
    async with lab("a") as here:
        served = Metrics(here)
        here.cluster.api.aggregator = served  # type: ignore[assignment]  # it answers as the real one does
        await here.create(DEPLOYMENTS, "web", replicas=replicas)
        await autoscale(here, "web", *(metrics or (DUTY,)), **spec)
        await here.wait(5)
        yield here, served


async def autoscale(here: Lab, name: str, *metrics: dict[str, Any], target: str = "web", **spec: Any) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    hpa_spec = {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 8, "metrics": list(metrics), **spec}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": hpa_spec}
    await here.user.create(RESOURCE, body, namespace="default")


async def replicas(here: Lab, name: str = "web") -> int:
    count: int = (await here.get(DEPLOYMENTS, name))["spec"]["replicas"]
    return count


async def conditions(here: Lab, name: str = "web") -> dict[str, tuple[str, str, str]]:
    listed = (await here.status(RESOURCE, name)).get("conditions") or ()
    return {condition["type"]: (condition["status"], condition["reason"], condition["message"]) for condition in listed}


async def events(here: Lab) -> list[tuple[str, str]]:
    objects = [msgspec.json.decode(raw) for raw in await here.user.list_all(CORE_EVENTS, namespace="default")]
    return [(event["reason"], event["message"]) for event in objects if event["involvedObject"]["kind"] == "HorizontalPodAutoscaler"]


async def test_a_deployment_scales_up_under_load_and_down_after_five_minutes_without_load() -> None:
    async with scaled() as (here, served):
        served.total = 180.0
        await here.wait(60)
        up = await replicas(here)
        status = await here.status(RESOURCE, "web")
        served.total = 30.0
        await here.wait(280)
        before = await replicas(here)
        await here.wait(60)
        after = await replicas(here)
        reported = await events(here)

    assert (up, before, after) == (3, 3, 1)
    assert (status["currentReplicas"], status["desiredReplicas"], status["observedGeneration"]) == (3, 3, 1)
    assert status["currentMetrics"] == [{"type": "Pods", "pods": {"metric": {"name": "duty"}, "current": {"averageValue": "60"}}}]
    assert status["lastScaleTime"]
    assert reported == [
        ("SuccessfulRescale", "New size: 3; reason: pods metric duty above target"),
        ("SuccessfulRescale", "New size: 1; reason: All metrics below target"),
    ]


@pytest.mark.parametrize(("total", "count"), [(65.9, 1), (66.1, 2)])
async def test_a_deviation_of_10_percent_from_the_target_does_not_scale(total: float, count: int) -> None:
    async with scaled() as (here, served):
        served.total = total
        await here.wait(60)
        assert await replicas(here) == count


async def test_metric_requests_use_the_autoscalers_account_and_select_the_targets_pods() -> None:
    async with scaled() as (here, served):
        await here.wait(20)
    (asked, *_) = served.asked
    assert asked.path == f"{CUSTOM}/v1beta2/namespaces/default/pods/*/duty"
    assert asked.query == {"labelSelector": "app=web"}
    assert asked.headers["impersonate-user"] == "system:serviceaccount:kube-system:horizontal-pod-autoscaler"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (lambda: text_reply("service unavailable\n", status=503), f"the server is currently unable to handle the request {ASKED}"),
        (lambda: text_reply("404 page not found", status=404), f"the server could not find the requested resource {ASKED}"),
        (lambda: json_reply({"kind": "Status", "reason": "InternalError", "message": "no answer"}, status=500), "no answer"),
        (lambda: json_reply({"items": [{"value": "1"}]}), "saw an answer that cannot be read: 'describedObject'"),
    ],
    ids=["away", "unknown", "says why", "odd"],
)
async def test_replicas_stay_and_a_condition_gives_the_reason_while_metrics_are_unavailable(
    failure: Callable[[], Answer], words: str
) -> None:
    async with scaled(replicas=3) as (here, served):
        served.total, served.failure = 300.0, failure
        await here.wait(60)
        stayed, away, shown = await replicas(here), await conditions(here), await here.status(RESOURCE, "web")
        reported = await events(here)
        served.failure = None
        await here.wait(60)
        back, count = await conditions(here), await replicas(here)

    message = f"unable to get metric duty: unable to fetch metrics from custom metrics API: {words}"
    assert stayed == 3
    assert away["ScalingActive"] == ("False", "FailedGetPodsMetric", f"the HPA was unable to compute the replica count: {message}")
    assert shown["currentMetrics"] == [{"type": ""}]
    assert [reason for reason, _ in reported] == ["FailedGetPodsMetric", "FailedComputeMetricsReplicas"]
    assert reported[0][1] == message
    assert (back["ScalingActive"][:2], count) == (("True", "ValidMetricFound"), 5)


async def test_without_a_metrics_server_the_status_has_the_message_of_kubernetes() -> None:
    async with scaled() as (here, served):
        served.freshness = "Stale"
        await here.wait(20)
        away = await conditions(here)
        here.cluster.api.aggregator = None
        await here.wait(20)
        none = await conditions(here)

    message = "unable to fetch metrics from custom metrics API: no known available metric versions found"
    assert away["ScalingActive"][2].endswith(message)
    assert none["ScalingActive"][2].endswith(message)


@pytest.mark.parametrize(
    ("source", "path", "query"),
    [
        (QUEUE, f"{EXTERNAL}/v1beta1/namespaces/default/queue", {"labelSelector": SELECTED}),
        (OF_WEB, f"{CUSTOM}/v1beta2/namespaces/default/deployments.apps/web/rps", {}),
        (OF_NAMESPACE, f"{CUSTOM}/v1beta2/namespaces/ml/metrics/rps", {"metricLabelSelector": SELECTED}),
    ],
    ids=["external", "of an object", "of a namespace"],
)
async def test_a_deployment_is_scaled_by_metrics_of_objects_other_than_pods(
    source: dict[str, Any], path: str, query: dict[str, str]
) -> None:
    async with scaled(source) as (here, served):
        served.values = {path: "5500m"}
        await here.wait(20)
        count, status = await replicas(here), await here.status(RESOURCE, "web")
        cells = (await asker(here.cluster.api).ok("GET", RESOURCE.path("default"), headers=TABLE))["rows"][0]["cells"]

    assert (served.asked[0].path, served.asked[0].query) == (path, query)
    assert count == 3
    field = source["type"].lower()
    current = status["currentMetrics"][0][field]["current"]
    assert current in ({"value": "5500m"}, {"averageValue": "5500m"})
    wanted = "5500m/2" if "value" in current else "5500m/2 (avg)"
    assert cells[:6] == ["web", "Deployment/web", wanted, "1", 8, 1]


async def test_the_status_names_a_resource_metric_that_no_server_provides() -> None:
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
    async with scaled(cpu) as (here, _):
        await here.wait(20)
        shown = await conditions(here)
        cells = (await asker(here.cluster.api).ok("GET", RESOURCE.path("default"), headers=TABLE))["rows"][0]["cells"]

    words = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: "
    assert words in shown["ScalingActive"][2]
    assert cells[2] == "cpu: <unknown>/50%"


async def test_an_unscalable_target_is_named_and_does_not_stop_other_autoscalers() -> None:
    async with scaled() as (here, served):
        served.total = 120.0
        await autoscale(here, "lost", DUTY, target="gone")
        await autoscale(here, "node", DUTY, scaleTargetRef={"apiVersion": "v1", "kind": "Node", "name": "a"})
        await autoscale(here, "broken", DUTY, maxReplicas=0)
        await here.wait(40)
        lost, unscalable, reported = await conditions(here, "lost"), await conditions(here, "node"), dict(await events(here))
        count = await replicas(here)

    unable = "the HPA controller was unable to get the target's current scale"
    assert lost["AbleToScale"] == ("False", "FailedGetScale", f'{unable}: deployments.apps "gone" not found')
    assert unscalable == {}
    assert "FailedConvertHPA" in reported
    assert count == 2


async def test_a_target_with_zero_replicas_stays_at_zero_and_limits_apply_without_metrics() -> None:
    async with scaled(replicas=0) as (here, served):
        await here.wait(20)
        off, none = await conditions(here), await replicas(here)
        await here.user.merge_patch(DEPLOYMENTS, "web", {"spec": {"replicas": 12}}, namespace="default")
        await here.wait(20)
        limited = await replicas(here)

    assert (off["ScalingActive"][:2], none) == (("False", "ScalingDisabled"), 0)
    assert limited == 8
    assert served.asked == [] or all("duty" in request.path for request in served.asked)


async def test_a_recreated_autoscaler_does_not_use_the_history_of_the_deleted_one() -> None:
    async with scaled() as (here, served):
        await here.wait(20)
        await here.user.delete(RESOURCE, "web", namespace="default")
        served.total = 180.0
        await here.wait(60)
        alone = await replicas(here)
        await autoscale(here, "web", DUTY)
        await here.wait(40)
        assert (alone, await replicas(here)) == (1, 3)


async def test_a_demand_metric_scales_a_deployment_from_zero_and_back() -> None:
    async with scaled(QUEUE, replicas=0, minReplicas=0, behavior={"scaleDown": {"stabilizationWindowSeconds": 0}}) as (here, served):
        served.values = {"/queue": "5"}
        await here.wait(20)
        up = await replicas(here)
        served.values = {"/queue": "0"}
        await here.wait(20)
        cells = (await asker(here.cluster.api).ok("GET", RESOURCE.path("default"), headers=TABLE))["rows"][0]["cells"]
        assert (up, await replicas(here), cells[3]) == (3, 0, "0")
