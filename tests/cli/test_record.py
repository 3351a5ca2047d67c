"""``gpuscaler record`` on a cluster over HTTP, stopped and killed, and ``simulate`` on the result."""

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, kubeconfig, repeat_reads_at_once, served
from tests.cli.test_plan import POOLS, node, pod
from tests.patience import PATIENCE

from gpuscaler.cli import main
from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS
from gpuscaler.simulation.traces.traces import read_trace


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        server.load(node("n1"), running("a"))
        yield server


def running(name: str) -> dict[str, Any]:
    return {**pod(name, nodeName="n1"), "status": {"phase": "Running", "startTime": "2026-11-21T11:00:05Z"}}


def invoke(cluster: Served, out: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["record", "--kubeconfig", str(cluster.kubeconfig), "--out", str(out), *more])


def started(cluster: Served, out: Path) -> subprocess.Popen[str]:
    # Written often here, so that the test does not have to wait for a minute.
    code = "from gpuscaler.cli import record, run; record.WRITE_SECONDS = 0.1; run()"
    command = [sys.executable, "-c", code, "record", "--kubeconfig", str(cluster.kubeconfig), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(out: Path) -> list[dict[str, str]]:
    with out.open() as file:
        return list(csv.DictReader(file))


def until(out: Path, *texts: str) -> None:
    """Wait until the file contains these jobs."""
    end = time.monotonic() + 20
    while not out.exists() or [row["job_id"].split(".")[1] for row in rows(out)] != list(texts):
        assert time.monotonic() < end, out.read_text() if out.exists() else "no file"
        time.sleep(0.02)


async def finish(client: Client) -> None:
    await client.merge_patch(PODS, "a", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
    await client.create(PODS, msgspec.json.encode(pod("b", nodeName="n1")), namespace="default")
    await client.merge_patch(PODS, "b", {"status": {"phase": "Running"}}, namespace="default", subresource="status")


def test_a_temporary_recording_is_a_trace_that_simulate_reads(cluster: Served, tmp_path: Path) -> None:
    out, pools = tmp_path / "week.csv", tmp_path / "pools.yaml"
    pools.write_text(POOLS)
    done = invoke(cluster, out, "--for", "1s", "--pools", str(pools))

    assert done.exit_code == 0, done.output
    assert f"{out}: 1 job\n" in done.stderr
    (job,) = read_trace(out).jobs
    assert (job.gpus, job.namespace) == (1, "default")
    assert 0 < job.duration < 20
    assert [row["node"] for row in rows(tmp_path / "week.machines.csv")] == ["n1"]
    assert cluster.api.writes == ()
    replayed = CliRunner().invoke(main, ["simulate", "--trace", str(out), "--pools", str(pools), "--json"])
    assert replayed.exit_code == 0, replayed.output


def test_a_killed_recording_loses_nothing_that_was_written_and_can_continue(cluster: Served, tmp_path: Path) -> None:
    out = tmp_path / "week.csv"
    with started(cluster, out) as process:
        try:
            until(out, "a")
        finally:
            process.kill()
    begun = rows(out)[0]
    cluster.ask(finish)
    with started(cluster, out) as process:
        try:
            until(out, "a", "b")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    first, second = rows(out)

    assert (process.returncode, "Traceback" in output) == (0, False), output
    assert (first["job_id"], first["submit_s"], first["status"]) == (begun["job_id"], begun["submit_s"], "over")
    assert (second["status"], second["trace"]) == ("there", begun["trace"])


def test_a_recording_continues_after_temporary_write_errors(cluster: Served, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    out = folder / "week.csv"
    with started(cluster, out) as process:
        try:
            until(out, "a")
            folder.rename(tmp_path / "away")
            assert process.stdout is not None
            line = process.stdout.readline()
            (tmp_path / "away").rename(folder)
            while "watching and writing work again" not in process.stdout.readline():
                assert process.poll() is None
            cluster.ask(finish)
            until(out, "a", "b")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert line.startswith(f"{folder}/week")
    assert ".new: saw No such file or directory, expected room to write the recording" in line
    assert (process.returncode, "Traceback" in output) == (0, False), output


def test_a_recording_that_cannot_be_written_at_its_end_exits_2(cluster: Served, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    with started(cluster, folder / "week.csv") as process:
        try:
            until(folder / "week.csv", "a")
            folder.rename(tmp_path / "away")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert (process.returncode, "Traceback" in output) == (2, False), output
    assert "expected room to write the recording" in output


def test_ctrl_c_ends_a_recording_with_130_and_a_complete_file(cluster: Served, tmp_path: Path) -> None:
    out = tmp_path / "week.csv"
    with started(cluster, out) as process:
        try:
            until(out, "a")
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert (process.returncode, "Traceback" in output) == (130, False), output
    assert len(read_trace(out).jobs) == 1


def test_a_file_that_is_not_a_recording_is_not_changed(cluster: Served, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    out.write_text("job_id,submit_s\na,1\n")

    done = invoke(cluster, out)

    assert done.exit_code == 2
    assert "saw a file that is not a recording (its columns are job_id, submit_s)" in done.stderr
    assert out.read_text() == "job_id,submit_s\na,1\n"


def test_a_device_is_not_a_recording(cluster: Served) -> None:
    done = invoke(cluster, Path("/dev/zero"))

    assert done.exit_code == 2
    assert "saw a file that is not a recording (it is not a regular file)" in done.stderr


def test_a_missing_folder_exits_2(cluster: Served, tmp_path: Path) -> None:
    done = invoke(cluster, tmp_path / "nowhere" / "week.csv")

    assert done.exit_code == 2
    assert done.stderr.startswith(
        f"{tmp_path / 'nowhere' / 'week.csv'}: saw No such file or directory, expected a writable file in an existing folder"
    )


@pytest.mark.parametrize("text", ["5", "0s", "soon"])
def test_an_invalid_duration_exits_2(cluster: Served, tmp_path: Path, text: str) -> None:
    done = invoke(cluster, tmp_path / "week.csv", "--for", text)

    assert done.exit_code == 2
    assert "expected a duration above 0" in done.stderr


def test_a_cluster_that_does_not_answer_exits_3_and_nothing_is_written(
    cluster: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_reads_at_once(monkeypatch)
    kubeconfig(tmp_path, "http://127.0.0.1:9")

    assert invoke(cluster, tmp_path / "week.csv").exit_code == 3
    assert list(tmp_path.glob("week*")) == []


@pytest.mark.parametrize(("path", "verb"), [(r"/nodes\?limit", "list"), (r"/pods\?limit", "list"), (r"/pods\?.*watch=true", "watch")])
def test_a_cluster_that_forbids_watching_exits_5_and_nothing_is_written(path: str, verb: str, cluster: Served, tmp_path: Path) -> None:
    words = f'User "me" cannot {verb} resource'
    cluster.api.faults.add(Fault(path=path, refusal=Failure(403, "Forbidden", words)))

    done = invoke(cluster, tmp_path / "week.csv")

    assert done.exit_code == 5
    assert f"saw {words} (403 Forbidden), expected permission for it" in done.stderr
    assert list(tmp_path.glob("week*")) == []


def test_a_recording_without_a_complete_list_exits_3_and_keeps_the_previous_file(cluster: Served, tmp_path: Path) -> None:
    out = tmp_path / "week.csv"
    invoke(cluster, out, "--for", "500ms")
    before = out.read_text()
    cluster.api.faults.add(Fault(path="sendInitialEvents", refusal=broken()))

    done = invoke(cluster, out, "--for", "100ms")

    assert done.exit_code == 3
    assert "saw no complete list of nodes and pods until the end; nothing is written" in done.stderr
    assert out.read_text() == before
