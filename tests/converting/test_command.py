"""``gpuscaler convert``: which files it reads and writes, what it refuses, and its exit status."""

import os
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuscaler.cli import main

OLD = "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: nightly}\n"
NEW = "# as it is\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"


def convert(*words: str | Path, text: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, words)], input=text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "old"
    (made / "b" / ".git").mkdir(parents=True)
    (made / "b" / "new.yml").write_text(NEW)
    (made / "b" / ".git" / "x.yaml").write_text(OLD)
    (made / "a.yaml").write_text(OLD)
    (made / "c.json").write_text('{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}')
    (made / "README.md").write_text("no YAML")
    (made / "cluster.yaml").write_text("{apiVersion: eksctl.io/v1alpha5, kind: ClusterConfig}\n")
    return made


def test_files_of_a_folder_are_printed_in_order_and_what_is_left_out_is_named(folder: Path) -> None:
    done = convert(folder)
    assert done.exit_code == 0
    assert [item["kind"] for item in yaml.safe_load_all(done.stdout)] == ["CronJob", "Secret", "ConfigMap"]
    assert done.stderr.splitlines() == [
        f"{folder}/a.yaml:1: CronJob nightly: batch/v1beta1 became batch/v1",
        f"{folder}/cluster.yaml:1: left out: saw a file of eksctl (ClusterConfig), expected an object of Kubernetes",
        f"{folder}/b/.git: left out: saw a name that begins with a dot",
    ]


