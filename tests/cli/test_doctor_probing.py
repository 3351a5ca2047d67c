"""What ``gpuscaler doctor`` asks a cluster beside its objects, and what it makes of the answers."""

import asyncio
import json
import shlex
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
from tests.doctor.corpus import NOW

from gpuscaler.cli.doctor.probing import with_probes
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.transport import Answer, Request, WholeBody
from gpuscaler.serving.certificates import CertificateAuthority

Json = dict[str, Any]
METRIC = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/%2A/duty_cycle"


@dataclass
class Server:
    """Answers by path: a status and a document; without one, an empty object. ``ahead`` is its clock; it may be silent."""

    answers: Mapping[str, tuple[int, Json]] = field(default_factory=dict)
    ahead: float = 0.0
    has_clock: bool = True
    is_silent: bool = False
    requests: list[Request] = field(default_factory=list)

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        self.requests.append(request)
        if self.is_silent:
            assert request.timeout is not None
            await asyncio.sleep(request.timeout)
            raise Unreachable(f"no answer within {request.timeout:g} s")
        status, document = self.answers.get(request.path, (200, {}))
        headers = {"content-type": "application/json", **({"date": formatdate(NOW + self.ahead, usegmt=True)} if self.has_clock else {})}
        yield Answer(status, headers, WholeBody(msgspec.json.encode(document)))

    async def close(self) -> None:
        pass


def failure(status: int, message: str) -> tuple[int, Json]:
    return status, {"kind": "Status", "status": "Failure", "message": message, "code": status}


def api_service(version: str = "v1beta2", **spec: Any) -> Json:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.custom.metrics.k8s.io"},
        "spec": {
            "group": "custom.metrics.k8s.io",
            "version": version,
            "service": {"namespace": "monitoring", "name": "metrics", "port": 443},
            **spec,
        },
        "status": {"conditions": [{"type": "Available", "status": "True"}]},
    }


def service(address: str = "10.0.0.1", port: int = 443) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "metrics", "namespace": "monitoring"},
        "spec": {"clusterIP": address, "ports": [{"port": port}], "selector": {"app": "metrics"}},
    }


def autoscaled(name: str = "web") -> list[Json]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    metric = {"type": "Pods", "pods": {"metric": {"name": "duty_cycle"}, "target": {"type": "AverageValue", "averageValue": "40"}}}
    return [
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "scaleTargetRef": target,
                "maxReplicas": 4,
                "metrics": [metric],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": name}, "matchExpressions": [{"key": "track", "operator": "In", "values": ["a", "b"]}]},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": name, "image": "example.org/web:1"}]}},
            },
        },
    ]


async def report(server: Server, *objects: Json, inside: bool = False) -> Report:
    evidence = await with_probes(Client(server), evidence_of_objects(objects, now=NOW), inside=inside, wall=lambda: NOW)
    assert {request.method for request in server.requests} <= {"GET"}
    return run_checks(evidence, CHECKS)


def findings(done: Report, check: str) -> list[str]:
    return [f"{finding.object}: {finding.field}: {finding.seen}" for finding in done.findings if finding.check == check]


def unchecked(done: Report, check: str) -> list[str]:
    return [entry.message for entry in done.unchecked if entry.check == check]


async def test_an_empty_list_is_a_finding_though_its_status_is_200() -> None:
    server = Server({METRIC: (200, {"items": []})})
    done = await report(server, api_service(), *autoscaled())

    assert findings(done, "D45") == ["HorizontalPodAutoscaler default/web: spec.metrics[0]: duty_cycle, an empty list (200)"]
    (request,) = (request for request in server.requests if request.path == METRIC)
    assert request.query == {"labelSelector": "app=web,track in (a,b)"}


