"""``gpuscaler convert``."""

from pathlib import Path

from click.testing import CliRunner

from gpuscaler.cli.convert import convert

OLD = "{apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: x}}\n"


def test_converted_objects_are_printed_and_changes_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(OLD)
    result = CliRunner().invoke(convert, [str(tmp_path / "a.yaml"), "-"], input=OLD.replace("x", "y"))
    assert result.exit_code == 0
    assert result.stdout.count("apiVersion: batch/v1\n") == 2
    assert result.stderr.splitlines() == [f"CronJob {name}: batch/v1beta1 became batch/v1" for name in "xy"]


def test_convert_reports_a_file_that_is_not_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: [")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    for name, says in (("a.yaml", "saw invalid YAML"), ("b.yaml", "expected a file of text"), ("none.yaml", "No such file")):
        result = CliRunner().invoke(convert, [str(tmp_path / name)])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{name}: " in result.stderr
        assert says in result.stderr
