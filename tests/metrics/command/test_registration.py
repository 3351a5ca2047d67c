"""The registration of the metrics API as `gpuscaler status` shows it."""

from typing import Any

import msgspec
import pytest
from tests.kube.doubles import Scripted, answer, refusal

from gpuscaler.kube.client import Client
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.metrics.command.registration import find_registrations

EXPIRED = "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-11-23T00:08:40Z"
OTHER = "tls: failed to verify certificate: x509: certificate is valid for adapter.kube-system.svc, not adapter.monitoring.svc"
ACCOUNT = "system:serviceaccount:monitoring:adapter"
HPA = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"


class ApiServerDouble:
    """An API server with APIServices by name; ``wide`` has the accounts that may do everything."""

    def __init__(self, *wide: str, forbidden: bool = False) -> None:
        self.services: dict[str, dict[str, Any]] = {}
        #: The aggregator's answer in place of the server's.
        self.unheard = ""
        #: The names that the server lists, and its refusal of a request for a value.
        self.listed: list[str] = []
        self.refused: tuple[int, str] | None = None
        self.paths: list[str] = []
        self.wide, self.forbidden = wide, forbidden
        self.args = ["metrics", "--prometheus-url=x"]
        self.client = Client(Scripted([self._answer]))

    def add(self, group: str, version: str, *, message: str = "", namespace: str = "monitoring", **spec: Any) -> None:
        condition = {"type": "Available", "status": "False" if message else "True", "message": message}
        service = {"name": "adapter", "namespace": namespace}
        self.services[f"{version}.{group}"] = {
            "spec": {"group": group, "version": version, "service": service, **spec},
            "status": {"conditions": [condition]},
        }

    async def _answer(self, request: Request) -> Answer:
        json = "application/json"
        name = request.path.rpartition("/")[2]
        if request.path.endswith("subjectaccessreviews"):
            if self.forbidden:
                return refusal(403, "no", reason="Forbidden", content_type=json)
            spec = msgspec.json.decode(request.body)["spec"]
            assert f"system:serviceaccounts:{spec['user'].split(':')[2]}" in spec["groups"]
            return answer(201, {"status": {"allowed": spec["user"] in self.wide}}, content_type=json)
        if request.path.startswith(("/apis/custom.metrics.k8s.io/", "/apis/external.metrics.k8s.io/")):
            self.paths.append(request.path)
            if self.unheard:
                return refusal(503, self.unheard, content_type="text/plain")
            names = [{"name": name} for name in self.listed]
            if request.path.count("/") > 3 and self.refused is not None:
                return refusal(*self.refused, content_type=json)
            return answer(200, {"resources": names}, content_type=json)
        if "/apiservices/" in request.path and name in self.services:
            return answer(200, self.services[name], content_type=json)
        if request.path.endswith("/namespaces/monitoring/services/adapter"):
            return answer(200, {"spec": {"selector": {"app": "adapter"}}}, content_type=json)
        if request.path.endswith("/namespaces/monitoring/pods"):
            assert request.query["labelSelector"] == "app=adapter"
            pod = {"spec": {"serviceAccountName": "adapter", "containers": [{"args": self.args}]}}
            return answer(200, {"metadata": {}, "items": [pod]}, content_type=json)
        return refusal(404, "not found", reason="NotFound", content_type=json)


async def describe(plane: ApiServerDouble) -> list[str]:
    return [registration.text for registration in await find_registrations(plane.client)]


async def test_an_available_metrics_server_is_shown_with_its_apis() -> None:
    plane = ApiServerDouble()
    plane.add("custom.metrics.k8s.io", "v1beta2")
    plane.add("custom.metrics.k8s.io", "v1beta1")
    plane.add("external.metrics.k8s.io", "v1beta1", namespace="keda")
    assert await describe(plane) == [
        "custom.metrics.k8s.io/v1beta2, custom.metrics.k8s.io/v1beta1 by Service monitoring/adapter: no problems",
        "external.metrics.k8s.io/v1beta1 by Service keda/adapter: no problems",
    ]


async def test_a_certificate_that_is_not_trusted_is_shown_with_the_api_servers_error() -> None:
    for message in (EXPIRED, OTHER):
        plane = ApiServerDouble()
        plane.unheard = f"error trying to reach service: {message}"
        plane.add("custom.metrics.k8s.io", "v1beta2")
        plane.add("custom.metrics.k8s.io", "v1beta1")
        (registration,) = await describe(plane)
        expected = f"by Service monitoring/adapter: the API server gets no answer from it: error trying to reach service: {message} (503)"
        assert registration.endswith(expected), registration


