"""Findings that a user accepts are left out, and counted, until that ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from tests.doctor.corpus import NOW

from gpuscaler.cli import main
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.doctor.silencing import silence

#: The corpus is looked at on 1 December 2026.
TODAY, YESTERDAY = "2026-12-01", "2026-11-30"


class Exempted(NamedTuple):
    check_id: str = "D34"
    object: str = "*"
    reason: str = "moved by hand"
    until: str = TODAY


def budget(name: str = "web", annotation: str = "") -> dict[str, Any]:
    annotations = {"gpuscaler.io/ignore-findings": annotation} if annotation else {}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
    }


def checked(*objects: dict[str, Any]) -> tuple[Report, Evidence]:
    evidence = evidence_of_objects(objects, now=NOW)
    return run_checks(evidence, CHECKS), evidence


@pytest.mark.parametrize("pattern", ["*", "PodDisruptionBudget default/web", "PodDisruptionBudget default/*", "*/w*b"])
def test_an_exception_silences_the_objects_that_it_matches_up_to_its_last_day(pattern: str) -> None:
    report = silence(*checked(budget("web")), [Exempted(object=pattern)])

    assert report.findings == ()
    assert report.silenced == 1


@pytest.mark.parametrize(
    "exempted", [Exempted("D35"), Exempted(object="PodDisruptionBudget default/w"), Exempted(object="Pod default/web")]
)
def test_an_exception_for_another_check_or_object_silences_nothing(exempted: Exempted) -> None:
    report = silence(*checked(budget("web")), [exempted])

    assert [(finding.check, finding.note) for finding in report.findings] == [("D34", "")]
    assert report.silenced == 0


def test_after_the_last_day_the_finding_is_back_and_says_so() -> None:
    report = silence(*checked(budget("web")), [Exempted(until=YESTERDAY)])

    assert [finding.note for finding in report.findings] == ['the exception for it ("moved by hand") ended on 2026-11-30']
    assert report.silenced == 0


def test_an_exception_in_force_counts_beside_one_that_has_ended() -> None:
    assert silence(*checked(budget("web")), [Exempted(until=YESTERDAY), Exempted()]).silenced == 1


@pytest.mark.parametrize(("annotation", "silenced"), [("D34", 1), ("d35 , D34", 1), ("all", 1), ("D35", 0), ("D3", 0), (",", 0)])
def test_an_annotation_silences_the_checks_that_it_names(annotation: str, silenced: int) -> None:
    report = silence(*checked(budget("web", annotation), budget("other")))

    assert report.silenced == silenced
    assert len(report.findings) == 2 - silenced


@pytest.mark.parametrize(
    ("check_id", "expected"),
    [
        ("D034", "D34 (did you mean that?)"),
        ("CHECK34", "D34 (did you mean that?)"),
        ("D341", "the id of a check of clusters"),
        ("PDB777", "the id of a check of clusters, D1 to D48"),
        ("L3", "the id of a check of clusters"),
    ],
)
def test_an_exception_for_a_check_that_does_not_exist_is_a_finding(check_id: str, expected: str) -> None:
    report = silence(*checked(budget("web")), [Exempted(), Exempted(check_id)])

    (finding,) = report.findings
    assert report.silenced == 1
    assert (finding.check, finding.object, finding.field, finding.seen) == ("S1", "run file", "doctor.ignore[1].check", f"'{check_id}'")
    assert finding.expected.startswith(expected)
    assert ("files" in finding.effect) == (check_id == "L3")


def test_ids_in_annotations_that_no_check_has_are_findings_of_their_objects() -> None:
    named = [("v1", "Pod", "p"), ("v1", "Service", "s"), ("apps/v1", "Deployment", "d")]
    metadata = {"namespace": "default", "annotations": {"gpuscaler.io/ignore-findings": "D35, bare"}}
    objects = [{"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}} for version, kind, name in named]
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "annotations": {"gpuscaler.io/ignore-findings": "D, all"}}}
    evidence = evidence_of_objects([*objects, node], now=NOW)

    titles = ["Deployment default/d", "Pod default/p", "Service default/s"]
    for seen, expected in ((evidence, titles), (Evidence(NOW, cluster=evidence.cluster), titles[:2])):
        report = silence(Report(), seen)
        found = [(finding.check, finding.object, finding.seen) for finding in report.findings]
        assert found == [("S1", title, "'BARE'") for title in expected]
        # "all" also silences the finding about the annotation itself.
        assert report.silenced == 1


def test_an_annotation_counts_where_only_what_planning_reads_is_known() -> None:
    objects: list[dict[str, Any]] = [
        budget("web", "D34"),
        {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "annotations": {"gpuscaler.io/ignore-findings": "D10"}}},
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "p", "namespace": "default", "annotations": {"gpuscaler.io/ignore-findings": "D35"}},
        },
        {
            "kind": "DaemonSet",
            "apiVersion": "apps/v1",
            "metadata": {"name": "d", "namespace": "default", "annotations": {"gpuscaler.io/ignore-findings": "all"}},
        },
        {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "s", "annotations": {"gpuscaler.io/ignore-findings": "D40"}}},
    ]
    cluster = evidence_of_objects(objects, now=NOW).cluster
    (finding,) = checked(budget("web"))[0].findings

    named = [("D34", "PodDisruptionBudget default/web"), ("D10", "Node n"), ("D35", "Pod default/p"), ("D14", "DaemonSet default/d")]
    found = tuple(replace(finding, check=check, object=name) for check, name in (*named, ("D40", "Namespace s"), ("D40", "Node n")))
    report = silence(Report(found), Evidence(NOW, cluster=cluster))

    assert [finding.object for finding in report.findings] == ["Node n"]
    assert report.silenced == 5


RunDoctor = Callable[..., Result]


@pytest.fixture
def run_doctor(tmp_path: Path) -> RunDoctor:
    objects = tmp_path / "cluster.json"
    objects.write_text(json.dumps(budget("web")))

    def run(ignore: str, *more: str) -> Result:
        config = tmp_path / "run.yaml"
        config.write_text(f"region: us-east-1\npools: [{{name: a, types: [g5.xlarge]}}]\ndoctor: {{ignore: [{ignore}]}}\n")
        return CliRunner().invoke(main, ["doctor", "--cluster", str(objects), "--config", str(config), "--partial-ok", *more])

    return run


def test_the_command_leaves_silenced_findings_out_and_counts_them(run_doctor: RunDoctor, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ignore = "{check: D34, reason: by hand, until: 2999-01-31}"
    text = run_doctor(ignore, "--html", str(page))
    as_json = json.loads(run_doctor(ignore, "--json").stdout)

    assert text.exit_code == 0, text.output
    assert "D34 PodDisruptionBudget" not in text.stdout
    assert "0 critical, 0 warnings, 0 info, 1 silenced" in text.stdout
    assert " 1 silenced." in page.read_text()
    assert as_json["silenced"] == 1
    assert as_json["findings"] == []


def test_the_command_says_that_an_exception_has_ended(run_doctor: RunDoctor, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ignore = "{check: D34, reason: by hand, until: 2020-01-31}"
    text = run_doctor(ignore, "--html", str(page))
    as_json = json.loads(run_doctor(ignore, "--json").stdout)

    assert text.exit_code == 1
    assert '  note: the exception for it ("by hand") ended on 2020-01-31' in text.stdout
    assert "ended on 2020-01-31" in page.read_text()
    assert "ended on 2020-01-31" in as_json["findings"][0]["note"]
    assert "ended on 2020-01-31" in run_doctor(ignore, "--sarif").stdout


def test_an_exception_without_an_end_date_is_refused_with_its_line(run_doctor: RunDoctor) -> None:
    result = run_doctor("{check: D34, reason: by hand}")

    assert result.exit_code == 2
    assert "run.yaml:3" in result.output
    assert "saw no until, expected an end date" in result.output
