"""One annotation creates an autoscaler on a real control plane, with no more rights than the chart grants."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from tests.charts.rendering import text
from tests.e2e.granting import TRUSTS, asked, granted, refused, token, used
from tests.e2e.objects import deployment
from tests.e2e.stage import KINDS, NAMESPACE, Json, Stage, stage, until

from gpuscaler.kube.resources import CONFIG_MAPS, DEPLOYMENTS, EVENTS, LEASES, NAMESPACES
from gpuscaler.metrics.autoscale.annotation import ANNOTATION
from gpuscaler.metrics.autoscale.controller import AUTOSCALERS

pytestmark = pytest.mark.e2e

ACCOUNT, WORK = "gpuscaler-metrics", "work"
#: The annotation that a workload gets twice, so that the same Event happens twice.
TWICE = "profile=llm,max=4"


@dataclass
class Seen:
    """The results that the tests check."""

    made: Json = field(default_factory=dict)
    changed: Json = field(default_factory=dict)
    theirs: Json = field(default_factory=dict)
    kept: Json = field(default_factory=dict)
    lease: Json = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ended: bool = False
    collected: bool = False
    asked: list[Json] = field(default_factory=list)
    log: str = ""


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


async def _play() -> Seen:
    seen = Seen()
    # From 1.37 on the gate HPAScaleToZero is on by default. This tests a server that accepts no minimum of 0.
    # Without streamed lists, every right is needed: a resource that is streamed is not listed.
    async with stage("autoscale", audit=True, features={"HPAScaleToZero": False, "WatchList": False}) as made:
        await made.namespace(WORK)
        await install(made)
        log = made.folder / "metrics.log"
        process = await start(made)
        try:
            await _by_annotation(made, seen)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 60)
            seen.log = await asyncio.to_thread(log.read_text)
        seen.asked = asked(made, ACCOUNT, NAMESPACE)
    return seen


def rendered(*, autoscale: bool) -> list[Json]:
    """The chart rendered with only the metrics API."""
    metrics = {"enabled": True, "source": "exporters", "settings": {"autoscale": autoscale, "exporters": {"namespace": NAMESPACE}}}
    objects = yaml.safe_load_all(text({"controller": {"enabled": False}, "metrics": metrics}, namespace=NAMESPACE))
    return [obj for obj in objects if obj]


async def install(made: Stage) -> None:
    """Apply the rendered chart without the pods and the objects that route to them."""
    await made.admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    resources = {**KINDS, "ConfigMap": CONFIG_MAPS}
    for obj in rendered(autoscale=True):
        if obj["kind"] in resources:
            await made.apply(resources[obj["kind"]], obj)


async def start(made: Stage) -> "subprocess.Popen[bytes]":
    """Start ``gpuscaler metrics`` as a process, with the rights that the chart grants it."""
    kubeconfig, settings = made.folder / "metrics.kubeconfig", made.folder / "settings.yaml"
    config = made.plane.config(token=await token(made, ACCOUNT, NAMESPACE))
    # The Lease is in the process's own namespace, which comes from the kubeconfig here.
    for context in config["contexts"]:
        context["context"]["namespace"] = NAMESPACE
    kubeconfig.write_text(json.dumps(config))
    rendered = await made.find(CONFIG_MAPS, ACCOUNT, NAMESPACE)
    assert rendered is not None
    settings.write_text(rendered["data"]["settings.yaml"])
    words = [sys.executable, "-m", "gpuscaler", "metrics", f"--settings={settings}", "--source=exporters", "--secure-port=0"]
    words += [f"--{flag}-kubeconfig={kubeconfig}" for flag in ("lister", "authentication", "authorization")]

    def begun() -> "subprocess.Popen[bytes]":
        with (made.folder / "metrics.log").open("ab") as out:
            return subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)

    return await asyncio.to_thread(begun)


async def workload(made: Stage, name: str, annotation: str) -> None:
    spec: Json = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "serve:1"}]}
    body: dict[str, Any] = deployment(name, 0, spec)
    body["metadata"]["annotations"] = {ANNOTATION: annotation}
    await made.create(body, WORK)


async def annotate(made: Stage, name: str, annotation: str | None) -> None:
    await made.admin.merge_patch(DEPLOYMENTS, name, {"metadata": {"annotations": {ANNOTATION: annotation}}}, namespace=WORK)


async def _by_annotation(made: Stage, seen: Seen) -> None:
    async def scaler(name: str) -> Json | None:
        return await made.find(AUTOSCALERS, name, WORK)

    async def is_gone(name: str) -> bool:
        return await scaler(name) is None

    theirs = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "mine"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "taken"}, "maxReplicas": 3},
    }
    seen.theirs = json.loads(await made.admin.create(AUTOSCALERS, theirs, namespace=WORK))
    await workload(made, "taken", "duty_cycle=60,max=8")
    await workload(made, "asleep", "external=queue_length:10,min=0,max=4")
    await workload(made, "serve", TWICE)
    seen.made = await until("an autoscaler is created", lambda: scaler("serve-gpuscaler"))
    await annotate(made, "serve", "duty_cycle=55,min=2,max=6")

    async def changed() -> Json | None:
        autoscaler = await scaler("serve-gpuscaler")
        return autoscaler if autoscaler is not None and autoscaler["spec"]["maxReplicas"] == 6 else None

    seen.changed = await until("it follows the annotation", changed)
    await annotate(made, "serve", None)
    await until("it is deleted with the annotation", lambda: is_gone("serve-gpuscaler"))
    seen.ended = True
    await annotate(made, "serve", TWICE)
    await workload(made, "short", "profile=batch,max=4")
    await until("another autoscaler is created", lambda: scaler("short-gpuscaler"))
    await made.admin.delete(DEPLOYMENTS, "short", namespace=WORK, propagation="Background")
    await until("it is deleted with its workload", lambda: is_gone("short-gpuscaler"))
    seen.collected = True
    seen.kept = await scaler("mine") or {}
    seen.lease = await made.find(LEASES, "gpuscaler-autoscale", NAMESPACE) or {}

    async def reported() -> list[tuple[str, str]] | None:
        autoscale_events = [event for event in await made.listed(EVENTS, WORK) if "Autoscale" in event["reason"]]
        seen.failures = [event["note"] for event in autoscale_events if event["reason"] == "AutoscaleFailed"]
        events = [(event["reason"], event["regarding"]["name"]) for event in autoscale_events]
        wanted = {("AutoscaleEnded", "serve"), ("AutoscaleTaken", "taken"), ("AutoscaleFailed", "asleep")}
        return events if wanted <= set(events) else None

    seen.events = await until("Events report what happened", reported)

    async def counted() -> bool:
        listed = [
            event
            for event in await made.listed(EVENTS, WORK)
            if (event["reason"], event["regarding"]["name"]) == ("AutoscaleCreated", "serve")
        ]
        return any((event.get("series") or {}).get("count") == 2 for event in listed)

    # The count is written a minute after the first Event.
    await until("an Event counts the repetition", counted)


def test_a_real_api_server_accepts_the_autoscaler_of_an_annotation(seen: Seen) -> None:
    spec = seen.made["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert spec["metrics"][0]["pods"]["metric"]["name"] == "vllm_num_requests_waiting"
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600
    assert seen.made["metadata"]["ownerReferences"][0]["name"] == "serve"
    assert seen.changed["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "55"
    assert seen.changed["metadata"]["uid"] == seen.made["metadata"]["uid"]
    # Without a profile, Kubernetes' default behavior applies.
    assert seen.changed["spec"].get("behavior") != spec["behavior"]


def test_the_autoscaler_is_deleted_with_the_annotation_or_the_workload(seen: Seen) -> None:
    assert seen.ended
    assert seen.collected


def test_an_autoscaler_that_gpuscaler_did_not_create_is_reported_and_not_changed(seen: Seen) -> None:
    assert seen.kept["spec"] == seen.theirs["spec"]
    assert ("AutoscaleTaken", "taken") in seen.events
    assert {reason for reason, name in seen.events if name == "serve"} >= {"AutoscaleCreated", "AutoscaleChanged", "AutoscaleEnded"}


def test_the_message_of_an_api_server_refusal_is_reported_unchanged(seen: Seen) -> None:
    assert ("AutoscaleFailed", "asleep") in seen.events
    assert all("spec.minReplicas: Invalid value: 0" in note for note in seen.failures)


def test_no_request_is_forbidden_and_autoscaling_has_its_own_lease(seen: Seen) -> None:
    assert refused(seen.asked) == set(), seen.log[-2000:]
    assert seen.lease["spec"]["leaseDurationSeconds"] == 15


def test_every_permission_for_annotated_autoscalers_is_exercised(seen: Seen) -> None:
    # The rights of the metrics API itself are checked in test_hpa.py, where it serves an autoscaler.
    without = granted(rendered(autoscale=False), ACCOUNT)
    allowed = granted(rendered(autoscale=True), ACCOUNT)
    exercised = used(seen.asked, allowed | TRUSTS)

    assert without < allowed
    assert exercised - without - TRUSTS == allowed - without
