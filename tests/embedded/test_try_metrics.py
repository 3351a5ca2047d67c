"""The steps that the how-to about scaling by GPU metrics suggests: its own manifests, on the embedded cluster."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner
from tests.cli.test_cluster import connect, running
from tests.cli.walls import WALLED
from tests.metrics.command.test_service import World, listening

from gpuscaler.cli import main
from gpuscaler.embedded.apiserver.kinds import BY_NAME
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import DEPLOYMENTS, PODS, Resource

pytestmark = pytest.mark.looptime(False)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WORK, PORT = "inference", "6443"


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


async def applied(client: Client, manifest: str) -> None:
    for obj in yaml.safe_load_all(manifest):
        kind = BY_NAME[obj["apiVersion"], obj["kind"]]
        resource = Resource(kind.group, kind.version, kind.plural, kind.kind, kind.namespaced)
        await client.create(resource, obj, namespace=obj["metadata"].get("namespace", ""))


@asynccontextmanager
async def metrics(kubeconfig: Path, log: Path, *words: str) -> AsyncIterator[None]:
    """`gpuscaler metrics` in a process of its own."""
    command = (sys.executable, "-c", "from gpuscaler.cli import run; run()", "metrics", *words)
    # Metrics are served without any module of the laboratory.
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), **WALLED}
    with await asyncio.to_thread(log.open, "wb") as out:
        process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0


async def until(seen: Callable[[], Awaitable[bool]], log: Path) -> None:
    try:
        async with asyncio.timeout(90):
            while not await seen():  # noqa: ASYNC110  # it is other processes that change it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(await asyncio.to_thread(log.read_text)) from None


async def command(kubeconfig: Path, *words: str) -> str:
    """The output of a command that reads and ends, run in a thread of this process."""
    done = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--kubeconfig", str(kubeconfig)])
    return done.stdout


async def test_the_manifests_of_the_how_to_scale_a_deployment_on_the_embedded_cluster(tmp_path: Path) -> None:
    kubeconfig, log, world, port = tmp_path / "kubeconfig", tmp_path / "log", World(), free_port()
    manifest = (EXAMPLES / "try-metrics.yaml").read_text(encoding="utf-8").replace("ADDRESS", "127.0.0.1").replace(PORT, port)
    async with running(kubeconfig, "--nodes", "2", "--tls", "--speed", "20"), connect(kubeconfig) as client:
        await applied(client, manifest)
        await applied(client, (EXAMPLES / "hpa.yaml").read_text(encoding="utf-8"))

        async def prometheus(request: web.Request) -> web.Response:
            """Two pods of 45 percent each need no scaling."""
            pods = [msgspec.json.decode(raw) for raw in await client.list_all(PODS, namespace=WORK)]
            world.prometheus.stored.clear()
            for pod in pods:
                name = pod["metadata"]["name"]
                world.prometheus.put("nvidia_gpu_duty_cycle", 90.0 / len(pods), uuid=name, pod_name=name, namespace_name=WORK)
            return await world.asked(request)

        async def scales() -> bool:
            deployment: dict[str, Any] = msgspec.json.decode(await client.get(DEPLOYMENTS, "serve", namespace=WORK))
            return bool(deployment["spec"]["replicas"] == 2)

        async with listening(prometheus) as url:
            words = ("--prometheus-url", url, "--metrics-relist-interval", "2s", "--secure-port", port, "--bind-address", "127.0.0.1")
            async with metrics(kubeconfig, log, *words):
                await until(scales, log)
                status, why = await command(kubeconfig, "status"), await command(kubeconfig, "why", "hpa", f"{WORK}/serve")

    assert "custom.metrics.k8s.io/v1beta1 by Service default/gpuscaler-metrics: no problems" in status
    assert "no link is broken" in why
