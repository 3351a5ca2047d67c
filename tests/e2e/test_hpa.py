"""The HorizontalPodAutoscaler of a real controller manager scales by our metrics, which it reads through the real aggregator.

The rendered chart is installed without its pods: the server runs as a process here, with the account's token. Prometheus is a real one.
"""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from tests.charts.building import helm
from tests.charts.rendering import CHART, merge_values, text
from tests.e2e.granting import TRUSTS, asked, granted, refused, used
from tests.e2e.objects import deployment
from tests.e2e.stage import KINDS, NAMESPACE, Json, Stage, stage, until
from tests.embedded.kubectl_building import kubectl
from tests.lacking import skip_or_fail
from tests.metrics.real_prometheus import RealPrometheus, binary, real_prometheus
from tests.objects import node

from gpuscaler.kube.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, NODES, SERVICE_ACCOUNTS, Resource
from gpuscaler.kube.transport import Request
from gpuscaler.metrics.api.publishing import API_SERVICES

pytestmark = pytest.mark.e2e

ACCOUNT, WORK = "gpuscaler-metrics", "work"
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
APIS = ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
VALUES: Mapping[str, Any] = {"controller": {"enabled": False}, "metrics": {"enabled": True, "prometheusUrl": "http://prometheus:9090"}}
#: For a chart that is rendered without querying the cluster.
REGISTERED: Mapping[str, Any] = merge_values(VALUES, {"metrics": {"apis": {"custom": True, "external": True}}})
#: The Accept header with which kube-aggregator and kubectl request all resources at once.
EVERYTHING = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
QUEUE = "inference_extension_flow_control_queue_size"
LISTED = {("external.metrics.k8s.io", QUEUE)} | {
    ("custom.metrics.k8s.io", f"{what}/duty_cycle_current") for what in ("pods", "nodes", "namespaces")
}


@dataclass
class Load:
    """Metrics as GPU exporters and a gateway would serve them: ``total`` percent, spread over the pods, and waiting requests."""

    made: Stage
    total: float = 0.0
    waiting: int = 0
    namespace: str = WORK

    async def page(self, _request: web.Request) -> web.Response:
        running = [pod["metadata"]["name"] for pod in await self.made.pods(self.namespace) if pod["status"].get("phase") == "Running"]
        names = [name for name in running if name.startswith("serve")]
        labels = f'namespace_name="{self.namespace}",node_name="plain"'
        lines = [f'nvidia_gpu_duty_cycle{{uuid="GPU-{name}",pod_name="{name}",{labels}}} {self.total / len(names)}' for name in names]
        return web.Response(text="\n".join([*lines, f'{QUEUE}{{namespace="{self.namespace}",pool="llm"}} {self.waiting}', ""]))


@asynccontextmanager
async def exporting(load: Load) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", load.page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def address() -> str:
    """An address of this machine that is not a loopback address, because Kubernetes accepts no loopback endpoints. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            skip_or_fail("saw no network but loopback, expected an address that an endpoint may have; run it with a network")
        host: str = probe.getsockname()[0]
    return host


async def install(made: Stage, port: int, host: str) -> str:
    """Apply the rendered chart, with our own endpoints instead of the pods'. Returns the API server's warnings about all objects."""
    restricted = {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/warn": "restricted"}}
    await made.admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": restricted})
    words = (
        "apply",
        "--server-side",
        "--validate=strict",
        "--dry-run=server",
        "--filename",
        "-",
        "--kubeconfig",
        str(made.plane.kubeconfig),
    )
    command, manifest = (str(kubectl()), "--cache-dir", str(made.folder / "kubectl"), *words), text(REGISTERED, namespace=NAMESPACE)
    done = await asyncio.to_thread(subprocess.run, command, input=manifest, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resources = {**KINDS, "ConfigMap": CONFIG_MAPS, "Service": SERVICES, "APIService": API_SERVICES}
    for obj in yaml.safe_load_all(manifest):
        if obj and obj["kind"] in resources:
            if obj["kind"] == "Service":
                del obj["spec"]["selector"]
            await made.apply(resources[obj["kind"]], obj)
    # Not an EndpointSlice, because the aggregator of 1.33 ignores those. A controller creates one from these Endpoints.
    subsets = [{"addresses": [{"ip": host}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]
    metadata = {"name": ACCOUNT, "namespace": NAMESPACE}
    await made.apply(ENDPOINTS, {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets})
    return done.stderr


@dataclass
class Server:
    """``gpuscaler metrics`` as a process, with the rights that the chart gives it."""

    made: Stage
    prometheus: RealPrometheus
    port: int = 0
    log: Path = field(init=False)
    process: "subprocess.Popen[bytes]" = field(init=False)

    async def start(self) -> None:
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        reply = await self.made.admin.create(SERVICE_ACCOUNTS, request, namespace=NAMESPACE, name=ACCOUNT, subresource="token")
        kubeconfig = self.made.folder / "metrics.kubeconfig"
        kubeconfig.write_text(json.dumps(self.made.plane.config(token=json.loads(reply)["status"]["token"])))
        settings = self.made.folder / "settings.yaml"
        config = await self.made.find(CONFIG_MAPS, ACCOUNT, NAMESPACE)
        assert config is not None
        settings.write_text(config["data"]["settings.yaml"] + "period: 2s\nstale: 20s\ntimeout: 2s\n")
        self.log = self.made.folder / "metrics.log"
        words = [sys.executable, "-m", "gpuscaler", "metrics", f"--settings={settings}", f"--prometheus-url={self.prometheus.url}"]
        words += [f"--{flag}-kubeconfig={kubeconfig}" for flag in ("lister", "authentication", "authorization")]
        words += [f"--secure-port={self.port}", "--metrics-relist-interval=2s", "--metrics-max-age=1m", "--v=6", "--logtostderr=true"]
        self.process = await asyncio.to_thread(self._process, words)

    def _process(self, words: list[str]) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as out:
            return subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)

    async def end(self) -> int:
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, 60)


def conditions(obj: Mapping[str, Any]) -> dict[str, Json]:
    return {condition["type"]: condition for condition in obj.get("status", {}).get("conditions") or ()}


async def raw(made: Stage, path: str, **headers: str) -> Json:
    """The API server's answer, which may come from an aggregated server."""
    async with made.admin.exchange(Request("GET", path, headers=headers)) as answer:
        content: Json = json.loads(b"".join([piece async for piece in answer.pieces]))
    return content


async def available(made: Stage) -> bool:
    apis = [await made.find(API_SERVICES, name) for name in APIS]
    return all(api is not None and conditions(api).get("Available", {}).get("status") == "True" for api in apis)


async def replicas(made: Stage, name: str) -> int:
    deployment = await made.find(DEPLOYMENTS, name, WORK)
    assert deployment is not None
    count: int = deployment["spec"]["replicas"]
    return count


async def scaling(made: Stage, name: str) -> Json:
    """The autoscaler's condition ScalingActive, with the reason."""
    autoscaler = await made.find(AUTOSCALERS, name, WORK)
    return conditions(autoscaler or {}).get("ScalingActive", {})


async def scaled(made: Stage, name: str, count: int) -> None:
    async def observed() -> bool:
        return await replicas(made, name) == count

    try:
        await until(f"{name} has {count} replicas", observed)
    except AssertionError as error:
        raise AssertionError(f"{error}: {await replicas(made, name)}, {await made.find(AUTOSCALERS, name, WORK)}") from None


async def autoscale(made: Stage, name: str, *, least: int, most: int, metric: Json) -> None:
    """Create a Deployment with one replica, and an autoscaler that scales it without waiting."""
    spec: Json = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "serve:1"}]}
    await made.create(deployment(name, 1, spec), WORK)
    hpa_spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": [metric],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": hpa_spec}
    await made.admin.create(AUTOSCALERS, body, namespace=WORK)


DUTY: Json = {
    "type": "Pods",
    "pods": {"metric": {"name": "duty_cycle_current"}, "target": {"type": "AverageValue", "averageValue": "40"}},
}
DEMAND: Json = {"type": "External", "external": {"metric": {"name": QUEUE}, "target": {"type": "AverageValue", "averageValue": "5"}}}


@dataclass
class Seen:
    """The results that the tests check."""

    replicas: list[int] = field(default_factory=list)
    demanded: list[int] = field(default_factory=list)
    away: Json = field(default_factory=dict)
    while_away: int = 0
    back: Json = field(default_factory=dict)
    bundles: list[str] = field(default_factory=list)
    resources: set[tuple[str, str]] = field(default_factory=set)
    described: set[str] = field(default_factory=set)
    values: Json = field(default_factory=dict)
    asked: list[Json] = field(default_factory=list)
    warned: str = ""
    direct: tuple[int, int] = (0, 0)
    own: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    lost: Json = field(default_factory=dict)
    while_lost: int = 0
    code: int = -1
    last: int = -1
    log: str = ""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_play(tmp_path_factory.mktemp("prometheus")))


