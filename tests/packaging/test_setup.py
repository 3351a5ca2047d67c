"""Messages of the setup if something is missing on the machine. Python is replaced by a stand-in here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "tools" / "setup", tmp_path / "tools" / "setup")
    return tmp_path


def command(checkout: Path, name: str, script: str) -> None:
    """Put a command on the PATH of :func:`setup`."""
    path = checkout / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def setup(checkout: Path, python: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["tools/setup", python], cwd=checkout, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )


def test_the_message_for_a_missing_python_says_how_to_choose_another(checkout: Path) -> None:
    done = setup(checkout, "python-that-is-not-there")

    assert done.returncode == 1
    assert "no python-that-is-not-there on PATH" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_a_python_that_is_too_old_is_rejected_with_its_version(checkout: Path) -> None:
    command(checkout, "oldpython", 'case "$2" in *print*) echo 3.10;; *) exit 1;; esac')

    done = setup(checkout, "oldpython")

    assert done.returncode == 1
    assert "oldpython is Python 3.10; 3.11 or later is needed" in done.stderr


def test_without_ensurepip_a_user_other_than_root_gets_install_instructions(checkout: Path) -> None:
    command(checkout, "barepython", 'case "$2" in *print*) echo 3.11;; *ensurepip*) exit 1;; esac')
    command(checkout, "id", "echo 1000")

    done = setup(checkout, "barepython")

    assert done.returncode == 1
    assert "sudo apt-get install python3.11-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_without_ensurepip_root_gets_the_package_installed(checkout: Path) -> None:
    command(checkout, "barepython", 'case "$2" in *print*) echo 3.11;; *ensurepip*) exit 1;; esac; [ "$1" != -m ] || exit 9')
    command(checkout, "id", "echo 0")
    command(checkout, "apt-get", 'echo "$@" >> apt.log')

    done = setup(checkout, "barepython")

    assert "installing python3.11-venv" in done.stdout
    assert (checkout / "apt.log").read_text().split() == ["install", "-qq", "-y", "python3.11-venv"]
    assert done.returncode == 9


@pytest.fixture
def environment_that_works(checkout: Path) -> Path:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    command(checkout, "goodpython", "exit 0")
    shutil.copy(checkout / "bin" / "goodpython", checkout / ".venv" / "bin" / "python")
    return checkout


def test_without_a_compiler_root_gets_a_compiler_installed(environment_that_works: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = environment_that_works
    monkeypatch.setenv("CC", "cc-of-this-test")
    command(checkout, "id", "echo 0")
    command(checkout, "apt-get", f'echo "$@" >> apt.log; touch {checkout}/bin/cc-of-this-test; chmod +x {checkout}/bin/cc-of-this-test')

    done = setup(checkout, "goodpython")

    assert done.returncode == 0, done.stderr
    assert (checkout / "apt.log").read_text().split() == ["install", "-qq", "-y", "gcc", "libc6-dev"]
    assert "no C compiler" not in done.stdout


@pytest.mark.parametrize("user", ["0", "1000"])
def test_a_missing_compiler_is_reported_and_only_some_tests_are_skipped(
    environment_that_works: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    checkout = environment_that_works
    monkeypatch.setenv("CC", "cc-of-this-test")
    command(checkout, "id", f"echo {user}")
    command(checkout, "apt-get", "exit 100")

    done = setup(checkout, "goodpython")

    assert done.returncode == 0, done.stderr
    assert "sudo apt-get install gcc" in done.stdout
    assert (checkout / ".venv" / ".ready").exists()


def installs(checkout: Path, *, uv: int) -> list[str]:
    """Return the calls that install packages, if ``uv`` exits with the given status."""
    (checkout / "requirements").mkdir()
    (checkout / "requirements" / "dev.txt").write_text("other==1.0 --hash=sha256:00\n")
    command(checkout, "cc", "exit 0")
    log = checkout / "installs.log"
    command(
        checkout, "python-of-venv", f'[ "$2 $4" != "pip config" ] || echo "global.index-url=\'https://mirror\'"; echo "pip $*" >> {log}'
    )
    command(checkout, "uv", f'echo "uv $*" >> {log}; exit {uv}')
    for name in ("python", "uv"):
        shutil.copy(checkout / "bin" / {"python": "python-of-venv"}.get(name, name), checkout / ".venv" / "bin" / name)
    done = setup(checkout, "goodpython")
    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv" / ".ready").exists()
    return [line for line in log.read_text().splitlines() if " install " in line]


def test_uv_installs_packages_from_the_index_configured_for_pip(environment_that_works: Path) -> None:
    calls = installs(environment_that_works, uv=0)

    assert [line.split()[0] for line in calls] == ["uv", "uv"]
    assert all("--default-index https://mirror" in line for line in calls)
    assert "--require-hashes --only-binary :all: --requirement requirements/dev.txt" in calls[0]


def test_pip_installs_packages_if_uv_fails(environment_that_works: Path) -> None:
    calls = installs(environment_that_works, uv=1)

    assert [line.split()[0] for line in calls] == ["uv", "pip", "pip"]
    assert "--require-hashes --only-binary :all: --requirement requirements/dev.txt" in calls[1]