async def test_a_metric_with_values_has_no_finding_and_the_same_request_is_sent_once() -> None:
    server = Server({METRIC: (200, {"items": [{"value": "40"}]})})
    second = autoscaled()[0] | {"metadata": {"name": "again", "namespace": "default"}}
    done = await report(server, api_service(), *autoscaled(), second)

    assert not findings(done, "D45")
    assert sum(request.path == METRIC for request in server.requests) == 1


async def test_the_newest_version_that_is_registered_is_asked() -> None:
    old = METRIC.replace("v1beta2", "v1beta1")
    done = await report(Server({old: failure(404, "no such metric")}), api_service("v1beta1"), *autoscaled())

    assert findings(done, "D45") == [
        "HorizontalPodAutoscaler default/web: spec.metrics[0]: duty_cycle, which is not served (no such metric)"
    ]


async def test_what_may_not_be_read_and_what_does_not_answer_is_unchecked() -> None:
    forbidden = await report(Server({METRIC: failure(403, "pods is forbidden")}), api_service(), *autoscaled())
    silent = await report(Server(is_silent=True), api_service(), *autoscaled())

    assert not findings(forbidden, "D45")
    assert any("there is no permission to read it: pods is forbidden" in entry for entry in unchecked(forbidden, "D45"))
    assert not findings(silent, "D45")
    assert any("no answer within 5 s" in entry for entry in unchecked(silent, "D45"))


async def test_a_silent_cluster_of_many_autoscalers_takes_seconds() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    objects = [item for number in range(500) for item in autoscaled(f"web-{number}")]
    done = await report(Server(is_silent=True), api_service(), *objects)

    assert loop.time() - start < 20
    assert len([entry for entry in unchecked(done, "D45") if "default/web-" in entry]) == 500


@pytest.mark.parametrize(("ahead", "severity"), [(0.0, ""), (25.0, ""), (40.0, "warning"), (-40.0, "warning"), (400.0, "critical")])
async def test_clocks_that_differ_by_more_than_30_seconds_are_found(ahead: float, severity: str) -> None:
    done = await report(Server(ahead=ahead))

    assert [finding.severity for finding in done.findings] == ([severity] if severity else [])
    assert not unchecked(done, "D48")


async def test_an_answer_without_a_date_leaves_the_clock_unchecked() -> None:
    assert unchecked(await report(Server(has_clock=False)), "D48") == [
        "could not check the clock of the API server because its answer has no date"
    ]


async def test_a_program_that_the_api_server_does_not_trust_is_found_though_its_api_is_available() -> None:
    refused = failure(503, "error trying to reach service: tls: failed to verify certificate: x509: certificate is valid for a, not b")
    done = await report(Server({"/apis/custom.metrics.k8s.io/v1beta2": refused}), api_service())

    (finding,) = (finding for finding in done.findings if finding.check == "D42")
    assert "available, but requests fail" in finding.seen
    assert "issue the program's certificate" in finding.fix.advice


def adapter(url: str = "http://prometheus.monitoring.svc:9090/prefix") -> list[Json]:
    rule = {
        "seriesQuery": 'DCGM_FI_DEV_GPU_UTIL{pod!=""}',
        "resources": {"overrides": {"pod": {"resource": "pod"}, "namespace": {"resource": "namespace"}}},
        "name": {"as": "duty_cycle"},
    }
    container = {
        "name": "adapter",
        "image": "registry.k8s.io/prometheus-adapter/prometheus-adapter:v0.12.0",
        "args": [f"--prometheus-url={url}", "--config=/etc/adapter/config.yaml"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/adapter"}],
    }
    spec = {"containers": [container], "volumes": [{"name": "config", "configMap": {"name": "rules"}}]}
    metadata = {"namespace": "monitoring"}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**metadata, "name": "adapter"},
            "spec": {"template": {"metadata": {"labels": {"app": "metrics"}}, "spec": spec}},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "name": "rules"},
            "data": {"config.yaml": json.dumps({"rules": [rule]})},
        },
    ]


