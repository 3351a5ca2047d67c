"""Objects that a tenant makes to stop the doctor: whatever they contain, all checks end soon, and findings about others stay."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.doctor.corpus import NOW, look_at
from tests.kube.scripted import Reply, Scripted
from tests.kube.test_deep_objects import deep, pages_with, plain

from gpuscaler.cli import main
from gpuscaler.cli.doctor.reading import evidence_of_cluster, evidence_of_objects
from gpuscaler.doctor.checks.identity.static_keys import CHECKS as STATIC_KEYS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.kube.access import Access
from gpuscaler.kube.resources import PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.model.similar import Similar

Json = dict[str, Any]
MEGABYTE = 1_000_000
#: Seconds of the processor; each of these took minutes, or ended the process.
MOST = 20.0


def config_map(name: str, **data: str) -> Json:
    keys = {key.replace("_", "."): value for key, value in data.items()}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "tenant"}, "data": keys}


def deployment(**container: Any) -> Json:
    spec = {"containers": [{"name": "c", "image": "i", **container}], "volumes": [{"name": "v", "configMap": {"name": "rules"}}]}
    metadata = {"name": "x", "namespace": "tenant"}
    return {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata, "spec": {"replicas": 1, "template": {"spec": spec}}}


def adapter(text: str) -> list[Json]:
    mounts = [{"name": "v", "mountPath": "/etc/adapter"}]
    words = ["--config=/etc/adapter/c.yaml"]
    return [config_map("rules", c_yaml=text), deployment(image="evil.example/prometheus-adapter", args=words, volumeMounts=mounts)]


def near_names(pods: int) -> list[Json]:
    maps = [config_map(f"application-settings-of-service-{number:05}", a="b") for number in range(5_000)]
    sources = [{"configMapRef": {"name": f"application-settings-of-service-{number:05}-x"}} for number in range(pods)]
    return [*maps, deployment(envFrom=sources)]


def pending(number: int, **spec: Any) -> Json:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2024-01-01T00:00:00Z"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": f"p{number}", "namespace": "tenant", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
        "status": {"phase": "Pending", "conditions": [refused]},
    }


def near_labels(nodes: int, pods: int) -> list[Json]:
    """Pods that select labels almost like those of all nodes."""

    def labels(number: int, value: str) -> dict[str, str]:
        return {f"team.example/label-key-{index}": f"{value}-{index}-{number}" for index in range(8)}

    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    places = [
        {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": f"n{number}", "labels": labels(number, "value")},
            "status": {"allocatable": amounts},
        }
        for number in range(nodes)
    ]
    return places + [pending(number, nodeSelector=labels(number, "valuex")) for number in range(pods)]


def near_claims(pods: int) -> list[Json]:
    """Pods that wait for claims with names almost like those of all claims."""
    claims = [
        {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "metadata": {"name": f"data-of-the-training-job-of-team-{number:05}", "namespace": "tenant"},
            "spec": {"accessModes": ["ReadWriteOnce"]},
        }
        for number in range(pods)
    ]
    names = (f"data-of-the-training-job-of-team-{number:05}-x" for number in range(pods))
    volumes = ([{"name": "v", "persistentVolumeClaim": {"claimName": name}}] for name in names)
    return claims + [pending(number, volumes=used) for number, used in enumerate(volumes)]


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param(adapter("rules: " + "[" * 60_000), id="deep rules"),
        pytest.param(adapter("rules:" + "\n" * MEGABYTE), id="empty lines in rules"),
        pytest.param(adapter("rules:\n" + "- &a [" + "1," * 50_000 + "]\n" + "- [*a, *a, *a, *a]\n" * 10_000), id="aliases in rules"),
        pytest.param([config_map("prometheus-x", prometheus_yml="\n" * MEGABYTE), *adapter("rules: []")], id="empty lines in Prometheus"),
        pytest.param([deployment(env=[{"name": "DB_PASSWORD", "value": "$(" * (MEGABYTE // 2) + "\n@"}])], id="references"),
        pytest.param(near_names(2_000), id="names almost alike"),
        pytest.param(near_labels(2_000, 100), id="labels almost alike"),
        pytest.param(near_claims(2_000), id="claims almost alike"),
    ],
)
def test_checks_end_soon_on_any_text(objects: list[Json]) -> None:
    began = time.process_time()
    report = look_at(objects)

    assert time.process_time() - began < MOST
    assert not [entry.message for entry in report.unchecked if "please report it" in entry.reason]


def test_rules_that_are_nested_too_deeply_are_a_finding_and_too_long_ones_are_named() -> None:
    (deep,) = [finding for finding in look_at(adapter("rules: " + "[" * 60)).findings if finding.field == "data[c.yaml]"]
    (long,) = [entry for entry in look_at(adapter("#" * 300_000)).unchecked if entry.check == "D45" and "rules" in entry.subject]

    assert (deep.check, deep.seen) == ("D45", "nested more than 50 deep; it is not read in line 1")
    assert long.message == "could not check ConfigMap tenant/rules data[c.yaml] because it has more than 200,000 characters"


@pytest.mark.parametrize(
    ("value", "is_found"), [("x$(HOST)y", False), ("a${B}", False), ("$(a)\nsecret words", True), ("s3cr3t-words", True)]
)
def test_references_to_variables_are_no_credentials(value: str, is_found: bool) -> None:
    evidence = evidence_of_objects([deployment(env=[{"name": "DB_PASSWORD", "value": value}])], now=NOW)
    report: Report = run_checks(evidence, STATIC_KEYS[:1])

    assert bool(report.findings) is is_found


def test_a_similar_name_is_found_among_many() -> None:
    names = [f"settings-{number:04}" for number in range(3_000)]

    assert Similar().to("settings-1234-x", names) == ("settings-1234",)
    assert Similar().to("etings-1234", names, cutoff=0.8) == ("settings-1234",)
    assert Similar().to("nothing like that", names) == ()


def test_suggestions_end_when_their_work_is_used_up() -> None:
    names, similar = [f"settings-{number:04}" for number in range(3_000)], Similar()
    found = [similar.to(f"settings-{number:04}-x", names, group="settings") for number in range(1_000)]

    assert found[0] == ("settings-0000",)
    assert found[-1] == ()
    assert similar.to("settings-0000-x", names, group="settings") == found[0]  # It is remembered.


async def test_an_object_that_is_nested_too_deeply_is_read_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = b'{"metadata":{"resourceVersion":"1"},"items":[]}'

    class Server:
        @asynccontextmanager
        async def exchange(self, request: Request) -> AsyncIterator[Answer]:
            body = pages_with(deep("a"), plain("b")) if request.path == PODS.path() else empty
            async with Scripted(Reply([body])).exchange(request) as answer:
                yield answer

        async def close(self) -> None:
            pass

    @asynccontextmanager
    async def transport(_: object) -> AsyncIterator[Server]:
        yield Server()

    monkeypatch.setattr("gpuscaler.cli.doctor.reading.HttpTransport", transport)
    evidence = await evidence_of_cluster(Access("https://example.com", "a test"), now=NOW)

    assert sorted(evidence.cluster.pods) == ["team/a", "team/b"]
    assert [pod.name for pod in evidence.of("Pod")] == ["a", "b"]
    assert evidence.unread.keys() <= {"the time of the API server"}


DEEP = 100_000


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("flow.yaml", "a: " + "[" * DEEP + "]" * DEEP, 2),
        ("block.yaml", "- " * DEEP + "a\n", 2),
        ("mappings.yaml", "? " * DEEP + "a\n", 2),
        ("open.yaml", "a: " + "{" * DEEP, 2),
        ("values.json", '{"kind": "ConfigMap", "data": ' + '{"a":' * DEEP + "1" + "}" * DEEP + "}", 3),
        ("lists.json", "[" * DEEP + "]" * DEEP, 5),
        ("items.json", '{"kind": "List", "items": [' * DEEP + "]}" * DEEP, 3),
        ("open.json", "[" * DEEP, 2),
        ("several.json", '{"kind": "Pod"}{"kind": "ConfigMap", "data": ' + "[" * DEEP + "]" * DEEP + "}", 3),
    ],
)
def test_files_that_are_nested_too_deeply_end_with_a_status(tmp_path: Path, name: str, text: str, status: int) -> None:
    (tmp_path / name).write_text(text)
    done = CliRunner().invoke(main, ["doctor", "--cluster", str(tmp_path / name)], catch_exceptions=False)

    assert done.exit_code == status, done.output
    assert done.stderr == "" if status != 2 else name in done.stderr


def test_a_page_about_half_a_character_is_written(tmp_path: Path) -> None:
    spec = '{"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpus": "1"}}}]}'
    pod = f'{{"kind": "Pod", "apiVersion": "v1", "metadata": {{"name": "a\\ud800", "namespace": "b"}}, "spec": {spec}}}'
    (tmp_path / "x.json").write_text(pod + '{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x"}}')
    done = CliRunner().invoke(main, ["doctor", "--cluster", str(tmp_path / "x.json"), "--html", str(tmp_path / "x.html")])

    assert done.exit_code == 1, done.output
    assert "CRITICAL D39 Pod b/a" in done.stdout
    assert "a\\ud800" in (tmp_path / "x.html").read_text()