async def test_a_missing_metrics_server_is_shown_once_for_all_its_apis() -> None:
    plane = ApiServerDouble()
    plane.unheard = "error trying to reach service: no endpoints"
    plane.add("custom.metrics.k8s.io", "v1beta2", message="endpoints for service/adapter have no addresses with port name https")
    (registration,) = await describe(plane)
    assert registration.endswith(
        ": it does not answer the API server: endpoints for service/adapter have no addresses with port name https"
    )


async def test_an_error_that_differs_only_in_the_paths_of_the_apis_is_shown_once() -> None:
    plane = ApiServerDouble()
    for version in ("v1beta1", "v1beta2"):
        url = f"https://10.0.0.1:443/apis/custom.metrics.k8s.io/{version}"
        plane.add("custom.metrics.k8s.io", version, message=f'failing or missing response from {url}: Get "{url}": connection refused')
    (registration,) = await describe(plane)

    assert registration.count("connection refused") == 1
    assert "it does not answer the API server: failing or missing response from https://10.0.0.1:443/apis/custom" in registration


async def test_a_server_that_an_api_server_does_not_reach_for_one_api_is_not_asked_for_the_others() -> None:
    plane = ApiServerDouble()
    plane.unheard = "error trying to reach service: connection refused"
    plane.add("custom.metrics.k8s.io", "v1beta1", message="connection refused")
    plane.add("custom.metrics.k8s.io", "v1beta2")
    (registration,) = await describe(plane)

    assert registration.endswith(": it does not answer the API server: connection refused")


async def test_a_server_without_prometheus_is_shown_with_its_error() -> None:
    plane = ApiServerDouble()
    plane.add("custom.metrics.k8s.io", "v1beta2")
    plane.add("custom.metrics.k8s.io", "v1beta1")
    plane.listed = ["pods/duty_cycle_current", "namespaces/duty_cycle_current"]
    plane.refused = 500, "unable to fetch metrics: cannot connect"
    (registration,) = await describe(plane)

    assert registration.endswith("by Service monitoring/adapter: it has no values: unable to fetch metrics: cannot connect (500)")
    assert "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/metrics/duty_cycle_current" in plane.paths


@pytest.mark.parametrize("status", [403, 404])
async def test_a_user_who_may_not_read_a_metric_and_a_metric_without_a_value_are_no_problem(status: int) -> None:
    plane = ApiServerDouble()
    plane.add("custom.metrics.k8s.io", "v1beta2")
    plane.listed = ["namespaces/duty_cycle_current"]
    plane.refused = status, "no"

    assert await describe(plane) == ["custom.metrics.k8s.io/v1beta2 by Service monitoring/adapter: no problems"]


async def test_disabled_tls_verification_and_excessive_roles_are_shown() -> None:
    plane = ApiServerDouble(ACCOUNT, HPA)
    plane.add("custom.metrics.k8s.io", "v1beta2", insecureSkipTLSVerify=True)
    (registration,) = await describe(plane)
    assert "insecureSkipTLSVerify: the server is not authenticated" in registration
    assert f"saw every verb on every resource of custom.metrics.k8s.io for {HPA}, expected get and list; narrow its role" in registration
    assert f"saw that {ACCOUNT} may do everything in the cluster" in registration
    assert f"saw that {ACCOUNT} may read all Secrets" in registration


async def test_the_rights_of_other_programs_are_not_checked() -> None:
    plane = ApiServerDouble(ACCOUNT)
    plane.args = ["operator"]
    plane.add("external.metrics.k8s.io", "v1beta1")
    assert await describe(plane) == ["external.metrics.k8s.io/v1beta1 by Service monitoring/adapter: no problems"]


async def test_a_user_without_permission_to_check_rights_sees_everything_else() -> None:
    plane = ApiServerDouble(ACCOUNT, HPA, forbidden=True)
    plane.add("custom.metrics.k8s.io", "v1beta2")
    assert await describe(plane) == ["custom.metrics.k8s.io/v1beta2 by Service monitoring/adapter: no problems"]


async def test_a_cluster_without_a_metrics_api_shows_none() -> None:
    assert await describe(ApiServerDouble()) == []
