import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, kubeconfig, repeat_reads_at_once, served
from tests.objects import pod
from tests.patience import PATIENCE

from gpuscaler.cli import main
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import LEASES, PODS

RUN_FILE = """
region: us-east-1
cloud: simulated
simulated: {boot: 100ms, device_plugin_delay: 100ms, capacity_error_delay: 100ms, image_pull: 0s}
http: {address: "127.0.0.1:0"}
pages: {address: "127.0.0.1:0"}
pace: {resync: 200ms}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    zones: [us-east-1a]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        yield server


def started(cluster: Served, *more: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    path = cluster.kubeconfig.parent / "run.yaml"
    path.write_text(RUN_FILE)
    command = [*under, sys.executable, "-c", "from gpuscaler.cli import run; run()", "run"]
    command += ["--config", str(path), "--kubeconfig", str(cluster.kubeconfig), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


async def holder(client: Client) -> str:
    leases = [msgspec.json.decode(data) for data in await client.list_all(LEASES, namespace="kube-system")]
    return leases[0]["spec"]["holderIdentity"] if leases else ""


async def submit(client: Client) -> None:
    await client.create(PODS, pod("train"), namespace="default")


async def bound(client: Client) -> bool:
    pods = [msgspec.json.decode(data) for data in await client.list_all(PODS, namespace="default")]
    return bool(pods) and all(pod["spec"].get("nodeName") for pod in pods)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_controller_serves_pods_until_stopped_and_releases_the_lease(cluster: Served, number: signal.Signals, status: int) -> None:
    with started(cluster) as process:
        try:
            cluster.ask(submit)
            cluster.until(bound)
            assert cluster.ask(holder)
            process.send_signal(number)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert (process.returncode, "Traceback" in output) == (status, False), output
    assert cluster.ask(holder) == ""


def test_a_controller_started_with_ctrl_c_ignored_runs_until_sigterm(cluster: Served) -> None:
    with started(cluster, under=("sh", "-c", "trap '' INT; exec \"$@\"", "sh")) as process:
        try:
            cluster.until(led)
            process.send_signal(signal.SIGINT)
            cluster.ask(submit)
            cluster.until(bound)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert (process.returncode, "Traceback" in output) == (0, False), output


async def led(client: Client) -> bool:
    return bool(await holder(client))


def test_a_dry_run_logs_what_it_would_buy_and_writes_nothing(cluster: Served) -> None:
    cluster.ask(submit)
    cluster.until(waiting)
    with started(cluster, "--dry-run") as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout)
            before = list(itertools.takewhile(lambda line: "planned" not in line or "buys 1 machine" not in line, lines))
            process.send_signal(signal.SIGTERM)
            after, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    begins = "dry run: takes no Lease; plans show what would be done, and nothing is written"
    assert sum(begins in line for line in before) == 1
    assert "dry run: planning has stopped" in after
    assert "lead" not in "".join(before) + after
    assert cluster.api.writes == ()


async def waiting(client: Client) -> bool:
    return "Unschedulable" in str(await client.list_all(PODS))


def test_a_second_controller_logs_that_it_stands_by_until_it_leads(cluster: Served) -> None:
    with started(cluster) as first:
        try:
            cluster.until(led)
            leader = cluster.ask(holder)
            with started(cluster) as second:
                try:
                    assert second.stdout is not None
                    lines = iter(second.stdout)
                    assert any(f"stands by: {leader} leads (Lease kube-system/gpuscaler)" in line for line in lines)
                    first.send_signal(signal.SIGTERM)
                    first.communicate(timeout=PATIENCE)
                    assert any("this process leads" in line for line in lines)
                    second.send_signal(signal.SIGTERM)
                    second.communicate(timeout=PATIENCE)
                finally:
                    second.kill()
        finally:
            first.kill()


def invoke(config: Path, access: Path) -> Result:
    return CliRunner().invoke(main, ["run", "--config", str(config), "--kubeconfig", str(access)])


def test_a_pools_file_without_a_cloud_exits_2_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text(RUN_FILE.replace("cloud: simulated\n", ""))

    done = invoke(path, tmp_path / "absent")

    assert done.exit_code == 2
    assert done.stderr == f"{path}: saw no cloud, expected one of simulated, aws, azure; add cloud: …\n"


def test_a_manifest_instead_of_a_run_file_exits_2_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "one-more.yaml"
    path.write_text("apiVersion: batch/v1\nkind: Job\n---\napiVersion: v1\nkind: Pod\n")

    done = invoke(path, tmp_path / "absent")

    assert done.exit_code == 2
    assert done.stderr == (f'{path}:1: saw a Kubernetes object (kind "Job"), expected a pools file or a run file; name such a file\n')


def test_a_missing_kubeconfig_exits_2(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)

    done = invoke(tmp_path / "run.yaml", tmp_path / "absent")

    assert done.exit_code == 2
    assert "absent: saw No such file" in done.stderr


def test_a_server_that_does_not_answer_exits_3_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    (tmp_path / "run.yaml").write_text(RUN_FILE)

    done = invoke(tmp_path / "run.yaml", kubeconfig(tmp_path, "http://127.0.0.1:9"))

    assert done.exit_code == 3
    assert "http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.output


def test_a_server_that_forbids_a_required_resource_exits_5_and_names_it(cluster: Served, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    refusal = Failure(403, "Forbidden", 'configmaps "gpuscaler-state" is forbidden: User "me" cannot get resource "configmaps"')
    cluster.api.faults.add(Fault(path="configmaps", refusal=refusal))

    done = invoke(tmp_path / "run.yaml", cluster.kubeconfig)

    assert done.exit_code == 5
    assert "configmaps" in done.stderr


def test_a_missing_namespace_exits_2(cluster: Served, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"{RUN_FILE}namespace: nowhere\n")

    done = invoke(tmp_path / "run.yaml", cluster.kubeconfig)

    assert done.exit_code == 2
    assert "namespace nowhere: saw no such namespace" in done.stderr
