"""helm's notes after an installation: next steps, with existing names, namespaces and ports."""

import re
from typing import Any

import pytest
from tests.charts.rendering import notes, render

pytestmark = pytest.mark.charts

PLACE = {"release": "prod", "namespace": "ops"}
EXPORTER: dict[str, Any] = {"exporter": {"enabled": True, "port": 9411}}
#: The notes are rendered without a cluster, so the APIs are registered only if the values say so.
APIS: dict[str, Any] = {"apis": {"custom": True, "external": True}}
METRICS: dict[str, Any] = {"metrics": {"enabled": True, "prometheusUrl": "http://prometheus.monitoring.svc:9090", **APIS}}
PAGES: dict[str, Any] = {"pages": {"authenticated": {"address": ":8443", "certificate": "/tls/tls.crt", "key": "/tls/tls.key"}}}
ALONE: dict[str, Any] = {"controller": {"enabled": False}}
COMBINATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"controller": {"dryRun": True}},
    {"fullnameOverride": "other", **EXPORTER},
    {**METRICS, **EXPORTER},
    {**ALONE, **EXPORTER},
    {**ALONE, **METRICS},
    {
        **ALONE,
        "exporter": {"enabled": True},
        "metrics": {"enabled": True, "source": "exporters", "apis": {"custom": True, "external": False}},
    },
    {"config": PAGES},
    ALONE,
)


def notes_text(more: dict[str, Any]) -> str:
    return notes(more, **PLACE)


def commands(text: str) -> list[str]:
    """Return the lines with commands."""
    return [line.strip() for line in text.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("more", COMBINATIONS)
def test_the_notes_name_only_objects_that_the_chart_creates(more: dict[str, Any]) -> None:
    text, made = notes_text(more), render(more, **PLACE)
    words = " ".join(commands(text))
    named = {
        *(f"{kind.capitalize()}/{name}" for kind, name in re.findall(r"\b(deployment)[/ ]([\w-]+)", words)),
        *(f"DaemonSet/{name}" for name in re.findall(r"\bdaemonset[/ ]([\w-]+)", words)),
        *(f"APIService/{name}" for line in commands(text) if "apiservices" in line for name in line.split("apiservices ")[1].split()),
        *(f"Role/{name}" for name in re.findall(r"the Role ([\w-]+)", text)),
        *(f"Service/{name}" for name in re.findall(r"https://([\w-]+)\.ops\.svc", text)),
        *(f"Service/{name}" for name in re.findall(r"queries ([\w-]+) in namespace ops", text)),
    }
    assert named <= set(made), named - set(made)
    assert set(re.findall(r"--namespace (\S+)", words)) <= {"ops"}
    running = {name for name in made if name.startswith(("Deployment/", "DaemonSet/"))}
    assert {name.rpartition("-")[2] for name in running} == {
        part for part in ("controller", "exporter", "metrics") if f"\n{part.upper()}" in text
    }


@pytest.mark.parametrize("more", COMBINATIONS)
def test_the_notes_have_next_steps_for_each_part_and_no_unrendered_template(more: dict[str, Any]) -> None:
    text = notes_text(more)
    parts = re.split(r"\n(?=CONTROLLER|EXPORTER|METRICS API)", text)

    assert all(commands(part) for part in parts[1:])
    assert parts[0].startswith("gpuscaler 0.")
    assert not re.search(r"<no value>|<nil>|%!|\{\{|map\[|\n\n\n", text)
    assert max(map(len, text.splitlines())) <= 140


def test_the_notes_forward_the_exporters_port() -> None:
    text, made = notes_text(EXPORTER), render(EXPORTER, **PLACE)
    (container,) = made["DaemonSet/prod-gpuscaler-exporter"]["spec"]["template"]["spec"]["containers"]

    assert [port["containerPort"] for port in container["ports"]] == [9411]
    assert "port-forward daemonset/prod-gpuscaler-exporter 9411" in text
    assert "http://127.0.0.1:9411" in text


def test_the_notes_name_pages_only_if_served_and_the_why_command_only_if_it_works() -> None:
    def ports(config: dict[str, Any]) -> set[int]:
        return {port["port"] for port in render({"config": config}, **PLACE)["Service/prod-gpuscaler-controller"]["spec"]["ports"]}

    assert 8443 in ports(PAGES)
    assert "https://prod-gpuscaler-controller.ops.svc:8443/status" in notes_text({"config": PAGES})
    assert "https://" not in notes_text({})
    assert "gpuscaler why pod" in notes_text({})
    for config in ({"http": {"enabled": False}}, {"pages": {"enabled": False}}):
        assert "gpuscaler why pod" not in notes_text({"config": config})
    assert "gpuscaler why pod" in notes_text({"config": {"http": {"enabled": False}, "pages": {"enabled": True}}})


def test_notes_warn_only_about_settings_that_new_users_omit() -> None:
    bare = notes_text({})
    assert "names no registry" in bare
    assert "WARNING: config.limits is not set" in bare
    assert "No user has it yet: set controller.readers." in bare
    assert "The cloud is the simulated one" in bare

    jane = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
    config = {**GROUPS, "limits": {"gpus": 8}}
    complete = notes_text({"config": config, "image": {"repository": "registry.example/gpuscaler"}, "controller": {"readers": [jane]}})
    for words in ("no registry", "WARNING", "No user has it", "simulated"):
        assert words not in complete


GROUPS: dict[str, Any] = {"cloud": "aws", "region": None, "pools": None, "aws": {"cluster": "prod", "regions": ["us-east-1"]}}


@pytest.mark.parametrize(
    ("config", "at_most"),
    [
        ({}, True),
        ({"pools": [{"name": "a", "types": ["g5.xlarge"], "max": 3}, {"name": "b", "types": ["g5.xlarge"], "max": None}]}, True),
        ({"pools": [{"name": "a", "types": ["g5.xlarge"], "max": 3}]}, False),
        # Groups of AWS, and pools of AKS, always have a maximum.
        (GROUPS, False),
        ({**GROUPS, "pools": [{"name": "gpu", "min": 1}]}, False),
    ],
)
def test_without_limits_the_notes_name_100_dollars_only_if_some_pool_has_no_maximum(config: dict[str, Any], at_most: bool) -> None:
    text = notes_text({"config": config})

    assert "config.limits is not set" in text
    assert ("at most $100 an hour" in text) is at_most
    assert ("up to its maximum, whatever they cost" in text) is not at_most
    assert "Set config.limits.dollars_per_hour" in text


def test_the_notes_do_not_name_an_api_that_is_not_requested() -> None:
    only_external = {**ALONE, "metrics": {**METRICS["metrics"], "apis": {"custom": False, "external": True}}}
    text = notes_text(only_external)

    assert "kubectl get apiservices v1beta1.external.metrics.k8s.io\n" in text
    assert "custom.metrics.k8s.io/v1beta2" not in text


def test_the_notes_name_the_value_of_an_api_that_is_left_out_because_no_cluster_was_seen() -> None:
    unseen = {**ALONE, "metrics": {**METRICS["metrics"], "apis": {"custom": True}}}
    text = notes_text(unseen)

    assert "It does not register external.metrics.k8s.io: no cluster could be queried whether another program serves it." in text
    assert "set metrics.apis.external to true" in text
    assert "metrics.apis.custom" not in text
    assert "Another program serves" not in text
