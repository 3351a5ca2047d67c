"""The metrics API in the chart: its command, the registered APIs, and its permissions."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import Object, merge_values, refusal, render

from gpuscaler.cli import metrics as cli
from gpuscaler.metrics.command.settings import parse
from gpuscaler.metrics.rules.reading import read_rules

pytestmark = pytest.mark.charts

RULE = {"seriesQuery": "x", "resources": {"template": "<<.Resource>>"}, "metricsQuery": "avg(<<.Series>>{<<.LabelMatchers>>})"}
API: dict[str, Any] = {
    "controller": {"enabled": False},
    "metrics": {"enabled": True, "prometheusUrl": "https://prometheus:9090", "rules": {"rules": [RULE]}},
}


def rendered(**metrics: Any) -> dict[str, Object]:
    return render(merge_values(API, {"metrics": metrics}))


def pod(**metrics: Any) -> Object:
    spec = rendered(**metrics)["Deployment/gpuscaler-metrics"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def apis(objects: dict[str, Object]) -> list[Object]:
    return [obj for obj in objects.values() if obj["kind"] == "APIService"]


def test_the_metrics_api_is_installed_only_if_requested() -> None:
    assert [name for name in render() if name.endswith("-metrics") or name.startswith("APIService/")] == []
    assert {obj["kind"] for obj in rendered().values()} == {
        "APIService",
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    }


def test_the_metrics_apis_arguments_and_files_are_valid_for_its_command() -> None:
    (container,) = pod(port=7443, settings={"stale": "1m"})["containers"]
    options = cli.metrics.make_context("metrics", container["args"][1:]).params
    data = rendered(settings={"stale": "1m"})["ConfigMap/gpuscaler-metrics"]["data"]
    settings = parse(data["settings.yaml"])

    assert container["args"][0] == "metrics"
    assert (options["secure_port"], options["prometheus_url"], options["cert_dir"]) == (
        7443,
        ("https://prometheus:9090",),
        Path("/var/run/gpuscaler"),
    )
    assert {options["settings"].name, options["config"].name} == set(data)
    assert container["ports"][0]["containerPort"] == 7443
    assert (settings.service, settings.service_namespace, settings.stale) == ("gpuscaler-metrics", "gpuscaler", 60.0)
    assert (len(read_rules(data["rules.yaml"]).rules), yaml.safe_load(data["rules.yaml"])["rules"]) == (1, [RULE])


def test_the_metrics_api_scrapes_exporters_if_neither_rules_nor_prometheus_are_set() -> None:
    objects = render({**API, "metrics": {"enabled": True, "source": "exporters", "settings": {"exporters": {"namespace": "gpus"}}}})
    words = objects["Deployment/gpuscaler-metrics"]["spec"]["template"]["spec"]["containers"][0]["args"]
    options = cli.metrics.make_context("metrics", words[1:]).params

    assert (options["source"], options["prometheus_url"], options["config"]) == ("exporters", (), None)
    assert list(objects["ConfigMap/gpuscaler-metrics"]["data"]) == ["settings.yaml"]


@pytest.mark.parametrize(
    ("exporter", "given", "namespace"),
    [
        (True, {}, "gpuscaler"),
        (True, {"exporters": {"namespace": "other"}}, "other"),
        (True, {"exporters": {"port": 9500}}, "gpuscaler"),
        (False, {"exporters": {"namespace": "gpus"}}, "gpus"),
    ],
)
def test_the_metrics_api_looks_for_exporters_only_in_the_namespace_of_the_release(
    exporter: bool, given: dict[str, Any], namespace: str
) -> None:
    objects = render({**API, "exporter": {"enabled": exporter}, "metrics": {"enabled": True, "source": "exporters", "settings": given}})
    settings = parse(objects["ConfigMap/gpuscaler-metrics"]["data"]["settings.yaml"])

    assert settings.exporters.namespace == namespace
    assert settings.exporters.port == given.get("exporters", {}).get("port", 9400)


def test_both_api_services_refer_to_the_service_and_leave_the_ca_bundle_to_the_server() -> None:
    objects = rendered()

    assert sorted(api["metadata"]["name"] for api in apis(objects)) == [
        "v1beta1.custom.metrics.k8s.io",
        "v1beta1.external.metrics.k8s.io",
        "v1beta2.custom.metrics.k8s.io",
    ]
    for api_service in apis(objects):
        assert api_service["metadata"]["name"] == f"{api_service['spec']['version']}.{api_service['spec']['group']}"
        assert api_service["spec"]["service"] == {"name": "gpuscaler-metrics", "namespace": "gpuscaler", "port": 443}
        assert "caBundle" not in api_service["spec"]
        assert "insecureSkipTLSVerify" not in api_service["spec"]
    versions = {
        api["spec"]["version"]: api["spec"]["versionPriority"] for api in apis(objects) if api["spec"]["group"].startswith("custom")
    }
    assert versions["v1beta2"] > versions["v1beta1"]


def test_an_api_that_is_not_requested_is_neither_registered_nor_served() -> None:
    objects = rendered(apis={"external": False})

    assert {api["spec"]["group"] for api in apis(objects)} == {"custom.metrics.k8s.io"}
    assert parse(objects["ConfigMap/gpuscaler-metrics"]["data"]["settings.yaml"]).apis == {"custom.metrics.k8s.io"}


def test_a_given_certificate_is_used_and_the_permission_to_write_api_services_is_not_granted() -> None:
    given = {"tls": {"secretName": "mine", "caBundle": "-----BEGIN CERTIFICATE-----\nx"}}
    options = cli.metrics.make_context("metrics", pod(**given)["containers"][0]["args"][1:]).params

    assert (str(options["tls_cert_file"]), options["cert_dir"]) == ("/etc/gpuscaler-tls/tls.crt", None)
    assert all(api["spec"]["caBundle"] for api in apis(rendered(**given)))
    verbs = [
        {verb for rule in objects["ClusterRole/gpuscaler:gpuscaler-metrics"]["rules"] for verb in rule["verbs"]}
        for objects in (rendered(), rendered(**given))
    ]
    assert verbs == [{"list", "watch", "create", "get", "patch"}, {"list", "watch", "create", "get"}]


def test_the_metrics_api_may_only_create_reviews_and_write_its_own_api_services() -> None:
    rules = rendered()["ClusterRole/gpuscaler:gpuscaler-metrics"]["rules"]

    assert [(rule["resources"], rule["verbs"]) for rule in rules if set(rule["verbs"]) - {"list", "watch"}] == [
        (["tokenreviews"], ["create"]),
        (["subjectaccessreviews"], ["create"]),
        (["apiservices"], ["get", "patch"]),
    ]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [
        ["v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io"]
    ]
    binding = rendered()["RoleBinding/gpuscaler:gpuscaler-metrics"]
    assert (binding["metadata"]["namespace"], binding["roleRef"]["name"]) == ("kube-system", "extension-apiserver-authentication-reader")


def test_permissions_to_create_autoscalers_are_granted_only_if_the_setting_is_enabled() -> None:
    plain, making = rendered(), rendered(settings={"autoscale": True})
    rights = {
        (resource, verb)
        for name in ("ClusterRole/gpuscaler:gpuscaler-metrics", "Role/gpuscaler-metrics")
        for rule in making[name]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert "Role/gpuscaler-metrics" not in plain
    assert "horizontalpodautoscalers" not in str(plain["ClusterRole/gpuscaler:gpuscaler-metrics"]["rules"])
    assert {verb for resource, verb in rights if resource == "horizontalpodautoscalers"} == {"list", "watch", "create", "update", "delete"}
    assert {verb for resource, verb in rights if resource == "leases"} == {"get", "update", "create"}
    assert {verb for resource, verb in rights if resource in {"deployments", "statefulsets"}} == {"list", "watch"}
    assert parse(making["ConfigMap/gpuscaler-metrics"]["data"]["settings.yaml"]).service == "gpuscaler-metrics"


def test_the_metrics_pod_meets_the_restricted_standard_and_writes_only_its_certificate() -> None:
    spec = pod()
    (container,) = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["/var/run/gpuscaler"]
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "https", "scheme": "HTTPS"}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"prometheusUrl": ""}, "metrics.prometheusUrl: saw none"),
        ({"source": "exporters"}, "metrics.prometheusUrl: saw one"),
        ({"source": "exporters", "prometheusUrl": ""}, "metrics.settings.exporters.namespace: saw none"),
        ({"prometheusUrl": "prometheus:9090"}, "/metrics/prometheusUrl"),
        ({"rules": {"rule": []}}, "rule"),
        ({"apis": {"custom": False, "external": False}}, "metrics.apis: saw neither of the two"),
        ({"tls": {"caBundle": "-----BEGIN CERTIFICATE-----"}}, "metrics.tls.caBundle"),
        (
            {"describedResources": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]},
            "/metrics/describedResources/0/verbs/0",
        ),
        ({"port": 443}, "/metrics/port"),
    ],
)
def test_invalid_metrics_api_values_are_rejected_with_their_path(metrics: dict[str, Any], words: str) -> None:
    assert words in refusal(merge_values(API, {"metrics": metrics}))
