"""What could not be read is named: no report lets a kind or an object that was not looked at pass."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.doctor.corpus import FOLDER, NOW, look_at, objects_of

from gpuscaler.cli import main
from gpuscaler.cli.doctor.reading import OTHERS, evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.evidence import CLUSTER
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.kube.resources import WATCHED

Json = dict[str, Any]
BROKEN = FOLDER / "broken"
KINDS = sorted({resource.kind for resource in (*WATCHED, *OTHERS)})


def without(objects: list[Json], kind: str) -> Report:
    """The report about ``objects`` if ``kind`` may not be listed."""
    evidence = evidence_of_objects([item for item in objects if item.get("kind") != kind], now=NOW)
    unread = {kind: "no permission", **({CLUSTER: "no permission"} if kind in ("Node", "Pod") else {})}
    return run_checks(replace(evidence, unread=unread), CHECKS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_that_cannot_be_listed_is_named(kind: str) -> None:
    assert any((kind, "no permission") in entry.unread for entry in without([], kind).unchecked)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("d26-references", "Job"),
        ("d26-references", "CronJob"),
        ("d27-plain", "ConfigMap"),
        ("d39-wrong-names", "StatefulSet"),
        ("d3-karpenter", "NodePool"),
        ("d40-alpha-annotations", "ReplicationController"),
        ("d45-labels-of-rules", "ServiceMonitor"),
        ("d31-moved", "Namespace"),
        ("d48-clocks", "Lease"),
    ],
)
def test_a_check_that_lost_a_finding_with_a_kind_says_that_it_is_incomplete(file: str, kind: str) -> None:
    objects = objects_of(BROKEN / f"{file}.yaml")
    before, after = look_at(objects), without(objects, kind)
    lost = {finding.check for finding in before.findings} - {finding.check for finding in after.findings if finding in before.findings}

    assert lost <= {entry.check for entry in after.unchecked if any(source == kind for source, _ in entry.unread)}


@pytest.mark.parametrize(
    ("file", "kind"), [("d31-moved", "ServiceAccount"), ("d42-port-and-selector", "Pod"), ("d42-discovery-fails", "Pod")]
)
def test_a_kind_that_cannot_be_listed_is_no_reason_for_another_finding(file: str, kind: str) -> None:
    objects = objects_of(BROKEN / f"{file}.yaml")
    known = {(finding.check, finding.object, finding.field) for finding in look_at(objects).findings}

    assert {(finding.check, finding.object, finding.field) for finding in without(objects, kind).findings} <= known


def node(**allocatable: str) -> Json:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}, "status": {"allocatable": {"pods": "110", **allocatable}}}


def test_an_object_that_cannot_be_read_is_named() -> None:
    pods = [
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": f"p{number}", "namespace": "d"}, "spec": {"containers": 5}}
        for number in range(200)
    ]
    unchecked = look_at([node(cpu="4z"), *pods]).unchecked
    messages = [entry.message for entry in unchecked]

    assert any(message.startswith("could not check Node n1 because status.allocatable.cpu: saw") for message in messages), messages[:3]
    assert messages[-1] == "could not check 101 more objects because they cannot be read either"
    assert {entry.check for entry in unchecked} == {"D39"}


@pytest.mark.parametrize(
    ("text", "subject"),
    [("- just text\n", "document 0"), ("kind: Node\nkind: Pod\n", "document 0 (line 1)"), ('[1, {"kind": "Node"}]', "file")],
)
def test_what_is_no_object_in_a_file_is_named(tmp_path: Path, text: str, subject: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    done = CliRunner().invoke(main, ["doctor", "--cluster", str(file), "--json"], catch_exceptions=False)

    assert any(subject in entry["subject"] for entry in json.loads(done.stdout)["unchecked"])