def test_each_file_is_written_under_its_own_name_and_unchanged_ones_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    (folder / "c.json").chmod(0o600)
    output = tmp_path / "new"
    done = convert(folder, "--output", output)
    assert (done.exit_code, done.stdout) == (0, "")
    written = {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert written == {
        "a.yaml": OLD.replace("v1beta1", "v1").encode(),
        "b/new.yml": NEW.encode(),
        "c.json": (folder / "c.json").read_bytes(),
    }
    assert stat.S_IMODE((output / "c.json").stat().st_mode) == 0o600
    assert convert(output, "--output", tmp_path / "again").exit_code == 0
    assert {str(path.relative_to(tmp_path / "again")): path.read_bytes() for path in (tmp_path / "again").rglob("*.*")} == written


def test_files_and_standard_input_are_converted_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(OLD)
    done = convert(tmp_path / "a.yaml", "-", text=OLD.replace("nightly", "hourly"))
    assert done.exit_code == 0
    assert [item["metadata"]["name"] for item in yaml.safe_load_all(done.stdout)] == ["nightly", "hourly"]
    assert done.stderr.splitlines() == [
        f"{tmp_path}/a.yaml:1: CronJob nightly: batch/v1beta1 became batch/v1",
        "standard input:1: CronJob hourly: batch/v1beta1 became batch/v1",
    ]


def test_a_folder_that_is_inside_of_the_input_is_not_read_as_input(folder: Path) -> None:
    assert convert(folder, "--output", folder / "out").exit_code == 0
    assert convert(folder, "--output", folder / "out").exit_code == 0
    assert not (folder / "out" / "out").exists()


@pytest.mark.parametrize("output", [".", "b/.."])
def test_the_input_is_never_overwritten(folder: Path, output: str) -> None:
    done = convert(folder, "--output", folder / output, "--force")
    assert done.exit_code == 2
    assert "saw a file that is read, expected another place for the output" in done.stderr
    assert (folder / "a.yaml").read_text() == OLD


def test_a_file_with_another_content_is_overwritten_only_with_force(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "new"
    output.mkdir()
    (output / "c.json").write_text("mine")
    done = convert(folder, "--output", output)
    assert done.exit_code == 2
    assert "c.json: saw a file with another content, expected none; give --force to overwrite it" in done.stderr
    assert not (output / "a.yaml").exists()
    assert convert(folder, "--output", output, "--force").exit_code == 0
    assert (output / "c.json").read_text() != "mine"


def test_a_folder_with_nothing_but_a_run_file_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "gpuscaler"
    folder.mkdir(parents=True)
    (folder / "values.yaml").write_text("config: {cloud: aws, aws: {cluster: x}, pools: []}\n")
    done = convert(tmp_path / "new")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "left out: saw a pools file or run file of gpuscaler" in done.stderr
    assert convert(folder / "values.yaml").exit_code == 2


def test_a_hard_link_to_an_input_is_an_input(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "new"
    output.mkdir()
    (output / "a.yaml").hardlink_to(folder / "a.yaml")
    done = convert(folder, "--output", output, "--force")
    assert done.exit_code == 2
    assert "saw a file that is read, expected another place for the output" in done.stderr
    assert (folder / "a.yaml").read_text() == OLD


def test_a_file_has_its_mode_before_it_has_its_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "c.json").chmod(0o600)
    renamed: list[int] = []
    replace = Path.replace

    def watch(self: Path, target: Path) -> Path:
        renamed.append(stat.S_IMODE(self.stat().st_mode) if target.name == "c.json" else 0o600)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watch)
    assert convert(folder, "--output", tmp_path / "new").exit_code == 0
    assert renamed == [0o600] * 3


def test_nothing_is_written_through_symbolic_links_of_the_output(folder: Path, tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "new", tmp_path / "elsewhere"
    elsewhere.mkdir()
    output.mkdir()
    (output / "b").symlink_to(elsewhere)
    done = convert(folder, "--output", output, "--force")
    assert done.exit_code == 2
    assert f"saw a symbolic link, expected a file below {output}" in done.stderr
    assert list(elsewhere.iterdir()) == []


def test_symbolic_links_in_a_folder_are_named_and_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text(NEW)
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "loop").symlink_to(folder)
    done = convert(folder)
    assert done.exit_code == 0
    assert done.stdout.count("ConfigMap") == 1
    for name in ("link.yaml", "loop"):
        assert f"{folder}/{name}: left out: saw a symbolic link, which is not followed; name its target" in done.stderr


def test_a_file_with_two_sources_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.yaml").write_text(NEW)
    done = convert(folder, other, "--output", tmp_path / "new")
    assert done.exit_code == 2
    assert "saw two files for it" in done.stderr
    assert not (tmp_path / "new").exists()


def test_unreadable_files_in_a_folder_are_named_and_the_others_are_converted(folder: Path) -> None:
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "broken.yaml").write_text("a: [")
    os.mkfifo(folder / "pipe.yaml")
    done = convert(folder)
    assert done.exit_code == 1
    assert done.stdout.count("kind: CronJob") == 1
    assert f"{folder}/binary.yaml: left out: saw the byte 0xff, which is not UTF-8, expected a file of text" in done.stderr
    assert f"{folder}/pipe.yaml: left out: saw neither a file nor a folder" in done.stderr
    assert f"{folder}/broken.yaml:1: left out: " in done.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "saw No such file or directory, expected a file of text"),
        (b"\xff", "saw the byte 0xff, which is not UTF-8, expected a file of text"),
        (b"a: [", "a.yaml:1: saw invalid YAML, expected Kubernetes objects: "),
        (b"replicaCount: 2\n", "saw no Kubernetes object, expected one at least"),
    ],
)
def test_a_named_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    done = convert(file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in done.stderr


def test_a_folder_without_manifests_is_refused(tmp_path: Path) -> None:
    done = convert(tmp_path)
    assert done.exit_code == 2
    assert "saw no Kubernetes object, expected one at least; of folders, files that end with .yaml, .yml or .json are read" in done.stderr


def test_an_object_that_cannot_be_converted_makes_the_exit_status_1() -> None:
    done = convert("-", text="{apiVersion: policy/v1beta1, kind: PodSecurityPolicy, metadata: {name: x}}\n")
    assert done.exit_code == 1
    assert "standard input:1: PodSecurityPolicy x: not converted: " in done.stderr
    assert yaml.safe_load(done.stdout)["kind"] == "PodSecurityPolicy"


def test_standard_input_has_no_name_to_write_it_under(tmp_path: Path) -> None:
    done = convert("-", "--output", tmp_path, text=OLD)
    assert done.exit_code == 2
    assert "saw - with --output, expected files" in done.stderr


def test_control_characters_of_files_do_not_reach_the_terminal() -> None:
    done = convert("-", text='{apiVersion: "example.org/v1", kind: "Odd\\e[31m", metadata: {name: x}}\n')
    assert done.exit_code == 0
    assert "\x1b" not in done.stderr


AUTOSCALER = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: ca, namespace: kube-system}
spec:
  template:
    metadata: {labels: {app: ca}}
    spec:
      containers:
        - name: ca
          image: cluster-autoscaler
          args: [--cloud-provider=aws, --cluster-name=prod, --v=4]
          env: [{name: AWS_REGION, value: us-east-1}]
