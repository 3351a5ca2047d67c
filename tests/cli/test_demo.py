"""``gpuscaler demo`` as users call it, over real sockets, as fast as possible."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuscaler.cli.demo import demo

HEADER = "trace,job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib,gpu_model,priority,user,start_s,status,note"
FAST = "100000"


def test_the_demo_scales_a_cluster_through_a_dry_spot_market_and_writes_a_report(tmp_path: Path) -> None:
    done = CliRunner().invoke(demo, ["--speed", FAST, "--out", str(tmp_path / "out")])

    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    bought = [line for line in lines if " buys " in line]
    assert " spot in " in bought[0]
    assert any(" on-demand in " in line for line in bought)
    # Spot is back after 48 minutes.
    assert any(" spot in " in line for line in bought if line > "0:50:00")
    assert any(" refused " in line and "no capacity" in line for line in lines)
    assert any(" removes " in line and "idle for" in line for line in lines)
    assert "GPUs over time" in done.stdout
    assert "█" in done.stdout
    assert done.stderr == f"Report: {tmp_path}/out/report.html\n"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    policy, peer = report["policies"]
    assert (policy["name"], peer["name"]) == ("gpuscaler", "karpenter")
    # The peer had the same spot shortage.
    assert peer["evictions"] > 0
    assert re.search(r"^cost +\$[0-9.]+ +\$[0-9.]+$", done.stdout, re.MULTILINE)
    assert "karpenter: its model in the simulator, with the same jobs, machines, delays and spot shortage." in done.stdout
    explanation = done.stdout[done.stdout.index("Why ") :]
    assert re.match(r"Why [0-9.]+ times the bound: \$[0-9.]+ pays only for the work that was done", explanation)
    assert re.search(r"\$[0-9.]+ went to on-demand prices: spot ran dry \(minutes 30 to 48, [0-9]+ refusals\)", explanation)
    assert re.search(r"\$[0-9.]+ went to machines that were booting or idle: [0-9.]+ GPU-hours", explanation)
    assert re.search(r"\$[0-9.]+ went to work lost in [0-9]+ evictions", explanation)
    # Jobs that lost their machines have run again elsewhere, and each pod counts once.
    assert policy["evictions"] > 0
    assert policy["served"] == report["inputs"]["pods"]
    assert "all work is done and every machine is removed" in done.stdout
    assert policy["promises"]["kept"] > 0
    assert policy["promises"]["broken"] == 0
    assert 0 < policy["lower_bound"] < policy["cost"]
    assert {row["market"] for row in policy["machine_hours"]} == {"spot", "on-demand"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Decisions and reasons" in page
    assert re.findall(r"https?://\S+", page) == []
    picture = (tmp_path / "out" / "screen.svg").read_text()
    assert picture.startswith("<svg")
    assert re.findall(r"https?://(?!www\.w3\.org|127\.0\.0\.1|www\.textualize\.io)\S+", picture) == []


def test_the_demo_submits_the_jobs_of_a_given_trace(tmp_path: Path) -> None:
    rows = ("t,Mine_1,100,600,1,2,1000,2000,4096,T4,,,,,", "t,mine-2,160,300,1,0,0,500,512,,,,,,", "t,late,99999,60,1,1,1000,,,,,,,,")
    (tmp_path / "jobs.csv").write_text("\n".join([HEADER, *rows]) + "\n")

    done = CliRunner().invoke(demo, ["--trace", str(tmp_path / "jobs.csv"), "--speed", FAST, "--out", str(tmp_path / "out")])

    assert done.exit_code == 0, done.output
    assert "for default/mine-1-0" in done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["inputs"]["trace"], report["inputs"]["jobs"], report["policies"][0]["served"]) == ("jobs.csv", 2, 2)
    assert {row["pool"] for row in report["policies"][0]["machine_hours"]} == {"spot", "cpu"}


def test_an_unreadable_trace_is_reported_before_anything_runs(tmp_path: Path) -> None:
    refused = CliRunner().invoke(demo, ["--trace", str(tmp_path / "absent.csv"), "--out", str(tmp_path / "out")])

    assert refused.exit_code == 2
    assert "absent.csv: cannot be read" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_reported_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    refused = CliRunner().invoke(demo, ["--out", str(tmp_path / "file" / "out")])

    assert refused.exit_code == 2
    assert "--out" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize("speed", ["0", "-1", "nan?", "1e9"])
def test_an_invalid_speed_is_rejected(speed: str) -> None:
    assert CliRunner().invoke(demo, ["--speed", speed]).exit_code == 2


def start_in_terminal(*options: str, columns: int, folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
    """Run the demo with a terminal of the given width; the terminal's bytes are its standard output here."""
    program = (
        "import os, pty, sys, fcntl, struct, termios;"
        "pid, fd = pty.fork();"
        f"pid or (fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, {columns}, 0, 0)), os.execvp(sys.argv[1], sys.argv[1:]));"
        "import signal; [signal.signal(one, lambda which, _: os.kill(pid, which)) for one in (signal.SIGINT, signal.SIGTERM)];"
        "from contextlib import suppress\n"
        "with suppress(OSError):\n"
        "    while data := os.read(fd, 65536):\n"
        "        os.write(1, data)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    command = [sys.executable, "-c", program, str(Path(sys.executable).parent / "gpuscaler"), "demo", *options]
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@contextmanager
def killed_at_end(running: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Close the terminal at the end in any case: without it the demo ends, so the test cannot hang."""
    try:
        yield
    finally:
        running.kill()


def terminal_lines(output: bytes) -> list[str]:
    """Return lines of a terminal's output without colours; a cursor movement starts a new line."""
    output = re.sub(rb"\x1b\[[0-9]*A", b"\n", output)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()).replace("\r", "").split("\n")


def test_a_narrow_terminal_without_colours_shows_pools_and_decisions_on_fitting_lines(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("\n".join([HEADER, "t,a,0,600,1,1,1000,,,,,,,,", "t,b,0,400,2,4,1000,,,,,,,,"]) + "\n")

    with start_in_terminal("--trace", "jobs.csv", "--speed", "1200", columns=60, folder=tmp_path, NO_COLOR="1") as running:
        output, _ = running.communicate(timeout=100)

    assert running.returncode == 0, output.decode()
    assert re.search(rb"\x1b\[[0-9;]*3[0-9]m", output) is None
    view = [
        line
        for line in terminal_lines(output)
        if "gpuscaler demo" in line or line.startswith(("pools ─", "decisions ─", "GPUs:", "  g4dn"))
    ]
    assert any(line.startswith("gpuscaler demo") for line in view)
    assert any("decisions" in line for line in view)
    assert any("█" in line for line in view)
    assert max(map(len, view)) <= 60
    assert (tmp_path / "gpuscaler-demo" / "report.html").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_end_the_demo_and_restore_the_cursor(number: signal.Signals, status: int, tmp_path: Path) -> None:
    with start_in_terminal("--speed", "60", columns=100, folder=tmp_path) as running, killed_at_end(running):
        assert running.stdout is not None
        output = b""
        limit = time.monotonic() + 60
        while b"decisions" not in output and time.monotonic() < limit:
            output += os.read(running.stdout.fileno(), 65536)
        running.send_signal(number)
        rest, _ = running.communicate(timeout=60)
        output += rest

    assert running.returncode == status, output.decode()
    assert output.rstrip().endswith(b"interrupted") == (number == signal.SIGINT)
    assert (b"Ended after 0:" in output) == (number == signal.SIGINT)
    assert b"Traceback" not in output
    assert output.rfind(b"\x1b[?25h") > output.rfind(b"\x1b[?25l")


def test_ctrl_c_without_a_terminal_exits_130_with_the_summary_so_far(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "gpuscaler"), "demo", "--speed", "60"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=60)

    assert b" buys " in first or b" so far; GPUs: " in first
    assert running.returncode == 130, rest.decode()
    assert b"Ended after 0:" in rest.splitlines(keepends=True)[0] or b"\nEnded after 0:" in rest
    assert b"Report: gpuscaler-demo/report.html" in rest
    assert rest.endswith(b"interrupted\n")
    assert b"Traceback" not in rest
