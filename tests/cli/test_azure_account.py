"""`gpuscaler cluster --cloud azure-simulated`: an Azure account whose machines become nodes."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner

from gpuscaler.cli.cluster import cluster
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.incluster import find_access
from gpuscaler.kube.resources import NODES

pytestmark = pytest.mark.looptime(False)
PATTERN = re.compile(r"Azure Resource Manager is at (http://\S+);")
PLACE = re.compile(r"subscription (\S+), AKS cluster (\S+) in resource group (\S+), with the pools nodepool1, gpuspot, gpu\.")


async def first_node(kubeconfig: Path) -> dict[str, Any]:
    """Return the first node with a GPU."""
    access = find_access({}, kubeconfig=kubeconfig, context="", attended=False)
    async with HttpTransport(access) as transport, asyncio.timeout(60):
        client = Client(transport)
        while True:
            for raw in await client.list_all(NODES):
                node: dict[str, Any] = msgspec.json.decode(raw)
                if "nvidia.com/gpu" in node["status"]["allocatable"]:
                    return node
            await asyncio.sleep(0.1)


async def lines_until(process: asyncio.subprocess.Process, pattern: re.Pattern[str]) -> re.Match[str]:
    """Return the match of the first line that has one."""
    assert process.stdout is not None
    while True:
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        assert line, await process.communicate()
        if match := pattern.search(line):
            return match


async def test_a_pool_that_grows_gets_a_node_with_a_gpu(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    options = ("--kubeconfig", str(kubeconfig), "--cloud", "azure-simulated", "--speed", "200", "--azure-condition", "allocation=1")
    words = (sys.executable, "-c", "from gpuscaler.cli import run; run()", "cluster", *options)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    try:
        url = (await lines_until(process, PATTERN))[1]
        subscription, name, group = (await lines_until(process, PLACE)).groups()
        path = f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ContainerService/managedClusters/{name}"
        async with aiohttp.ClientSession() as session:
            params = {"api-version": "2024-05-01"}
            body = {"properties": {"count": 1}}
            async with session.put(f"{url}{path}/agentPools/gpuspot", params=params, json=body) as response:
                assert response.status == 200
        node = await first_node(kubeconfig)
        assert re.fullmatch(r"aks-gpuspot-\d{8}-vmss000000", node["metadata"]["name"])
        labels = node["metadata"]["labels"]
        assert (labels["agentpool"], labels["kubernetes.azure.com/scalesetpriority"]) == ("gpuspot", "spot")
        assert not [label for label in labels if label.startswith("gpuscaler.io/")]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--azure-port", "4566"), "--azure-port: saw this option without --cloud"),
        (("--cloud", "aws-simulated", "--azure-boot", "20s"), "saw this option with --cloud aws-simulated"),
        (("--cloud", "azure-simulated", "--aws-region", "us-east-1"), "--aws-region: saw this option with --cloud azure-simulated"),
        (("--cloud", "azure-simulated", "--spot", "nowhere.csv"), "nowhere.csv"),
        (("--cloud", "azure-simulated", "--azure-boot", "soon"), "--azure-boot: saw 'soon', expected a duration such as 20s"),
        (("--cloud", "azure-simulated", "--azure-condition", "failed=loud"), "--azure-condition: Invalid enum value 'loud'"),
        (("--cloud", "azure-simulated", "--azure-condition", "faild=stay"), "saw 'faild', expected one of allocation, "),
    ],
)
def test_cluster_rejects_an_azure_account_that_it_cannot_serve(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    ended = CliRunner().invoke(cluster, ["--kubeconfig", str(tmp_path / "kubeconfig"), *options])
    assert ended.exit_code == 2
    assert words in ended.output.replace("\n", " ")
    assert not (tmp_path / "kubeconfig").exists()
