"""Aggregated APIs: which server is asked, with which identity, which certificates are trusted, and answers while a server is away."""

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from tests.embedded.asking import TABLE, Asker, asker

from gpuscaler.embedded.apiserver.aggregation.front_proxy import FrontProxy
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.serving.certificates import CertificateAuthority

pytestmark = pytest.mark.looptime(False)  # real sockets take real time

GROUP, HOST = "custom.metrics.k8s.io", "metrics.gpu.svc"
NAME = f"v1beta2.{GROUP}"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
VALUE = f"/apis/{GROUP}/v1beta2/namespaces/ml/pods/*/duty"
AUTOSCALER = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
NEWER = {"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RARELY", "SOON"):
        monkeypatch.setattr(f"gpuscaler.embedded.apiserver.aggregation.aggregator.{name}", 0.1)


def now() -> float:
    return time.time()


@dataclass
class Beside:
    """A metrics server beside the cluster, which accepts clients signed by the ConfigMap's authority."""

    api: ApiServer
    ask: Asker
    authority: CertificateAuthority
    port: int = 0
    asked: list[web.Request] = field(default_factory=list)
    runner: web.AppRunner | None = None

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/apis":
            version = {"version": "v1beta2", "freshness": "Current", "resources": [{"resource": "pods"}]}
            return web.json_response({"items": [{"metadata": {"name": GROUP}, "versions": [version]}]})
        if request.path == VALUE:
            self.asked.append(request)
        return web.json_response({"path": request.path, "query": dict(request.query)}, status=int(request.query.get("status", "200")))

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        context = self.authority.issue(HOST, hosts=(HOST,)).load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        config_map = await self.ask.ok("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")
        context.load_verify_locations(cadata=config_map["data"]["requestheader-client-ca-file"])
        context.verify_mode = ssl.CERT_REQUIRED
        await web.TCPSite(self.runner, "127.0.0.1", self.port, ssl_context=context).start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    async def register(self, **spec: Any) -> None:
        bundle = b64encode(self.authority.certificate).decode()
        leads = {"group": GROUP, "version": "v1beta2", "service": {"name": "metrics", "namespace": "gpu"}, "caBundle": bundle}
        priorities = {"groupPriorityMinimum": 100, "versionPriority": 100}
        await self.ask.ok("POST", API_SERVICES, {"metadata": {"name": NAME}, "spec": {**leads, **priorities, **spec}})

    async def serve(self, name: str = "https") -> None:
        """Create a Service and its endpoint."""
        await self.ask.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu"}})
        ports = [{"name": "https", "port": 443, "targetPort": self.port}]
        await self.ask.ok("POST", "/api/v1/namespaces/gpu/services", {"metadata": {"name": "metrics"}, "spec": {"ports": ports}})
        subsets = [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": name, "port": self.port}]}]
        await self.ask.ok("POST", "/api/v1/namespaces/gpu/endpoints", {"metadata": {"name": "metrics"}, "subsets": subsets})

    async def condition(self) -> dict[str, str]:
        api_service = await self.ask.ok("GET", f"{API_SERVICES}/{NAME}")
        conditions = (api_service.get("status") or {}).get("conditions") or [{}]
        return dict(conditions[0])

    async def until(self, wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """The condition, once it is the wanted one."""
        async with asyncio.timeout(60):
            while not wanted(current := await self.condition()):  # noqa: ASYNC110  # another task changes it
                await asyncio.sleep(0.02)
        return current


@asynccontextmanager
async def beside() -> AsyncIterator[Beside]:
    proxy = FrontProxy(now=now())
    api = ApiServer(now, front_proxy=proxy)
    api.load([proxy.config_map()])
    made = Beside(api, asker(api), CertificateAuthority("metrics", now=now()))
    assert api.aggregator is not None
    running = asyncio.create_task(api.aggregator.run())
    try:
        await made.start()
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.stop()


def answers(condition: dict[str, str]) -> bool:
    return condition.get("status") == "True"


def is_away(condition: dict[str, str]) -> bool:
    return condition.get("status") == "False"


async def test_a_request_is_passed_on_with_a_trusted_certificate_and_the_callers_name() -> None:
    forged = {"authorization": "Bearer t", "x-remote-user": "root", "x-remote-group": "system:masters", "impersonate-user": AUTOSCALER}
    async with beside() as made:
        await made.serve()
        await made.register()
        await made.until(answers)
        reply = await made.ask("GET", VALUE, labelSelector="app in (a,b)")
        await made.ask("GET", VALUE, headers=forged)
        refused = await made.ask("GET", VALUE, status="404")

    assert reply == (200, {"path": VALUE, "query": {"labelSelector": "app in (a,b)"}})
    assert refused[0] == 404
    plain, autoscaler, _ = [(request.headers["X-Remote-User"], request.headers.getall("X-Remote-Group")) for request in made.asked]
    assert plain == ("gpuscaler-embedded", ["system:masters", "system:authenticated"])
    groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
    assert autoscaler == (AUTOSCALER, groups)
    assert "Authorization" not in made.asked[1].headers


async def test_an_unavailable_aggregated_server_has_a_condition_and_gets_no_requests_until_it_returns() -> None:
    async with beside() as made:
        await made.serve()
        await made.register()
        there = await made.until(answers)
        await made.stop()
        away = await made.until(is_away)
        refused = await made.ask("GET", VALUE)
        shown = (await made.ask.ok("GET", API_SERVICES, headers=TABLE))["rows"][0]["cells"]
        await made.start()
        again = await made.until(answers)

    assert (there["reason"], there["message"]) == ("Passed", "all checks passed")
    assert away["reason"] == "FailedDiscoveryCheck"
    url = f"https://127.0.0.1:{made.port}/apis/{GROUP}/v1beta2"
    assert away["message"] == f"failing or missing response from {url}: dial tcp 127.0.0.1:{made.port}: Connection refused"
    assert refused == (503, "service unavailable\n")
    assert shown[:3] == [NAME, "gpu/metrics", "False (FailedDiscoveryCheck)"]
    assert again["status"] == "True"


@pytest.mark.parametrize(
    "bundle", [b64encode(CertificateAuthority("another", now=time.time()).certificate).decode(), "", "bm8gUEVN", "no base64"]
)
async def test_an_untrusted_server_does_not_learn_the_callers_name(bundle: str) -> None:
    async with beside() as made:
        await made.serve()
        await made.register(caBundle=bundle)
        # Availability checks accept any server's answer, as in kube-aggregator.
        await made.until(answers)
        status, message = await made.ask("GET", VALUE)

    assert status == 503
    assert message.startswith("error trying to reach service: ")
    assert made.asked == []


async def test_a_server_with_verification_switched_off_is_trusted() -> None:
    async with beside() as made:
        await made.serve()
        await made.register(caBundle=None, insecureSkipTLSVerify=True)
        await made.until(answers)
        assert (await made.ask("GET", VALUE))[0] == 200


@pytest.mark.parametrize(
    ("path", "reason", "message"),
    [
        ("services", "ServiceNotFound", 'service/metrics in "gpu" is not present'),
        ("endpoints", "EndpointsNotFound", 'cannot find endpointslices for service/metrics in "gpu"'),
    ],
)
async def test_the_missing_link_between_an_api_and_its_server_is_named(path: str, reason: str, message: str) -> None:
    async with beside() as made:
        await made.serve()
        await made.register()
        await made.until(answers)
        await made.ask.ok("DELETE", f"/api/v1/namespaces/gpu/{path}/metrics")
        condition = await made.until(is_away)
        refused = await made.ask("GET", VALUE)

    assert (condition["reason"], condition["message"]) == (reason, message)
    assert refused == (503, "service unavailable\n")


async def test_an_endpoint_whose_port_is_not_that_of_the_service_is_ignored() -> None:
    async with beside() as made:
        await made.serve("http")
        await made.register()
        condition = await made.until(is_away)
        other = await made.ask.ok("POST", API_SERVICES, {"metadata": {"name": "v1.odd.example"}, "spec": {"service": "no mapping"}})
        port = await made.ask.ok(
            "PATCH", f"{API_SERVICES}/{NAME}", {"spec": {"service": {"port": 80}}}, media="application/merge-patch+json"
        )
        not_listening = await made.until(lambda condition: condition["reason"] == "ServicePortError")

    assert condition["message"] == 'endpointslices for service/metrics in "gpu" have no addresses with port name "https"'
    assert not_listening["message"] == 'service/metrics in "gpu" is not listening on port 80'
    assert other["metadata"]["name"] == "v1.odd.example"
    assert port["spec"]["service"]["port"] == 80


async def test_discovery_lists_an_aggregated_servers_resources_and_marks_them_stale_while_it_is_unavailable() -> None:
    async with beside() as made:
        await made.serve()
        await made.register()
        await made.until(answers)
        newer = await made.ask.ok("GET", "/apis", headers=NEWER)
        older = await made.ask.ok("GET", "/apis")
        alone = await made.ask.ok("GET", f"/apis/{GROUP}")
        await made.stop()
        await made.until(is_away)
        stale = await made.ask.ok("GET", "/apis", headers=NEWER)

    def versions(document: Any) -> Any:
        return next(item["versions"] for item in document["items"] if item["metadata"]["name"] == GROUP)

    assert versions(newer) == [{"version": "v1beta2", "freshness": "Current", "resources": [{"resource": "pods"}]}]
    assert versions(stale) == [{"version": "v1beta2", "freshness": "Stale"}]
    group = next(group for group in older["groups"] if group["name"] == GROUP)
    assert group["preferredVersion"] == alone["preferredVersion"] == {"groupVersion": f"{GROUP}/v1beta2", "version": "v1beta2"}


async def test_no_aggregated_server_takes_over_an_api_of_the_cluster() -> None:
    async with beside() as made:
        await made.serve()
        local = {"metadata": {"name": "v1.apps"}, "spec": {"group": "apps", "version": "v1"}}
        await made.ask.ok("POST", API_SERVICES, local)
        await made.ask.ok("DELETE", f"{API_SERVICES}/v1.apps")
        local["spec"]["service"] = {"name": "metrics", "namespace": "gpu"}  # type: ignore[assignment]
        await made.ask.ok("POST", API_SERVICES, local)
        listed = await made.ask.ok("GET", "/apis/apps/v1/deployments")
        groups = [group["name"] for group in (await made.ask.ok("GET", "/apis"))["groups"]]

    assert listed["kind"] == "DeploymentList"
    assert groups.count("apps") == 1


async def test_a_cluster_without_a_front_proxy_has_no_aggregated_apis() -> None:
    ask = asker()
    service = {"name": "metrics", "namespace": "gpu"}
    await ask.ok("POST", API_SERVICES, {"metadata": {"name": NAME}, "spec": {"group": GROUP, "version": "v1beta2", "service": service}})

    assert (await ask("GET", VALUE))[0] == 404