def _free(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


async def _play(folder: Path) -> Seen:
    host, program, seen = address(), binary(), Seen()
    port = _free(host)
    # Without streamed lists, every right is needed: a resource that is streamed is not listed.
    async with stage("hpa", audit=True, features={"HPAScaleToZero": True, "WatchList": False}) as made, made.kubelets():
        await made.admin.create(NODES, node("plain"))
        await made.namespace(WORK)
        load = Load(made)
        async with exporting(load) as target, real_prometheus(program, folder, target) as prometheus:
            seen.warned = await install(made, port, host)
            server = Server(made, prometheus, port)
            await server.start()
            try:
                await until("the APIs are available", lambda: available(made))
                seen.direct = await _directly(made, f"https://{host}:{port}/apis")
                await _scale(made, load, prometheus, seen)
                seen.code = await server.end()
                await _without(made, seen)
                load.total = 120.0
                await server.start()
                await scaled(made, "serve", 3)
                seen.replicas.append(3)
                seen.own, seen.others = [await _registered(made, namespace) for namespace in (NAMESPACE, "elsewhere")]
            finally:
                seen.last = await server.end()
                seen.log = server.log.read_text()
        seen.asked = asked(made, ACCOUNT, NAMESPACE)
    return seen


async def _registered(made: Stage, namespace: str) -> set[str]:
    """The APIServices that helm would install in ``namespace``, given those that exist in the cluster."""
    words = ("template", "gpuscaler", str(CHART), "--namespace", namespace, "--dry-run=server", "--values", "-")
    environ = {"HOME": str(made.folder), "KUBECONFIG": str(made.plane.kubeconfig)}
    command, values = (str(helm()), *words), yaml.safe_dump(VALUES)
    done = await asyncio.to_thread(subprocess.run, command, input=values, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^kind: APIService\nmetadata:\n  name: (\S+)$", done.stdout, re.MULTILINE))


async def _directly(made: Stage, url: str) -> tuple[int, int]:
    """The status codes for a client with a token of the cluster, and for one with an unknown token."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    reply = await made.admin.create(SERVICE_ACCOUNTS, request, namespace=WORK, name="default", subresource="token")
    tokens = (json.loads(reply)["status"]["token"], "made.up.token")
    async with aiohttp.ClientSession() as session:
        # The server's certificate is not what this checks.
        good, bad = [(await session.get(url, headers={"Authorization": f"Bearer {token}"}, ssl=False)).status for token in tokens]
    return good, bad


async def _without(made: Stage, seen: Seen) -> None:
    """Check that nothing is scaled while no server serves the APIs. There is one replica and no load."""

    async def reported() -> Json | None:
        condition = await scaling(made, "serve")
        return condition if condition.get("status") == "False" else None

    seen.lost = await until("the autoscaler reports that its metric is not served", reported)
    seen.while_lost = await replicas(made, "serve")


async def _bundle(made: Stage, name: str) -> str:
    api = await made.find(API_SERVICES, name)
    assert api is not None
    return str(api["spec"].get("caBundle", ""))


async def _scale(made: Stage, load: Load, prometheus: RealPrometheus, seen: Seen) -> None:
    # A write that conflicts with one of the aggregator is repeated seconds later.
    seen.bundles = [await until(f"{name} has a certificate authority", partial(_bundle, made, name)) for name in APIS]
    await autoscale(made, "serve", least=1, most=5, metric=DUTY)
    await autoscale(made, "llm", least=0, most=4, metric=DEMAND)
    load.total, load.waiting = 120.0, 14
    await scaled(made, "serve", 3)
    await scaled(made, "llm", 3)
    seen.replicas.append(3)
    seen.demanded.append(3)
    seen.values = await raw(made, f"/apis/custom.metrics.k8s.io/v1beta2/namespaces/{WORK}/pods/*/duty_cycle_current")
    everything = ("nodes/*/duty_cycle_current", "namespaces/*/metrics/duty_cycle_current")
    values = [await raw(made, f"/apis/custom.metrics.k8s.io/v1beta2/{path}") for path in everything]
    seen.described = {item["describedObject"]["name"] for many in values for item in many["items"]}
    await until("discovery lists the metrics", lambda: _listed(made, seen))
    load.total, load.waiting = 1.0, 0
    await scaled(made, "serve", 1)
    await scaled(made, "llm", 0)
    seen.replicas.append(1)
    seen.demanded.append(0)
    load.total, load.waiting = 120.0, 4
    await scaled(made, "serve", 3)
    await scaled(made, "llm", 1)
    seen.replicas.append(3)
    seen.demanded.append(1)
    await prometheus.stop()

    async def says(status: str) -> Json | None:
        condition = await scaling(made, "serve")
        return condition if condition.get("status") == status else None

    seen.away = await until("the autoscaler reports that it has no metric", lambda: says("False"))
    # Twice the autoscaler's period.
    await asyncio.sleep(30)
    seen.while_away = await replicas(made, "serve")
    load.total = 1.0
    await prometheus.start()
    seen.back = await until("the autoscaler has its metric again", lambda: says("True"))
    await scaled(made, "serve", 1)
    seen.replicas.append(1)


async def _listed(made: Stage, seen: Seen) -> bool:
    everything = await raw(made, "/apis", accept=EVERYTHING)
    seen.resources = {
        (group["metadata"]["name"], f"{resource['resource']}/{part['subresource']}" if part else resource["resource"])
        for group in everything["items"]
        for version in group["versions"]
        for resource in version["resources"]
        for part in resource.get("subresources") or [None]
    }
    # The aggregator reads each APIService by itself, once a minute.
    return seen.resources >= LISTED


def test_replicas_grow_with_load_and_return_to_the_minimum_without_it(seen: Seen) -> None:
    assert seen.replicas == [3, 1, 3, 1, 3]


def test_a_demand_metric_of_a_gateway_scales_to_zero_and_back(seen: Seen) -> None:
    assert seen.demanded == [3, 0, 1]


def test_without_prometheus_replicas_stay_and_the_autoscaler_reports_why(seen: Seen) -> None:
    assert seen.while_away == 3
    assert seen.away["reason"] == "FailedGetPodsMetric"
    assert "unable to get metric duty_cycle_current: unable to fetch metrics from custom metrics API" in seen.away["message"]
    assert seen.back["reason"] == "ValidMetricFound"


def test_replicas_stay_without_a_metrics_server_and_a_new_server_with_a_new_certificate_is_used(seen: Seen) -> None:
    assert (seen.lost["reason"], seen.while_lost) == ("FailedGetPodsMetric", 1)
    assert seen.replicas[-1] == 3


def test_only_valid_tokens_of_the_cluster_are_accepted(seen: Seen) -> None:
    assert seen.direct == (200, 401)


def test_every_api_service_trusts_the_certificate_that_the_server_created(seen: Seen) -> None:
    assert all(seen.bundles)
    assert len(set(seen.bundles)) == 1


def test_the_api_server_accepts_every_object_of_the_chart_strictly_without_a_warning(seen: Seen) -> None:
    assert "Warning" not in seen.warned


def test_the_chart_registers_no_api_that_another_installation_serves(seen: Seen) -> None:
    assert seen.own == set(APIS)
    assert seen.others == set()


def test_discovery_lists_every_metric_with_the_resources_that_it_describes(seen: Seen) -> None:
    assert seen.resources >= LISTED


def test_every_pod_has_a_metric_value(seen: Seen) -> None:
    assert seen.values["kind"] == "MetricValueList"
    assert len(seen.values["items"]) >= 1
    for value in seen.values["items"]:
        assert value["describedObject"]["kind"] == "Pod"
        assert re.fullmatch(r"serve-.+", value["describedObject"]["name"])


def test_every_node_and_namespace_with_samples_has_a_metric_value(seen: Seen) -> None:
    assert seen.described == {"plain", WORK}


def test_no_request_of_the_metrics_server_is_refused_and_the_server_exits_with_status_0(seen: Seen) -> None:
    assert len(seen.asked) > 10
    assert refused(seen.asked) == set()
    assert (seen.code, seen.last) == (0, 0), seen.log[-2000:]


def test_the_metrics_server_uses_every_permission_that_it_is_granted(seen: Seen) -> None:
    allowed = granted(yaml.safe_load_all(text(REGISTERED, namespace=NAMESPACE)), ACCOUNT) | TRUSTS

    assert used(seen.asked, allowed) == allowed
