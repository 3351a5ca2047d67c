"""Annotations on workloads of the embedded API server, and the resulting autoscalers and Events."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import structlog

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault, Faults
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.events import EventRecorder
from gpuscaler.kube.leases import LeaderElection
from gpuscaler.kube.resources import DEPLOYMENTS, EVENTS, STATEFUL_SETS, Resource
from gpuscaler.metrics.autoscale.annotation import ANNOTATION
from gpuscaler.metrics.autoscale.controller import AUTOSCALERS, AutoscaleController

EPOCH = 1_780_000_000.0
NAME = "web-gpuscaler"
SERVED = ("duty_cycle_current", "sglang_num_queue_reqs")


def workload(name: str = "web", annotation: str | None = None, kind: str = "Deployment") -> dict[str, Any]:
    labels = {"app": name}
    spec: dict[str, Any] = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x"}]}},
    }
    annotations = {ANNOTATION: annotation} if annotation is not None else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "ml", "annotations": annotations}, "spec": spec}


def autoscaler(name: str, target: str = "web", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": "ml", "labels": labels},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}, "maxReplicas": 3},
    }


@dataclass
class AutoscaledCluster:
    client: Client
    faults: Faults

    async def annotate(self, text: str | None, resource: Resource = DEPLOYMENTS) -> None:
        await self.client.merge_patch(resource, "web", {"metadata": {"annotations": {ANNOTATION: text}}}, namespace="ml")
        await asyncio.sleep(10)

    async def scaler(self, name: str = NAME) -> dict[str, Any] | None:
        try:
            scaler: dict[str, Any] = json.loads(await self.client.get(AUTOSCALERS, name, namespace="ml"))
        except NotFound:
            return None
        return scaler

    async def events(self) -> list[tuple[str, str]]:
        await asyncio.sleep(5)
        return [(event["reason"], event["note"]) for event in map(json.loads, await self.client.list_all(EVENTS, namespace="ml"))]


@asynccontextmanager
async def controlled(
    *objects: dict[str, Any], copies: int = 1, served: list[Collection[str] | None] | None = None, fault: Fault | None = None
) -> AsyncIterator[AutoscaledCluster]:
    """The last of ``served`` are the metrics that are served now; ``fault`` is active from the start."""
    answers = served or [SERVED]
    clock = asyncio.get_running_loop().time
    api = ApiServer(lambda: EPOCH + clock())
    api.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("ml", "gpus")])
    client = Client(MemoryTransport(api))
    for manifest in objects:
        resource = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}.get(manifest["kind"], AUTOSCALERS)
        await client.create(resource, manifest, namespace="ml")
    if fault is not None:
        api.faults.add(fault)
    running = []
    for number in range(copies):
        election = LeaderElection(
            client, name="gpuscaler-autoscale", namespace="gpus", identity=f"copy-{number}", clock=clock, wall=clock, random=Random(number)
        )
        controller = AutoscaleController(
            client.fenced(election.fence),
            election=election,
            events=EventRecorder(client, lambda: EPOCH + clock()),
            served=lambda: answers[-1],
            clock=clock,
            random=Random(number),
        )
        running.append(asyncio.create_task(controller.run()))
    await asyncio.sleep(30)
    try:
        yield AutoscaledCluster(client, api.faults)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def test_an_annotation_makes_an_autoscaler_owned_by_the_workload_and_an_event() -> None:
    async with controlled(workload(annotation="duty_cycle=60,min=2,max=8")) as here:
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (2, 8)
        assert made["spec"]["metrics"] == [
            {
                "type": "Pods",
                "pods": {
                    # Numbers below zero are dropped, whatever the rule.
                    "metric": {
                        "name": "duty_cycle_current",
                        "selector": {"matchExpressions": [{"key": "gpuscaler.io/autoscale", "operator": "DoesNotExist"}]},
                    },
                    "target": {"type": "AverageValue", "averageValue": "60"},
                },
            }
        ]
        owner = made["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Deployment", "web", True)
        assert await here.events() == [
            ("AutoscaleCreated", f"created {NAME}: 2 to 8 replicas by Pods metric duty_cycle_current at 60 a replica")
        ]


async def test_changing_or_removing_the_annotation_changes_or_removes_the_autoscaler() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8")) as here:
        await here.annotate("duty_cycle=70,max=4")
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["maxReplicas"] == 4
        await here.annotate(None)
        assert await here.scaler() is None
        assert [reason for reason, _ in await here.events()] == ["AutoscaleCreated", "AutoscaleChanged", "AutoscaleEnded"]


async def test_an_unchanged_autoscaler_is_not_written_again() -> None:
    async with controlled(workload(annotation="profile=inference,max=8")) as here:
        first = await here.scaler()
        await asyncio.sleep(600)
        assert await here.scaler() == first


async def test_an_annotated_stateful_set_gets_an_autoscaler_whose_profile_uses_the_served_metric() -> None:
    async with controlled(workload(annotation="profile=llm,max=8", kind="StatefulSet")) as here:
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
        assert made["spec"]["metrics"][0]["pods"]["metric"]["name"] == "sglang_num_queue_reqs"
        assert made["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


async def test_the_behavior_of_a_profile_is_removed_with_the_profile() -> None:
    async with controlled(workload(annotation="profile=inference,target=60,max=8")) as here:
        await here.annotate("duty_cycle=60,max=8")
        made = await here.scaler()
        assert made is not None
        assert "behavior" not in made["spec"]


async def test_an_invalid_annotation_is_reported_once_and_the_autoscaler_stays_unchanged() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8")) as here:
        await here.annotate("duty_cycle=60,min=0,max=8")
        await asyncio.sleep(300)
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["minReplicas"] == 1
        _, (reason, note) = await here.events()
        assert reason == "AutoscaleInvalid"
        assert "expected min=1" in note
        assert note.endswith(f"{NAME} stays unchanged")


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (422, "Invalid", "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1"),
        (403, "Forbidden", "exceeded quota: count/horizontalpodautoscalers.autoscaling=1"),
    ],
)
async def test_a_rejected_autoscaler_is_reported_once_and_retried(status: int, reason: str, message: str) -> None:
    async with controlled(workload()) as here:
        here.faults.add(Fault("POST", "/horizontalpodautoscalers", refusal=Failure(status, reason, message)))
        await here.annotate("external=queue_length:10,min=0,max=8")
        await asyncio.sleep(300)
        ((event_reason, note),) = await here.events()
        assert event_reason == "AutoscaleFailed"
        assert message in note
        here.faults.clear()
        await asyncio.sleep(90)
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["minReplicas"] == 0


@pytest.mark.parametrize("name", ["mine", NAME, "keda-hpa-web"])
async def test_an_autoscaler_of_another_owner_is_not_changed(name: str) -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8"), autoscaler(name)) as here:
        theirs = await here.scaler(name)
        assert theirs is not None
        assert theirs["spec"]["maxReplicas"] == 3
        assert name == NAME or await here.scaler() is None
        ((reason, note),) = await here.events()
        assert reason == "AutoscaleTaken"
        assert name in note
        await here.annotate(None)
        assert await here.scaler(name) == theirs


async def test_an_autoscaler_with_our_name_but_another_target_is_not_changed() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8"), autoscaler(NAME, target="other")) as here:
        assert (await here.events())[0][0] == "AutoscaleTaken"


async def test_the_second_of_two_workloads_with_one_name_gets_an_event_that_names_the_autoscalers_owner() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8")) as here:
        await here.client.create(STATEFUL_SETS, workload(annotation="duty_cycle=50,max=4", kind="StatefulSet"), namespace="ml")
        await asyncio.sleep(10)
        assert ("AutoscaleTaken", True) in [(reason, "belongs to Deployment web" in note) for reason, note in await here.events()]
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["maxReplicas"] == 8


async def test_a_recreated_workload_gets_an_autoscaler_once_the_previous_autoscaler_is_gone() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8")) as here:
        await here.client.delete(DEPLOYMENTS, "web", namespace="ml")
        await here.client.create(DEPLOYMENTS, workload(annotation="duty_cycle=70,max=8"), namespace="ml")
        await asyncio.sleep(10)
        assert {reason for reason, _ in await here.events()} == {"AutoscaleCreated"}
        made = await here.scaler()
        assert made is not None
        assert made["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "70"


async def test_a_copied_label_does_not_make_an_autoscaler_ours() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8")) as here:
        made = await here.scaler()
        assert made is not None
        await here.client.create(AUTOSCALERS, autoscaler("copy", "other", **made["metadata"]["labels"]), namespace="ml")
        await here.annotate(None)
        assert await here.scaler() is None
        assert await here.scaler("copy") is not None


async def test_an_autoscaler_is_created_even_if_its_metric_is_missing_which_is_reported() -> None:
    async with controlled(workload(annotation="memory_used=10Gi,max=8")) as here:
        assert await here.scaler() is not None
        assert ("AutoscaleMetricMissing", True) in [(reason, "memory_used_bytes_current" in note) for reason, note in await here.events()]


async def test_only_the_leader_of_two_replicas_writes_and_a_deleted_autoscaler_is_created_again() -> None:
    async with controlled(workload(annotation="duty_cycle=60,max=8"), copies=2) as here:
        assert len(await here.events()) == 1
        await here.client.delete(AUTOSCALERS, NAME, namespace="ml")
        await asyncio.sleep(10)
        assert await here.scaler() is not None
        assert len(await here.events()) == 1


async def test_autoscalers_are_not_changed_while_the_served_metrics_are_unknown() -> None:
    served: list[Collection[str] | None] = [None]
    async with controlled(workload(annotation="profile=llm,max=8"), served=served) as here:
        assert await here.scaler() is None
        served.append(SERVED)
        await asyncio.sleep(10)
        first = await here.scaler()
        assert first is not None
        served.append(None)
        await here.annotate("profile=llm,max=9")
        assert await here.scaler() == first


async def test_an_autoscaler_keeps_its_metric_while_that_metric_or_no_metric_is_served() -> None:
    served: list[Collection[str] | None] = [SERVED]

    def metric(made: dict[str, Any] | None) -> str:
        assert made is not None
        name: str = made["spec"]["metrics"][0]["pods"]["metric"]["name"]
        return name

    async with controlled(workload(annotation="profile=llm,max=8"), served=served) as here:
        for now, expected in (
            ((*SERVED, "vllm_num_requests_waiting"), "sglang_num_queue_reqs"),
            ((), "sglang_num_queue_reqs"),
            (("vllm_num_requests_waiting",), "vllm_num_requests_waiting"),
        ):
            served.append(now)
            await asyncio.sleep(90)
            assert metric(await here.scaler()) == expected


LISTED = ("deployments", "statefulsets", "horizontalpodautoscalers")
LEASE = "/leases/gpuscaler-autoscale"


@pytest.mark.parametrize(
    ("verb", "resource", "fault"),
    [
        *(("list", resource, Fault("GET", rf"/{resource}\?")) for resource in LISTED),
        *(
            (verb, "horizontalpodautoscalers", Fault(method, "/horizontalpodautoscalers"))
            for verb, method in (("create", "POST"), ("update", "PUT"), ("delete", "DELETE"))
        ),
        *((verb, "leases", Fault(method, path)) for verb, method, path in (("get", "GET", LEASE), ("update", "PUT", LEASE))),
        ("create", "leases", Fault("POST", "/leases")),
        ("create", "events", Fault("POST", "/events")),
    ],
)
async def test_a_missing_right_is_named_and_autoscalers_are_created_once_the_right_is_granted(
    verb: str, resource: str, fault: Fault
) -> None:
    message = f'cannot {verb} resource "{resource}"'
    with structlog.testing.capture_logs() as logs:
        async with controlled(
            workload(annotation="duty_cycle=60,max=8"), fault=replace(fault, refusal=Failure(403, "Forbidden", message))
        ) as here:
            await here.annotate("duty_cycle=70,max=4")
            if verb == "delete":
                await here.annotate(None)
            await asyncio.sleep(60)
            assert any(message in str(log) for log in logs)
            here.faults.clear()
            await asyncio.sleep(180)
            scaler = await here.scaler()
            assert (scaler or {"spec": {}})["spec"].get("maxReplicas") == (None if verb == "delete" else 4)
