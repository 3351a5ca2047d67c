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


def run_printed_patches(output: str, folder: Path) -> None:
    """Run the commands after ``fix:`` that call patch, as a user who copies them into a shell."""
    lines = iter(output.splitlines(keepends=True))
    for line in lines:
        if line.startswith("  fix: patch "):
            script, end = line.removeprefix("  fix: "), line.rpartition("<<'")[2].rstrip().rstrip("'") + "\n"
            for inner in lines:
                script += inner
                if inner == end:
                    break
            subprocess.run(["sh", "-e"], input=script.encode(), check=True, cwd=folder, capture_output=True)


@pytest.mark.parametrize("name", ["deploy.yaml extra.yaml", "-.yaml", "'.yaml", "$(touch pwned).yaml", "ä.yaml", "#b?.yaml"])
def test_a_patch_changes_the_file_with_its_name_and_no_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.yaml").write_text(BROKEN)
    (tmp_path / name).write_text(BROKEN)

    result = run(f"./{name}")
    run_printed_patches(result.output, tmp_path)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"deploy.yaml": BROKEN, name: SERVED}


@pytest.mark.parametrize("name", ["x\nEOF\ntouch pwned; : <<'E'\n.yaml", '"sub\\057ci.sh" .yaml', "a\\b.yaml", "a\tb.yaml", "a\x1b.yaml"])
def test_a_file_whose_name_patch_would_read_otherwise_has_no_patch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(BROKEN)

    result = run("./")

    assert result.exit_code == 1
    assert "patch -p0" not in result.output
    assert "\nEOF" not in result.output
    assert "fix: write policy/v1" in result.output or "fix: gpuscaler convert" in result.output
    assert not any(finding["patch"] for finding in json.loads(run("./", "--json").output)["findings"])


@pytest.mark.parametrize(
    "text",
    [BROKEN.replace("\n", "\r\n"), f"#\t\u00a0\n{BROKEN}", BROKEN.replace("v1beta1", "v1beta1 #\ttab"), BROKEN.rstrip("\n")],
    ids=["lines-of-windows", "odd-space-beside", "tab", "no-end"],
)
def test_the_patch_of_the_text_can_be_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_bytes(text.encode())

    run_printed_patches(run("a.yaml").stdout_bytes.decode(), tmp_path)

    assert (tmp_path / "a.yaml").read_bytes() == text.replace("v1beta1", "v1").encode()


FLAGS = """\
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
controllerManager:
  extraArgs:
    horizontal-pod-autoscaler-use-rest-clients: "true"
    horizontal-pod-autoscaler-downscale-delay: 2m
    port: "0"
scheduler:
  extraArgs:
    address: 0.0.0.0
    v: "2"
"""
PODS = """\
apiVersion: v1
kind: Pod
metadata:
  name: a
  labels: {a: true, b: 2}
  annotations:
    a: 1
    b: 2
    c: 3
spec: {containers: []}
"""


@pytest.mark.parametrize(
    "text", [FLAGS, FLAGS.replace("\n", "\r\n"), FLAGS.rstrip("\n"), PODS, f"{FLAGS}---\n{PODS}---\n{BROKEN}---\n" * 2]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_all_patches_of_a_file_apply_together(text: str, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "deploy.yaml extra.yaml"
    (tmp_path / name).write_bytes(text.encode())

    result = run("--json", name) if as_json else run(name)
    if as_json:
        (entry,) = json.loads(result.output)["patches"]
        assert entry["file"] == name
        subprocess.run(["patch", "-p0", "--fuzz=0"], input=entry["patch"].encode(), check=True, capture_output=True)
    else:
        run_printed_patches(result.stdout_bytes.decode(), tmp_path)

    again = run("--json", "--fail-on", "info", name)
    assert not json.loads(again.output)["findings"]
    changed = (tmp_path / name).read_bytes()
    assert changed.endswith(b"\n") == text.endswith("\n")
    assert changed.count(b"\r") in (0, changed.count(b"\n"))


@pytest.mark.parametrize("start", ["", "---\n", "# 1\n# 2\n# 3\n"])
def test_the_byte_order_mark_of_a_file_is_no_part_of_a_patch(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"\ufeff{start}{BROKEN}"
    (tmp_path / "a.yaml").write_text(text)

    result = run("a.yaml")
    run_printed_patches(result.output, tmp_path)

    assert ("patch -p0" in result.output) == bool(start)
    assert (tmp_path / "a.yaml").read_text() == (text.replace("v1beta1", "v1") if start else text)


def test_standard_input_has_no_patch() -> None:
    result = run("-", text=BROKEN)

    assert "patch -p0" not in result.output
    assert "fix: " in result.output


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "- just\n- text\n---\n'a string'\n---\n42\n",
        '["kind"]\n',
        "services: {a: {image: x}}\n",
        "driver: {enabled: true}\n",
    ],
)
def test_a_file_in_which_nothing_is_known_is_not_checked(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(SERVED)

    both = run(".")

    assert both.exit_code == 3
    assert "\n2 files, 1 object; not recognised: a.yaml.\n" in both.output
    assert "L1: a.yaml could not be checked because no rule knows anything in it" in both.output
    assert run("a.yaml").exit_code == 3
    assert run("--partial-ok", "a.yaml").exit_code == 0
    assert "\n1 file, 1 object.\n" in f"\n{run('good.yaml').output}"


def test_a_template_that_is_yaml_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ .Values.name }}\n")

    result = run(tmp_path)

    assert result.exit_code == 5
    assert "it is a template of Helm" in result.output


def test_an_empty_folder_says_what_it_lacks(tmp_path: Path) -> None:
    result = run(tmp_path)

    assert result.exit_code == 5
    assert f"{tmp_path}: saw no file that ends with .yaml, .yml or .json, expected one at least" in result.output


def test_totals_say_how_many_mistakes_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("---\n".join(BROKEN.replace("web", name) for name in ("a", "b", "c")))

    assert "3 critical, 0 warnings, 0 info; each mistake is shown once with its objects: 1 mistake." in run(tmp_path).output


def test_lists_in_lists_are_read() -> None:
    budget = "{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}}"
    text = f"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items:\n  - {budget}\n"

    assert "CRITICAL L4 PodDisruptionBudget a (standard input:7)" in run("-", text=text).output


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
    assert {f"L{number}" for number in range(1, 28)} <= rules
    jsonschema.validate(report["version"], {"const": "2.1.0"})


def test_sarif_has_addresses_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b#c%20?.yaml").write_text(BROKEN)

    (result,) = json.loads(run("--sarif", "a b#c%20?.yaml").output)["runs"][0]["results"]

    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "a%20b%23c%2520%3F.yaml"}
