"""``gpuscaler doctor --smoke`` as users call it, over HTTP and with signals."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, kubeconfig, repeat_reads_at_once, served
from tests.cli.test_run import RUN_FILE, started
from tests.objects import node
from tests.patience import PATIENCE

from gpuscaler.cli import main
from gpuscaler.control.records.status.reporting import NAME, status_config_map
from gpuscaler.control.records.status.status import Process, Status
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import CONFIG_MAPS, JOBS, PODS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        yield server


def doctor(cluster: Served, *more: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--kubeconfig", str(cluster.kubeconfig), *more], catch_exceptions=False)


def config(cluster: Served, text: str = RUN_FILE) -> str:
    path = cluster.kubeconfig.parent / "pools.yaml"
    path.write_text(text)
    return str(path)


@contextmanager
def controller(cluster: Served) -> Iterator[None]:
    """A controller that leads and has written its status."""
    with started(cluster) as process:
        try:
            cluster.until(status_written)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)


async def status_written(client: Client) -> bool:
    query = {"fieldSelector": f"metadata.name={NAME}"}
    return bool(await client.list_all(CONFIG_MAPS, namespace="kube-system", query=query))


async def left(client: Client) -> list[str]:
    found = [*await client.list_all(JOBS), *await client.list_all(PODS, namespace="default")]
    return [msgspec.json.decode(data)["metadata"]["name"] for data in found]


def load_status(cluster: Served) -> None:
    cluster.load(status_config_map(Status(at=time.time(), leader=Process("one", "0")), "kube-system"))
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gpuscaler", "namespace": "kube-system"}}
    cluster.load({**lease, "spec": {"holderIdentity": "one"}})


def dry(cluster: Served, *more: str, text: str = RUN_FILE) -> Result:
    return doctor(cluster, "--smoke", "--dry", "--config", config(cluster, text), *more)


def test_a_dry_run_prints_the_machine_and_its_cost_and_creates_nothing(cluster: Served) -> None:
    done = dry(cluster)

    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Dry run: nothing is created.\nA machine would be bought: g4dn.xlarge ")
    assert "Afterwards it is kept for 10m (idle_after), which costs $0." in done.stdout
    assert cluster.api.writes == ()


def test_a_dry_run_as_json(cluster: Served) -> None:
    document: dict[str, Any] = json.loads(dry(cluster, "--json").stdout)

    assert (document["dry"], document["fits"], document["buys"]["type"]) == (True, True, "g4dn.xlarge")
    assert document["buys"]["idle_cost"] == pytest.approx(document["buys"]["price_per_hour"] / 6)


def test_a_dry_run_names_a_free_gpu_that_would_be_used_unless_a_new_machine_is_forced(cluster: Served) -> None:
    cluster.load(node("free", 1))

    assert "Nothing would be bought: node free has room" in dry(cluster).stdout
    assert "A machine would be bought" in dry(cluster, "--smoke-new-machine").stdout


def test_a_dry_run_says_why_the_pod_fits_nowhere(cluster: Served) -> None:
    done = dry(cluster, "--smoke-node-selector", "team=research")

    assert done.exit_code == 1
    assert "No machine of any pool fits it:\n  pool gpu: selector: " in done.stdout


def test_the_taints_of_the_pools_of_the_run_file_are_tolerated(cluster: Served) -> None:
    tainted = RUN_FILE + "    taints: [{key: team, value: research, effect: NoSchedule}]\n"

    assert dry(cluster, text=tainted).exit_code == 0
    refused = dry(cluster, "--smoke-toleration", "nvidia.com/gpu", text=tainted)
    assert refused.exit_code == 1
    assert "taint team=research:NoSchedule" in refused.stdout


def test_a_pod_that_fits_in_no_pool_of_the_run_file_is_never_created(cluster: Served) -> None:
    load_status(cluster)
    done = doctor(cluster, "--smoke", "--config", config(cluster), "--smoke-node-selector", "team=research")

    assert done.exit_code == 1
    assert "pool gpu: selector: " in done.stderr
    assert cluster.api.writes == ()


def test_without_a_controller_it_exits_1_and_creates_nothing(cluster: Served) -> None:
    done = doctor(cluster, "--smoke")

    assert done.exit_code == 1
    assert "no controller runs: ConfigMap kube-system/gpuscaler-status: saw none" in done.stderr
    assert cluster.api.writes == ()


def test_a_forbidden_job_exits_5_and_names_the_right(cluster: Served) -> None:
    load_status(cluster)
    message = 'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" in the namespace "default"'
    cluster.api.faults.add(Fault(method="POST", path="/jobs", refusal=Failure(403, "Forbidden", message)))
    done = doctor(cluster, "--smoke")

    assert done.exit_code == 5
    assert message in done.stderr
    assert "Left behind" not in done.output


def test_a_server_that_does_not_answer_exits_3(cluster: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    cluster.kubeconfig.write_text(kubeconfig(tmp_path, "http://127.0.0.1:9").read_text())

    assert doctor(cluster, "--smoke").exit_code == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--dry",), "saw --dry without --smoke"),
        (("--smoke-image", "x"), "saw --smoke-image without --smoke"),
        (("--smoke", "--dry"), "saw --dry without --config"),
        (("--smoke", "--sarif"), "saw --smoke together with --sarif"),
        (("--smoke", "--smoke-deadline", "soon"), "expected a duration"),
        (("--smoke", "--smoke-deadline", "0"), "expected from 1s to 24h"),
        (("--smoke", "--smoke-command", "'"), "expected a command"),
        (("--smoke", "--smoke-toleration", "a:Never"), "expected KEY, KEY=VALUE or KEY=VALUE:EFFECT"),
        (("--smoke", "--smoke-node-selector", "gpu"), "expected KEY=VALUE"),
    ],
)
def test_bad_input_exits_2(cluster: Served, more: tuple[str, ...], message: str) -> None:
    done = doctor(cluster, *more)

    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert cluster.api.writes == ()


def smoking(cluster: Served, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from gpuscaler.cli import run; run()", "doctor", "--smoke", "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_in_the_middle_leaves_nothing(cluster: Served, number: signal.Signals, status: int) -> None:
    load_status(cluster)
    with smoking(cluster) as process:
        try:
            cluster.until(waits)
            assert process.stderr is not None
            # The Job may be there before the command has observed it.
            while "Job created" not in (line := process.stderr.readline()):
                assert line, "the command ended"
            process.send_signal(number)
            output, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert process.returncode == status, errors
    assert "Job created" in output
    assert "Traceback" not in errors
    assert "Left behind" not in errors
    assert cluster.ask(left) == []


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_nothing_either(cluster: Served, second: signal.Signals) -> None:
    load_status(cluster)
    with smoking(cluster) as process:
        try:
            cluster.until(waits)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            while "Removing" not in process.stderr.readline():
                pass
            process.send_signal(second)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert cluster.ask(left) == []


async def waits(client: Client) -> bool:
    return "Unschedulable" in str(await client.list_all(PODS, namespace="default"))


def test_the_job_runs_on_a_bought_machine_and_the_table_shows_the_stages(cluster: Served) -> None:
    with controller(cluster):
        quick = RUN_FILE + "    idle_after: 1s\n"
        (cluster.kubeconfig.parent / "run.yaml").write_text(quick)
        with smoking(cluster, "--config", config(cluster, quick), "--json") as process:
            output, errors = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0, errors
    document = json.loads(output)
    assert document["ran"]
    assert document["left"] == ""
    assert {"Job created", "machine ordered", "node registered", "container started", "container finished", "pod removed"} <= {
        row["stage"] for row in document["stages"]
    }
    assert cluster.ask(left) == []
