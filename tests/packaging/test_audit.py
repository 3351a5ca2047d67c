"""`make audit`: findings, and that an unavailable database does not count as a clean result. Databases are stand-ins here."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLEAN: dict[str, object] = {"name": "numpy", "version": "2.4.6", "vulns": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".github").mkdir()
    (tmp_path / "bin").mkdir()
    command(tmp_path, "zizmor", "exit 0")
    command(tmp_path, "uv", "exit 0")
    advisories(tmp_path, [CLEAN])
    return tmp_path


def command(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def advisories(folder: Path, packages: Sequence[Mapping[str, object]]) -> None:
    (folder / "answer.json").write_text(json.dumps({"dependencies": packages}))
    command(folder, "pip-audit", f"cat {folder}/answer.json")


def audit(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "tools.audit", *words, "lock.txt")
    return subprocess.run(command, cwd=folder, env=environ, check=False, capture_output=True, text=True)


def test_an_audit_without_findings_succeeds_and_names_its_sources(folder: Path) -> None:
    done = audit(folder)

    assert (done.returncode, done.stdout) == (0, "audit: nothing found in .github, lock.txt\n")


def test_a_known_vulnerability_is_reported_with_the_fixed_version(folder: Path) -> None:
    advisories(folder, [CLEAN, {"name": "aiohttp", "version": "3.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1"]}]}])

    done = audit(folder)

    assert (done.returncode, done.stdout) == (1, "found: lock.txt: aiohttp 3.0 has PYSEC-1, fixed in 3.1\n")


def test_an_audit_fails_if_the_database_does_not_know_a_package(folder: Path) -> None:
    advisories(folder, [CLEAN, {"name": "aiohttp", "skip_reason": "Dependency not found"}])

    done = audit(folder)

    assert done.returncode == 3
    assert "not checked: lock.txt: vulnerabilities of 1 of 2 packages, unknown to the database: aiohttp\n" in done.stdout
    assert "nothing found, but some checks could not run" in done.stdout


def test_an_audit_fails_if_the_vulnerability_database_is_unavailable(folder: Path) -> None:
    command(folder, "pip-audit", "echo 'no route to it' >&2; exit 1")

    done = audit(folder)

    assert done.returncode == 3
    assert "not checked: lock.txt: vulnerabilities; pip-audit ended with 1: no route to it" in done.stdout


def test_a_yanked_package_is_reported_with_its_authors_reason(folder: Path) -> None:
    command(folder, "uv", """echo 'warning: `attrs==21.1.0` is yanked (reason: "Not importable.")' >&2""")

    done = audit(folder, "--no-advisories")

    assert (done.returncode, done.stdout) == (1, "found: lock.txt: attrs==21.1.0 was withdrawn: Not importable.\n")


def test_an_audit_fails_if_the_package_index_is_unavailable(folder: Path) -> None:
    command(folder, "uv", "echo 'error: no route to it' >&2; exit 2")

    done = audit(folder, "--no-advisories")

    assert done.returncode == 3
    assert "not checked: lock.txt: withdrawn packages; uv printed: error: no route to it" in done.stdout


def test_an_unsafe_workflow_is_reported(folder: Path) -> None:
    command(folder, "zizmor", "echo 'error[template-injection]'; exit 14")

    done = audit(folder, "--no-advisories")

    assert done.returncode == 1
    assert "found: .github: zizmor ended with 14:\nerror[template-injection]" in done.stdout


def test_without_advisories_no_database_is_queried_and_this_is_reported(folder: Path) -> None:
    command(folder, "pip-audit", "exit 9")

    done = audit(folder, "--no-advisories")

    assert (done.returncode, done.stdout) == (0, "audit: nothing found in .github, lock.txt; vulnerabilities were not checked\n")
