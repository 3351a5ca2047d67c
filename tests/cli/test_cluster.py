"""`gpuscaler cluster` serves a cluster with a kubeconfig, and leaves nothing behind."""

import asyncio
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from tests.cli.serving import repeat_reads_at_once
from tests.objects import pod, workload

from gpuscaler.cli.cluster import cluster, parse_nodes
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unauthorized, Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.incluster import find_access
from gpuscaler.kube.resources import NODES, PODS, REPLICA_SETS

pytestmark = pytest.mark.looptime(False)


@asynccontextmanager
async def running(kubeconfig: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command in a separate process, and return once it is ready."""
    words = (sys.executable, "-c", "from gpuscaler.cli import run; run()", "cluster", "--kubeconfig", str(kubeconfig), *options)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert b"The API server is at http" in line, (line, await process.communicate())
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[Client]:
    access = find_access({}, kubeconfig=kubeconfig, context="", attended=False)
    async with HttpTransport(access) as transport:
        yield Client(transport)


async def until(client: Client, count: int) -> list[dict[str, Any]]:
    """Return the pods once the given number of them runs."""
    async with asyncio.timeout(60):
        while True:
            pods = [msgspec.json.decode(data) for data in await client.list_all(PODS)]
            if sum(pod["status"]["phase"] == "Running" for pod in pods) == count:
                return pods
            await asyncio.sleep(0.02)


def replica_set(replicas: int) -> dict[str, Any]:
    return workload("ReplicaSet", "web", pod(gpus=0), replicas=replicas)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_workloads_run_on_nodes_of_the_embedded_cluster_until_it_is_stopped(
    sent: signal.Signals, status: int, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with running(kubeconfig, "--nodes", "1", "--nodes", "g4dn.xlarge=1", "--speed", "10") as process:
        async with connect(kubeconfig) as client:
            nodes = {data["metadata"]["name"]: data for data in map(msgspec.json.decode, await client.list_all(NODES))}
            assert nodes["node-1"]["status"]["allocatable"]["cpu"] == "8000m"
            assert nodes["node-2"]["status"]["allocatable"]["nvidia.com/gpu"] == "1"
            await client.create(REPLICA_SETS, replica_set(2), namespace="default")
            (first, _) = await until(client, 2)
            assert first["status"]["containerStatuses"][0]["ready"] is True
        process.send_signal(sent)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, errors.split()) == (status, [b"interrupted"] if status else [])
        assert not kubeconfig.exists()


async def test_with_tls_only_the_token_of_the_kubeconfig_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    kubeconfig = tmp_path / "kubeconfig"
    async with running(kubeconfig, "--tls"):
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
        async with connect(kubeconfig) as client:
            assert await client.list_all(NODES) == []
        config = yaml.safe_load(kubeconfig.read_text())
        config["users"][0]["user"]["token"] = "another"
        other = tmp_path / "other"
        other.write_text(yaml.safe_dump(config))
        async with connect(other) as client:
            with pytest.raises(Unauthorized):
                await client.list_all(NODES)
        del config["clusters"][0]["cluster"]["certificate-authority-data"]
        other.write_text(yaml.safe_dump(config))
        async with connect(other) as client:
            with pytest.raises(Unreachable, match="certificate"):
                await client.get_page(NODES)


def test_cluster_does_not_overwrite_an_unrelated_kubeconfig(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("contexts: [{name: production}]\n")
    result = CliRunner().invoke(cluster, ["--kubeconfig", str(kubeconfig)])
    assert (result.exit_code, kubeconfig.read_text()) == (2, "contexts: [{name: production}]\n")
    assert "saw a file that is not the kubeconfig of an embedded cluster" in result.output


async def test_cluster_overwrites_the_kubeconfig_of_an_earlier_run(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with running(kubeconfig) as process:
        process.kill()
        await process.wait()
    assert kubeconfig.exists()
    async with running(kubeconfig), connect(kubeconfig) as client:
        assert await client.list_all(NODES) == []


async def test_a_kubeconfig_rewritten_by_another_cluster_is_not_deleted(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with running(kubeconfig) as first, running(kubeconfig), connect(kubeconfig) as client:
        first.terminate()
        await asyncio.wait_for(first.wait(), 30)
        assert await client.list_all(NODES) == []
        assert kubeconfig.exists()


def test_cluster_reports_a_missing_folder_or_a_port_in_use(tmp_path: Path) -> None:
    result = CliRunner().invoke(cluster, ["--kubeconfig", str(tmp_path / "no" / "such")])
    assert result.exit_code == 2
    assert result.output.startswith(f"{tmp_path / 'no' / 'such'}: saw No such file or directory, expected")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(cluster, ["--kubeconfig", str(tmp_path / "k"), "--port", str(port)])
    assert result.exit_code == 2
    assert result.output.startswith(f"port {port}: saw ")
    assert "expected a free port" in result.output


@pytest.mark.parametrize(
    ("argument", "message"),
    [("two", "expected a number, or an instance type"), ("g4dn.xlarg=1", "did you mean g4dn.xlarge"), ("=3", "expected a number")],
)
def test_cluster_reports_invalid_node_arguments(argument: str, message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cluster, ["--kubeconfig", str(tmp_path / "k"), "--nodes", argument])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_nodes_are_numbered_consecutively_and_belong_to_no_pool() -> None:
    nodes = parse_nodes(("2", "g5.xlarge=1"))
    assert [node["metadata"]["name"] for node in nodes] == ["node-1", "node-2", "node-3"]
    assert "gpuscaler.io/pool" not in nodes[2]["metadata"]["labels"]
    assert nodes[2]["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "g5.xlarge"
