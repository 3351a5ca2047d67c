"""The whole metrics API over sockets: with an API server, a front proxy with its certificate, a Prometheus, and changes to these parts."""

import asyncio
import re
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
from aiohttp import web
from tests.metrics.prometheus_double import PrometheusDouble
from tests.metrics.sources.test_direct import EXPORTERS, exporter
from yarl import URL

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import CONFIG_MAPS, NAMESPACES, PODS
from gpuscaler.kube.transport import Request
from gpuscaler.metrics.api.trust import NAME, NAMESPACE
from gpuscaler.metrics.command.command import Options, TrustFlags
from gpuscaler.metrics.command.rules import RulesFile
from gpuscaler.metrics.command.service import ApiAccess, Clocks, MetricsService
from gpuscaler.metrics.command.settings import MetricsSettings
from gpuscaler.metrics.sources.direct import ScrapeSettings
from gpuscaler.metrics.sources.prometheus import PrometheusAway
from gpuscaler.serving.certificates import CertificateAuthority

pytestmark = pytest.mark.looptime(False)

PATH = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/work/pods/%2A/duty_cycle_current?labelSelector=app%3Dserve"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics-settings.md"
SERVICE = {"name": "gpuscaler-metrics", "namespace": "default"}


@dataclass
class World:
    """An API server with reviews and APIServices, a Prometheus, and authorities."""

    api: ApiServer = field(default_factory=lambda: ApiServer(time.time))
    prometheus: PrometheusDouble = field(default_factory=PrometheusDouble)
    proxies: CertificateAuthority = field(default_factory=lambda: CertificateAuthority("front-proxy", now=time.time()))
    bundles: dict[str, str] = field(default_factory=dict)
    allowed: bool = True

    @property
    def client(self) -> Client:
        return Client(MemoryTransport(self.api))

    async def prepare(self) -> None:
        data = {
            "requestheader-client-ca-file": self.proxies.certificate.decode(),
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
        for namespace in ("work",):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await self.client.create(NAMESPACES, body)
        await self.client.create(CONFIG_MAPS, config_map, namespace=NAMESPACE)
        for name in ("serve-a", "serve-b"):
            spec = {"containers": [{"name": "main", "image": "x"}]}
            metadata = {"name": name, "labels": {"app": "serve"}}
            await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace="work")

    async def plane(self, request: web.Request) -> web.StreamResponse:
        """The answers of an API server."""
        path, body = request.path, await request.read()
        if path.endswith("subjectaccessreviews"):
            return web.json_response({"status": {"allowed": self.allowed}}, status=201)
        if "/apiservices/" in path:
            name = path.rpartition("/")[2]
            if request.method == "PATCH":
                self.bundles[name] = msgspec.json.decode(body)["spec"]["caBundle"]
            spec = {"service": SERVICE, "caBundle": self.bundles.get(name, "")}
            return web.json_response({"metadata": {"resourceVersion": "1"}, "spec": spec})
        headers = {name.lower(): value for name, value in request.headers.items()}
        async with self.api.handle(Request(request.method, request.rel_url.raw_path, dict(request.query), headers, body)) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            async for piece in answer.pieces:
                await response.write(piece)
            return response

    async def asked(self, request: web.Request) -> web.Response:
        """The answers of a Prometheus."""
        form = {**request.query, **await request.post()}
        double = self.prometheus
        try:
            if request.path == "/api/v1/query":
                samples = await double.query(str(form["query"]))
                result = [{"metric": sample.metric, "value": sample.value} for sample in samples]
                return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})
            match = {"match": str(form["match[]"]), "start": 0.0, "end": 300.0}
            names = await (double.label_names if request.path.endswith("labels") else double.metric_names)(**match)  # type: ignore[arg-type]
        except PrometheusAway as error:
            return web.json_response({"status": "error", "error": str(error)}, status=503)
        return web.json_response({"status": "success", "data": names})


