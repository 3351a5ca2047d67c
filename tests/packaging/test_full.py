"""`make full`: each part runs regardless of earlier failures, and a table shows the result of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools" / "full.py"
#: A make in place of the real one: the oracle fails, everything else passes.
MAKE = """#!/bin/sh
case "$2" in
oracle) echo "1 failed, 2 passed in 3.00s"; echo "make: Error 1"; exit 2 ;;
e2e) echo "== 7 passed in 60.00s (0:01:00) =="; echo "on $3 with CI=$CI" ;;
*) echo "did $2 $3" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "make").write_text(MAKE)
    (tmp_path / "make").chmod(0o755)
    return tmp_path


def committed(folder: Path) -> None:
    """Make the folder a repository with a commit, in which build outputs are ignored."""
    (folder / ".gitignore").write_text("build\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all", "--allow-empty"]):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.com", *command], cwd=folder, check=True)


def full(folder: Path, *parts: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([sys.executable, str(PROGRAM), *parts], cwd=folder, env=environ, check=False, capture_output=True, text=True)


def test_parts_after_a_failed_one_still_run_and_the_table_shows_which_failed(folder: Path) -> None:
    done = full(folder, "oracle", "soak", "e2e")

    table = (folder / "build" / "full.txt").read_text()
    assert done.returncode == 1
    assert done.stdout.endswith(table)
    rows = [line.split()[:2] for line in table.partition("\n\n")[2].splitlines()]
    assert rows[:2] == [["oracle", "FAILED"], ["soak", "passed"]]
    assert [name for name, how in rows[2:] if name.startswith("e2e-1.") and how == "passed"] == [name for name, _ in rows[2:]]
    assert "1 failed, 2 passed in 3.00s" in table
    assert "did soak RUNS=10000" in table


def test_measurements_are_stored_as_data_with_the_commit_and_the_output_of_each_part(folder: Path) -> None:
    done = full(folder, "e2e")

    record = json.loads((folder / "build" / "full.json").read_text())
    assert done.returncode == 0
    assert {"commit", "changed", "began", "python", "cores", "parts"} == set(record)
    first = record["parts"][0]
    assert (first["part"], first["command"], first["status"]) == (
        "e2e-1.35.4",
        "make --no-print-directory e2e KUBERNETES=1.35.4",
        0,
    )
    assert first["said"] == "7 passed in 60.00s (0:01:00)"
    assert "on KUBERNETES=1.35.4 with CI=true\n" in (folder / "build" / "full" / "e2e-1.35.4.log").read_text()


def test_all_parts_run_if_none_is_named(folder: Path) -> None:
    full(folder)

    parts = [part["part"] for part in json.loads((folder / "build" / "full.json").read_text())["parts"]]
    assert {"test", "check", "conformance", "oracle", "mutants", "charts", "soak", "properties", "interpreters", "bench"} < set(parts)
    assert len([part for part in parts if part.startswith("e2e-")]) == 7


def parts_of(folder: Path) -> list[tuple[str, int]]:
    return [(part["part"], part["status"]) for part in json.loads((folder / "build" / "full.json").read_text())["parts"]]


def test_parts_can_be_run_one_by_one_on_a_commit_and_a_part_that_runs_again_replaces_its_result(folder: Path) -> None:
    committed(folder)
    full(folder, "soak")
    done = full(folder, "oracle")
    assert parts_of(folder) == [("oracle", 2), ("soak", 0)]
    assert done.returncode == 1
    # An earlier failure counts until its part passes.
    assert full(folder, "demo").returncode == 1
    (folder / "make").write_text(MAKE.replace("exit 2", "exit 0"))
    subprocess.run(["git", "update-index", "--assume-unchanged", "make"], cwd=folder, check=True)

    done = full(folder, "oracle")

    assert done.returncode == 0
    assert parts_of(folder) == [("demo", 0), ("oracle", 0), ("soak", 0)]


@pytest.mark.parametrize("change", ["committed", "in the working tree"])
def test_results_of_other_code_are_not_kept(folder: Path, change: str) -> None:
    committed(folder)
    full(folder, "soak")
    (folder / "new").write_text("")
    if change == "committed":
        committed(folder)

    full(folder, "demo")

    assert parts_of(folder) == [("demo", 0)]


def test_an_unknown_part_is_rejected_before_any_part_runs(folder: Path) -> None:
    done = full(folder, "soap")

    assert done.returncode == 2
    assert done.stderr.startswith("saw parts soap, expected some of test, check,")
    assert not (folder / "build").exists()