@pytest.mark.parametrize(
    ("series", "advice"),
    [
        ([], "let Prometheus scrape what has the series of its rule, of which it has none"),
        (
            [{"__name__": "DCGM_FI_DEV_GPU_UTIL", "exported_pod": "web-1", "exported_namespace": "default", "gpu": "0"}],
            "its labels pod, namespace do not exist, and they have exported_namespace, exported_pod; or scrape with honor_labels",
        ),
        ([{"pod": "other", "namespace": "default"}], "Prometheus has series of its rule, but none for these pods"),
    ],
)
async def test_an_empty_list_is_explained_by_the_series_of_prometheus(series: list[Json], advice: str) -> None:
    path = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/prefix/api/v1/series"
    server = Server({METRIC: (200, {"items": []}), path: (200, {"status": "success", "data": series})})
    done = await report(server, api_service(), *adapter(), *autoscaled())

    (finding,) = (finding for finding in done.findings if finding.check == "D45")
    assert advice in finding.fix.advice
    (request,) = (request for request in server.requests if request.path == path)
    assert request.query["match[]"] == 'DCGM_FI_DEV_GPU_UTIL{pod!=""}'


@pytest.mark.parametrize("answer", [failure(403, "services/proxy is forbidden"), (200, {"data": None}), (200, {"data": [None]})])
async def test_a_prometheus_that_cannot_be_asked_leaves_the_rule_as_advice(answer: tuple[int, Json]) -> None:
    path = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/prefix/api/v1/series"
    done = await report(Server({METRIC: (200, {"items": []}), path: answer}), api_service(), *adapter(), *autoscaled())

    (finding,) = (finding for finding in done.findings if finding.check == "D45")
    assert "check that Prometheus has the series of its rule" in finding.fix.advice


async def test_a_prometheus_outside_the_cluster_is_not_asked() -> None:
    server = Server({METRIC: (200, {"items": []})})
    await report(server, api_service(), *adapter("https://prometheus.example.org"), *autoscaled())

    assert not [request for request in server.requests if "proxy" in request.path]


async def test_from_outside_the_certificate_in_use_is_unchecked() -> None:
    (entry,) = unchecked(await report(Server(), api_service(), service()), "D44")

    assert "reached only from inside the cluster" in entry


def endpoints(address: str, port: int, name: str = "") -> Json:
    subset = {"addresses": [{"ip": address}], "ports": [{"port": port, **({"name": name} if name else {})}]}
    return {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "monitoring", "name": "metrics"}, "subsets": [subset]}


async def test_a_service_without_an_address_of_its_own_is_reached_by_its_endpoints() -> None:
    for address in ("", "None"):
        (outside,) = unchecked(await report(Server(), api_service(), service(address), endpoints("10.1.2.3", 8443)), "D44")
        (without,) = unchecked(await report(Server(), api_service(), service(address)), "D44")
        (other,) = unchecked(await report(Server(), api_service(), service(address), endpoints("10.1.2.3", 8443, "web")), "D44")

        assert "reached only from inside the cluster" in outside
        assert without == other
        assert without.endswith("Service monitoring/metrics has no clusterIP, and its Endpoints name no ready address for this port")


async def test_an_api_service_of_a_service_that_does_not_exist_has_no_certificate() -> None:
    (entry,) = unchecked(await report(Server(), api_service()), "D44")

    assert entry.endswith("the Service that it names does not exist")


@pytest.mark.looptime(False)
async def test_the_certificate_at_endpoints_is_read_from_inside() -> None:
    pair = CertificateAuthority("authority", now=NOW).issue("other", hosts=("metrics.other.svc",))
    context = pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        done = await report(Server(), api_service(), service("None"), endpoints("127.0.0.1", port), inside=True)
    finally:
        server.close()

    assert findings(done, "D44") == [
        f"APIService v1beta2.custom.metrics.k8s.io: the certificate at 127.0.0.1:{port}: a certificate for metrics.other.svc"
    ]