@asynccontextmanager
async def listening(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class Running:
    world: World
    service: MetricsService
    url: str
    rules: Path

    async def get(self, path: str) -> tuple[int, Any]:
        """Send a request like the aggregator: it trusts the authorities in caBundle, and acts for the autoscaler."""
        bundle = self.world.bundles.get("v1beta2.custom.metrics.k8s.io", "")
        context = ssl.create_default_context(cadata=b64decode(bundle).decode() or None)
        self.world.proxies.issue("front-proxy-client").load_into(context)
        name = f"{SERVICE['name']}.{SERVICE['namespace']}.svc"
        headers = {"X-Remote-User": "system:serviceaccount:kube-system:horizontal-pod-autoscaler"}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True)) as session,
            session.get(URL(self.url + path, encoded=True), headers=headers, server_hostname=name) as answer,
        ):
            body = await answer.read()
        return answer.status, msgspec.json.decode(body) if body.startswith(b"{") else body.decode()

    async def until(self, path: str, wanted: Callable[[int, Any], bool]) -> Any:
        """Repeat a request until the answer is as expected."""
        reply: Any = None
        async with asyncio.timeout(60):
            while True:
                try:
                    reply = await self.get(path)
                except aiohttp.ClientError as error:
                    reply = (0, str(error))
                if wanted(*reply):
                    return reply[1]
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(folder: Path, *, fault: Fault | None = None, **more: Any) -> AsyncIterator[Running]:
    """A running service; ``fault`` is active from the start."""
    world = World()
    await world.prepare()
    if fault is not None:
        world.api.faults.add(fault)
    rules = folder / "rules.yaml"
    rules.write_text(RULES.replace("NAME", "duty_cycle_current"))
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with listening(world.plane) as plane, listening(world.asked) as prometheus:
        access = Access(server=plane, source="test")
        more.setdefault("settings", MetricsSettings(period=0.2, timeout=2.0))
        options = Options(
            prometheus_urls=() if more.get("source") == "exporters" else (prometheus,),
            rules=rules,
            relist=0.2,
            max_age=60.0,
            trust=TrustFlags(),
            address="127.0.0.1",
            port=0,
            **more,
        )
        service = MetricsService(
            options=options,
            accesses=ApiAccess(access, access, access),
            rules=RulesFile(rules),
            environ={},
            clocks=Clocks(time.monotonic, time.time),
            random=Random(1),
            listening=port.set_result,
        )
        task = asyncio.create_task(service.run())
        try:
            yield Running(world, service, f"https://127.0.0.1:{await port}", rules)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


RULES = """
rules:
- seriesQuery: '{__name__="nvidia_gpu_duty_cycle"}'
  resources: {overrides: {pod_name: {resource: pod}, namespace_name: {resource: namespace}}}
  name: {matches: .*, as: NAME}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
"""


def values(body: Any) -> dict[str, str]:
    return {item["describedObject"]["name"]: item["value"] for item in body["items"]}


