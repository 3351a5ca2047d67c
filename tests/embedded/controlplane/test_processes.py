"""Processes that are ended whatever happens, and that report why they ended by themselves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscaler.embedded.controlplane import processes
from gpuscaler.embedded.controlplane.processes import EndedError, Process


@pytest.fixture
def started() -> Iterator[list[Process]]:
    made: list[Process] = []
    yield made
    for process in made:
        process.end()


def python(tmp_path: Path, started: list[Process], code: str, *, tied: bool = False) -> Process:
    process = Process("program", [sys.executable, "-c", code], log=tmp_path / "program.log", environ=os.environ, tied=tied)
    started.append(process)
    process.start()
    return process


def until(path: Path, text: str) -> str:
    """The content of a file, once it contains ``text``."""
    end = time.monotonic() + 20
    while text not in (content := path.read_text() if path.exists() else ""):
        assert time.monotonic() < end, content
        time.sleep(0.02)
    return content


def checked(process: Process) -> None:
    """Check for up to twenty seconds."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        process.check()
        time.sleep(0.02)


def test_a_program_that_exited_is_reported_with_the_end_of_its_log(tmp_path: Path, started: list[Process]) -> None:
    process = python(tmp_path, started, "print('no such flag', flush=True); raise SystemExit(3)")
    until(tmp_path / "program.log", "no such flag")
    with pytest.raises(EndedError, match=r"program ended with 3; (.|\n)*no such flag"):
        checked(process)


def test_a_suspended_program_can_be_terminated_in_an_orderly_way(
    tmp_path: Path, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside other load, the program may need longer to run its handler than a user would wait.
    monkeypatch.setattr(processes, "PATIENCE", 60.0)
    handler = "signal.signal(15, lambda *_: (print('in order', flush=True), sys.exit()))"
    code = f"import signal, sys, time\n{handler}\nprint('up', flush=True)\ntime.sleep(60)"
    process = python(tmp_path, started, code)
    until(tmp_path / "program.log", "up")
    process.pause()
    process.end()
    assert "in order" in (tmp_path / "program.log").read_text()


def test_a_killed_program_can_be_started_again(tmp_path: Path, started: list[Process]) -> None:
    process = python(tmp_path, started, "import time; print('up', flush=True); time.sleep(60)")
    until(tmp_path / "program.log", "up")
    process.kill()
    process.start()
    until(tmp_path / "program.log", "up\nup")
    process.check()


def test_a_program_started_as_dependent_ends_with_its_parent(tmp_path: Path) -> None:
    log = tmp_path / "program.log"
    child = "import sys; print('up', flush=True); sys.stdin.read(); print('orphaned', flush=True)"
    parent = (
        "import os, sys, time\nfrom pathlib import Path\nfrom gpuscaler.embedded.controlplane.processes import Process\n"
        f"Process('program', [sys.executable, '-c', {child!r}], log=Path({str(log)!r}), environ=os.environ, tied=True).start()\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent]) as owner:
        until(log, "up")
        owner.send_signal(signal.SIGKILL)
    until(log, "orphaned")
