"""`gpuscaler convert` leaves generated files as they are, and generating again writes the same."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.generating.corpus import FOLDER, NAMES

from gpuscaler.cli import main

#: Folders whose files are objects of Kubernetes; the others are of tools, and values of charts.
OBJECTS = ("kubernetes", "workloads")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_generated_objects_need_no_conversion_and_are_generated_again_as_they_were(name: str, tmp_path: Path) -> None:
    made, converted = tmp_path / "made", tmp_path / "converted"
    generate = ("generate", "cluster", FOLDER / f"{name}.yaml", "--explain", "--output")
    assert run(*generate, made).exit_code == 0
    files = contents(made)
    done = run("convert", made, "--output", converted)
    assert done.exit_code == 0, done.stderr
    assert contents(converted) == {path: text for path, text in files.items() if path.startswith(OBJECTS)}
    # Nothing is said of objects: only files of tools are named.
    assert [line for line in done.stderr.splitlines() if line.startswith(tuple(str(made / folder) for folder in OBJECTS))] == []
    assert contents(made) == files
    again = tmp_path / "again"
    assert run(*generate, again).exit_code == 0
    assert contents(again) == files