async def test_the_aggregator_reads_values_and_trusts_the_certificate_through_the_ca_bundle(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.world.prometheus.put("nvidia_gpu_duty_cycle", 40.0, pod_name="serve-a", namespace_name="work")
        made.world.prometheus.put("nvidia_gpu_duty_cycle", 60.5, pod_name="serve-b", namespace_name="work")
        made.world.prometheus.put("nvidia_gpu_duty_cycle", 99.0, pod_name="other", namespace_name="work")
        await made.until(PATH, lambda status, body: status == 200 and values(body) == {"serve-a": "40", "serve-b": "60500m"})
        assert set(made.world.bundles) == {
            "v1beta1.custom.metrics.k8s.io",
            "v1beta2.custom.metrics.k8s.io",
            "v1beta1.external.metrics.k8s.io",
        }
        assert (await made.get("/readyz"))[1] == "ok"
        figures = (await made.get("/metrics"))[1]
        assert 'gpuscaler_metrics_requests_total{code="200",group="custom.metrics.k8s.io"} ' in figures
        assert made.service.own_certificate is not None
        folder = made.service.own_certificate.files[0].parent
        assert folder.is_dir()
        served = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (gpuscaler_metrics_\w+)", figures, re.MULTILINE)}
        created = {name for name in served if name.endswith("_created")}
        assert served - created == set(re.findall(r"^\| `(gpuscaler_metrics_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert not folder.exists(), "the key of the certificate was left behind"


async def test_values_are_errors_while_prometheus_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscaler.serving.logs.CHECK_SECONDS", 0.1)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path) as made:
            made.world.prometheus.put("nvidia_gpu_duty_cycle", 40.0, pod_name="serve-a", namespace_name="work")
            await made.until(PATH, lambda status, _: status == 200)
            made.world.prometheus.error = PrometheusAway("down for repairs")
            away = await made.until(PATH, lambda status, _: status != 200)
            assert away["message"].startswith("Internal error occurred: unable to fetch metrics: ")
            assert "down for repairs" in away["message"]
            await made.until(PATH, lambda *_: "Prometheus does not answer" in [log["event"] for log in logs])
            made.world.prometheus.error = None
            await made.until(PATH, lambda status, _: status == 200)
            await made.until(PATH, lambda *_: "Prometheus answers again" in [log["event"] for log in logs])
    outages = [log for log in logs if log["event"].startswith("Prometheus")]
    assert [log["event"] for log in outages] == ["Prometheus does not answer", "Prometheus answers again"]
    assert "down for repairs" in outages[0]["problem"]


async def test_if_exporters_are_scraped_directly_one_that_does_not_answer_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscaler.serving.logs.CHECK_SECONDS", 0.05)
    # Nothing listens at port 1.
    scraping = ScrapeSettings(namespace="default", selector=EXPORTERS, port=1, interval=0.05)
    settings = MetricsSettings(period=0.2, exporters=scraping)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, source="exporters", settings=settings) as made, asyncio.timeout(60):
            lone = exporter("e", "127.0.0.1")
            made.world.api.load([{**lone, "metadata": {**lone["metadata"], "namespace": "default"}}])
            while not any("exporter" in log["event"] for log in logs):  # noqa: ASYNC110  # it is other tasks that change it
                await asyncio.sleep(0.05)
            # Many rounds later it has not been logged again.
            await asyncio.sleep(0.5)
    outages = [log for log in logs if "exporter" in log["event"]]
    assert [log["event"] for log in outages] == ["exporters do not answer"]
    assert outages[0]["problem"].startswith("1 of 1 do not answer, the first: http://127.0.0.1:1/metrics: ")


async def test_an_expired_certificate_and_one_for_another_service_name_are_logged_at_start(tmp_path: Path) -> None:
    pair = CertificateAuthority("theirs", now=time.time() - 400 * 86_400).issue("server", hosts=("gpuscaler-metrics.monitoring.svc",))
    certificate, key = pair.write(tmp_path, "theirs")
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, certificate=certificate, key=key), asyncio.timeout(60):
            while not (  # noqa: ASYNC110
                problems := [log["problem"] for log in logs if log["event"] == "needs to be fixed" and log["about"] == "certificate"]
            ):
                await asyncio.sleep(0.05)
    assert f"{certificate}: it expired on " in problems[0]
    assert "saw a certificate for gpuscaler-metrics.monitoring.svc, expected gpuscaler-metrics.default.svc" in problems[0]


async def test_metrics_of_changed_rules_are_served_and_users_without_rights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscaler.metrics.command.rules.CHECK_SECONDS", 0.1)
    async with running(tmp_path) as made:
        made.world.prometheus.put("nvidia_gpu_duty_cycle", 40.0, pod_name="serve-a", namespace_name="work")
        await made.until(PATH, lambda status, _: status == 200)
        made.rules.write_text(RULES.replace("NAME", "gpu_load"))
        body = await made.until(PATH.replace("duty_cycle_current", "gpu_load"), lambda status, _: status == 200)
        assert values(body) == {"serve-a": "40"}
        failure = await made.until(PATH, lambda status, _: status == 404)
        assert failure["message"] == "the server could not find the metric duty_cycle_current for pods"
        made.world.allowed = False
        status, refused = await made.get("/openapi/v2")
        assert (status, refused["reason"]) == (403, "Forbidden")


@pytest.mark.parametrize(
    ("phrase", "path"),
    [
        ('cannot list resource "pods"', r"/api/v1/pods\?"),
        ('cannot get resource "configmaps"', r"/configmaps"),
    ],
)
async def test_a_missing_read_permission_is_logged_and_values_are_served_once_it_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phrase: str, path: str
) -> None:
    monkeypatch.setattr("gpuscaler.serving.health.LOOK", 0.1)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, fault=Fault("GET", path, refusal=Failure(403, "Forbidden", phrase))) as made:
            made.world.prometheus.put("nvidia_gpu_duty_cycle", 40.0, pod_name="serve-a", namespace_name="work")
            await made.until("/readyz", lambda _status, _found: any(phrase in str(log.get("problem")) for log in logs))
            made.world.api.faults.clear()
            await made.until(PATH, lambda status, _: status == 200)
