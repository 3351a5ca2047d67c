"""The targets of the Makefile, read by make itself without running anything."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Files that other targets need, but not the setup.
OTHERS = ("requirements/release.txt",)
MADE_FROM = ("pyproject.toml", "requirements/dev.txt", "tools/setup")
WITHOUT_SETUP = ("help", "clean")


def phony_targets() -> list[str]:
    line = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line
    return line[1].split()


def make(folder: Path, *arguments: str) -> str:
    # Without the flags of a make that started these tests, and without variables that the Makefile would use.
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["make", *arguments], cwd=folder, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create the files of a fresh clone that make needs."""
    for name in ("Makefile", *MADE_FROM, *OTHERS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def be_ready(checkout: Path, age: float) -> None:
    """A finished setup, ``age`` seconds older than its inputs; 0 means newer."""
    stamp = checkout / ".venv" / ".ready"
    stamp.parent.mkdir()
    stamp.touch()
    times = [(checkout / name).stat().st_mtime for name in MADE_FROM]
    moment = min(times) - age if age > 0 else max(times) + 1
    os.utime(stamp, (moment, moment))


@pytest.mark.parametrize("target", [name for name in phony_targets() if name not in WITHOUT_SETUP])
def test_in_a_fresh_clone_each_target_runs_the_setup_first(checkout: Path, target: str) -> None:
    commands = make(checkout, "-n", target).splitlines()

    assert commands[0].startswith("tools/setup ")


def test_the_setup_is_repeated_if_the_lock_file_is_newer(checkout: Path) -> None:
    be_ready(checkout, age=60)

    assert "tools/setup" in make(checkout, "-n", "test")


def test_the_setup_is_not_repeated_if_it_is_up_to_date(checkout: Path) -> None:
    be_ready(checkout, age=0)

    assert "tools/setup" not in make(checkout, "-n", "test")


def test_make_without_a_target_lists_every_target_with_a_description(checkout: Path) -> None:
    listed = dict(re.findall(r"^(\S+) +(\S.*)$", make(checkout), re.MULTILINE))

    assert sorted(listed) == sorted(phony_targets())


def test_the_number_of_cases_and_the_seed_of_the_conformance_tests_can_be_set(checkout: Path) -> None:
    assert "--cases 7 --seed 42" in make(checkout, "-n", "conformance", "CASES=7", "SEED=42")
    assert "--cases 20000 --seed 1" in make(checkout, "-n", "conformance")
