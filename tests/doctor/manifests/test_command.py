"""``gpuscaler doctor manifests``: formats, exit statuses, folders."""

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli import main

BROKEN = "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: web}\n"
SERVED = BROKEN.replace("v1beta1", "v1")
#: Only an info.
DISKS = """\
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: a, region: b}
managedNodeGroups:
- name: c
  volumeType: gp2
"""


def run(*arguments: str | Path, text: str = "") -> Result:
    return CliRunner().invoke(main, ["doctor", "manifests", *map(str, arguments)], input=text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(BROKEN)
    return path


def test_a_finding_ends_with_1_and_shows_line_and_patch(file: Path) -> None:
    result = run(file)

    assert result.exit_code == 1
    assert f"CRITICAL L4 PodDisruptionBudget web ({file}:1)" in result.output
    assert "+apiVersion: policy/v1\n" in result.output
    assert "see docs/reference/doctor.md#l4" in result.output


@pytest.mark.parametrize("text", [BROKEN, BROKEN.replace("\n", "\r\n"), BROKEN.rstrip("\n")], ids=["lines", "of-windows", "no-end"])
def test_the_printed_patch_can_be_run(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    (finding,) = json.loads(run("--json", file).output)["findings"]

    subprocess.run(["patch", "-p0"], input=finding["patch"].encode(), check=True, cwd="/", capture_output=True)

    assert file.read_bytes() == text.replace("v1beta1", "v1").encode()


def test_folders_are_searched(file: Path) -> None:
    (file.parent / "deep").mkdir()
    (file.parent / "deep" / "b.yml").write_text(BROKEN)
    (file.parent / "deep" / "c.json").write_text(
        '{"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "c"}}'
    )
    (file.parent / "deep" / "notes.txt").write_text("apiVersion: policy/v1beta1")

    data = json.loads(run("--json", file.parent, file).output)

    assert sorted(Path(finding["place"]).name for finding in data["findings"]) == ["a.yaml:1", "b.yml:1", "c.json:1"]
    assert all(finding["patch"] for finding in data["findings"])


def test_standard_input() -> None:
    assert "L4 PodDisruptionBudget web (standard input:1)" in run("-", text=BROKEN).output
    assert run("-", text=SERVED).exit_code == 0


def test_severities_that_fail() -> None:
    assert run("-", text=DISKS).exit_code == 0
    assert run("--fail-on", "info", "-", text=DISKS).exit_code == 1
    assert run("--fail-on", "critical", "-", text=BROKEN).exit_code == 1


def test_what_could_not_be_checked_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("{{ if .Values.a }}\na: b\n{{ end }}\n")
    (tmp_path / "good.yaml").write_text(SERVED)

    assert run(tmp_path).exit_code == 3
    assert run("--partial-ok", tmp_path).exit_code == 0
    assert run(tmp_path / "template.yaml").exit_code == 5


def test_bad_input(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")

    assert run(tmp_path / "none.yaml").exit_code == 2
    assert "saw bytes that are not UTF-8, expected a readable file of text" in run(tmp_path / "bytes.yaml").output
    assert run("--json", "--sarif", "-").exit_code == 2
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty").exit_code == 5


def test_sarif_has_lines_and_rules(file: Path) -> None:
    report = json.loads(run("--sarif", file).output)

    (result,) = report["runs"][0]["results"]
    assert result["ruleId"] == "L4"
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    rules = {rule["id"] for rule in report["runs"][0]["tool"]["driver"]["rules"]}
    assert {f"L{number}" for number in range(1, 23)} <= rules
    jsonschema.validate(report["version"], {"const": "2.1.0"})