@pytest.mark.looptime(False)
async def test_from_inside_the_certificate_in_use_is_read_and_judged() -> None:
    authority = CertificateAuthority("authority", now=NOW)
    pair = authority.issue("other", hosts=("metrics.other.svc",))
    context = pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    named = {"namespace": "monitoring", "name": "metrics", "port": port}
    try:
        done = await report(Server(), api_service(service=named), service("127.0.0.1", port), inside=True)
    finally:
        server.close()

    assert findings(done, "D44") == [
        f"APIService v1beta2.custom.metrics.k8s.io: the certificate at 127.0.0.1:{port}: a certificate for metrics.other.svc"
    ]


@pytest.mark.looptime(False)
async def test_a_server_that_cannot_be_reached_leaves_its_certificate_unchecked() -> None:
    named = {"namespace": "monitoring", "name": "metrics", "port": 9}
    (entry,) = unchecked(await report(Server(), api_service(service=named), service("127.0.0.1", 9), inside=True), "D44")

    assert "no TLS connection to 127.0.0.1:9" in entry


PROXY = "x/../../../../../../api/v1/namespaces/victim/services/http:admin:80/proxy/shutdown?now=/v1"


@pytest.mark.parametrize(
    ("about", "target"),
    [
        ({"apiVersion": PROXY, "kind": "Service", "name": "n"}, {}),
        ({"apiVersion": "v1", "kind": "../../x", "name": "n"}, {}),
        ({"apiVersion": "v1", "kind": "Service", "name": ".."}, {}),
        ({"apiVersion": "v1", "kind": "Service", "name": "a%2f..%2fb"}, {}),
        (None, {"apiVersion": PROXY, "kind": "Made", "name": "n"}),
        (None, {"apiVersion": "example.org/v1", "kind": "x/../../made", "name": "n"}),
        (None, {"apiVersion": "example.org/v1", "kind": "Made", "name": "n?watch=1"}),
    ],
)
async def test_an_autoscaler_does_not_choose_the_paths_of_requests(about: Json | None, target: Json) -> None:
    autoscaler = autoscaled()[0]
    if about is not None:
        metric = {
            "type": "Object",
            "object": {"metric": {"name": "m"}, "describedObject": about, "target": {"type": "Value", "value": "1"}},
        }
        autoscaler["spec"]["metrics"] = [metric]
    autoscaler["spec"]["scaleTargetRef"].update(target)
    server = Server()

    done = await report(server, api_service(), service(), autoscaler)

    assert [request.path for request in server.requests if set("?%") & set(request.path.replace("%2A", "")) or ".." in request.path] in (
        [],
        ["/apis/example.org/v1/namespaces/default/mades/n%3Fwatch%3D1/scale"],
    )
    assert findings(done, "D45") or unchecked(done, "D45")


@pytest.mark.parametrize("rest", ["/../../../../../secrets", "/shutdown?now=", "/%2e%2e/x"])
async def test_a_prometheus_address_does_not_lead_elsewhere(rest: str) -> None:
    server = Server({METRIC: (200, {"items": []})})
    await report(server, api_service(), service(), *autoscaled(), *adapter(f"http://prometheus.monitoring.svc:9090{rest}"))
    assert METRIC in [request.path for request in server.requests]
    assert not [request.path for request in server.requests if ".." in request.path or "?" in request.path or "%2e" in request.path]


async def test_the_command_that_asks_again_is_quoted_for_a_shell() -> None:
    autoscaler = autoscaled()[0]
    autoscaler["spec"]["metrics"][0]["pods"]["metric"]["selector"] = {"matchLabels": {"a": "'$(touch pwned)'"}}
    done = await report(Server({METRIC: (404, {})}), api_service(), service(), autoscaler, autoscaled()[1])
    (advice,) = (finding.fix.advice for finding in done.findings if finding.check == "D45")
    command = shlex.split(advice.partition("ask again with ")[2])
    assert command[:3] == ["kubectl", "get", "--raw"]
    assert len(command) == 4