"""


def test_the_run_file_of_an_autoscaler_is_written_beside_the_objects(tmp_path: Path) -> None:
    (tmp_path / "ca.yaml").write_text(AUTOSCALER)
    (tmp_path / "new.yaml").write_text(NEW)
    output = tmp_path / "out"
    done = convert(tmp_path, "--output", output)
    assert done.exit_code == 0
    values = output / "gpuscaler" / "values.yaml"
    assert sorted(path for path in output.rglob("*") if path.is_file()) == [values, output / "new.yaml"]
    assert f"{values}: the run file, in values of the chart; gpuscaler validate {values} checks it" in done.stderr
    assert "Deployment kube-system/ca: --v=4 is left out, gpuscaler decides this itself" in done.stderr
    assert CliRunner().invoke(main, ["validate", str(values)]).exit_code == 0
    assert convert(tmp_path, "--output", output).exit_code == 0


def test_a_run_file_can_be_written_without_a_folder_for_the_objects(tmp_path: Path) -> None:
    values = tmp_path / "a" / "values.yaml"
    done = convert("-", "--run-file", values, text=f"{AUTOSCALER}---\n{NEW}")
    assert done.exit_code == 0
    assert [item["kind"] for item in yaml.safe_load_all(done.stdout)] == ["ConfigMap"]
    assert yaml.safe_load(values.read_text())["config"]["aws"]["cluster"] == "prod"
    values.write_text("mine")
    again = convert("-", "--run-file", values, text=AUTOSCALER)
    assert (again.exit_code, again.stdout, values.read_text()) == (2, "", "mine")
    assert "saw a file with another content, expected none; give --force to overwrite it" in again.stderr


def test_several_autoscalers_get_a_run_file_each(tmp_path: Path) -> None:
    other = AUTOSCALER.replace("name: ca, namespace", "name: other, namespace")
    done = convert("-", "--run-file", tmp_path / "values.yaml", text=f"{AUTOSCALER}---\n{other}")
    assert done.exit_code == 2
    assert "--run-file: saw 2 autoscalers, Deployment kube-system/ca, Deployment kube-system/other, expected one" in done.stderr
    (tmp_path / "ca.yaml").write_text(f"{AUTOSCALER}---\n{other}")
    assert convert(tmp_path / "ca.yaml", "--output", tmp_path / "out").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out" / "gpuscaler").iterdir()) == [
        "values-deployment-kube-system-ca-0.yaml",
        "values-deployment-kube-system-other-1.yaml",
    ]


def test_a_run_file_is_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "ca.yaml").write_text(AUTOSCALER)
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "gpuscaler").symlink_to(tmp_path / "elsewhere")
    done = convert(tmp_path / "ca.yaml", "--output", tmp_path / "out")
    assert done.exit_code == 2
    assert "saw a symbolic link" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []
