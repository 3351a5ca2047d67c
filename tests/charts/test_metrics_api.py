"""The metrics API in the chart: its command, the registered APIs, and its permissions."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, Object, Strict, call, kubeconfig, merge_values, objects, refusal, render, text

from gpuscaler.cli import metrics as cli
from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.embedded.serving.server import serve
from gpuscaler.metrics.command.settings import parse
from gpuscaler.metrics.rules.reading import read_rules
from gpuscaler.model.pools import Policy

pytestmark = pytest.mark.charts

RULE = {"seriesQuery": "x", "resources": {"template": "<<.Resource>>"}, "metricsQuery": "avg(<<.Series>>{<<.LabelMatchers>>})"}
API: dict[str, Any] = {
    "controller": {"enabled": False},
    "metrics": {
        "enabled": True,
        "prometheusUrl": "https://prometheus:9090",
        "rules": {"rules": [RULE]},
        # There is no cluster in which to look for other servers of these APIs.
        "apis": {"custom": True, "external": True},
    },
}


def rendered(**metrics: Any) -> dict[str, Object]:
    return render(merge_values(API, {"metrics": metrics}))


def pod(**metrics: Any) -> Object:
    spec = rendered(**metrics)["Deployment/gpuscaler-metrics"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def apis(made: dict[str, Object]) -> list[Object]:
    return [obj for obj in made.values() if obj["kind"] == "APIService"]


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


@pytest.mark.parametrize(
    ("given", "registered", "named"),
    [
        ({}, set(), ["custom", "external"]),
        ({"custom": True}, {"custom.metrics.k8s.io"}, ["external"]),
        ({"custom": False, "external": True}, {"external.metrics.k8s.io"}, []),
        # As helm reads a default that a user removed.
        ({"custom": None, "external": False}, set(), ["custom"]),
    ],
)
def test_without_a_cluster_an_api_that_another_program_may_serve_is_registered_only_if_the_value_says_so(
    given: dict[str, Any], registered: set[str], named: list[str]
) -> None:
    rendered = text({**API, "metrics": {"enabled": True, "prometheusUrl": "http://prometheus:9090", "apis": given}})
    made = objects(rendered)
    settings = parse(made["ConfigMap/gpuscaler-metrics"]["data"]["settings.yaml"])

    assert {api["spec"]["group"] for api in apis(made)} == registered
    assert re.findall(r"^# If none does, set metrics\.apis\.(\w+) to true", rendered, re.MULTILINE) == named
    assert all(yaml.load_all(rendered, Strict)), "an empty document"
    # It also serves an API to which something else may lead.
    assert settings.apis == registered | {f"{name}.metrics.k8s.io" for name in named}


@pytest.mark.looptime(False)
@pytest.mark.parametrize(
    ("given", "others", "registered"),
    [
        ({}, (), {"v1beta1.custom", "v1beta2.custom", "v1beta1.external"}),
        ({}, ("v1beta1.external",), {"v1beta1.custom", "v1beta2.custom"}),
        ({}, ("v1beta1.custom",), {"v1beta2.custom", "v1beta1.external"}),
        ({"custom": True, "external": True}, ("v1beta1.external",), {"v1beta1.custom", "v1beta2.custom"}),
        ({"custom": False}, (), {"v1beta1.external"}),
    ],
)
async def test_in_a_cluster_the_apis_are_registered_that_no_other_program_serves(
    given: dict[str, bool], others: tuple[str, ...], registered: set[str], tmp_path: Path
) -> None:
    cluster = EmbeddedCluster(Policy(pools=()), now=time.time, conditions=Conditions())
    cluster.api.load(registration(name) for name in others)
    serving = await serve(cluster.api)
    access = tmp_path / "kubeconfig"
    access.write_text(kubeconfig(serving.url))
    words = ("template", "gpuscaler", str(CHART), "--namespace", "gpuscaler", "--dry-run=server", "--kubeconfig", str(access))
    values = {**API, "metrics": {"enabled": True, "prometheusUrl": "http://prometheus:9090", "apis": given}}
    done = await asyncio.to_thread(call, *words, values=values)
    await serving.close()

    assert done.returncode == 0, done.stderr
    assert {api["metadata"]["name"] for api in apis(objects(done.stdout))} == {f"{name}.metrics.k8s.io" for name in registered}
    assert "If none does" not in done.stdout


def registration(name: str) -> Object:
    """Return an APIService of KEDA."""
    version, group = name.split(".")
    service = {"namespace": "keda", "name": "keda-operator-metrics-apiserver", "port": 443}
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{name}.metrics.k8s.io"},
        "spec": {"group": f"{group}.metrics.k8s.io", "version": version, "service": service},
    }


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
