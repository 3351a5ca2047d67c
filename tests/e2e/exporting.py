"""The exporter as the chart starts it, on a node whose kubelet reports less than the API server knows."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from tests.e2e.granting import asked, token
from tests.e2e.stage import Json, Stage, free_port, until
from tests.exporter.attribution.kubelet import FakeKubelet, claim, container
from tests.exporter.attribution.kubelet import pod as held
from tests.exporter.scraping import Scrape, scrape
from tests.objects import pod

from gpuscaler.exporter.backends.simulated import Simulated
from gpuscaler.kube.resources import PODS

ACCOUNT, HOLDER = "gpuscaler-exporter", "holder"
#: Number of simulated GPUs, also passed to the backend on the command line.
_GPUS = 2


@contextmanager
def kubelet() -> Iterator[FakeKubelet]:
    """A fake kubelet that is not started yet, in its own folder. The folder's path is short, as socket paths must be."""
    with TemporaryDirectory(prefix="kubelet-") as folder:
        for name in ("pod-resources", "device-plugins"):
            (Path(folder) / name).mkdir()
        made = FakeKubelet(Path(folder) / "pod-resources" / "kubelet.sock")
        try:
            yield made
        finally:
            made.stop()


def values(fake: FakeKubelet) -> Json:
    """Chart values: simulated GPUs, and the socket of the fake kubelet."""
    more = ["--backend=simulated", f"--simulated-gpus={_GPUS}", f"--kubelet-socket={fake.path}"]
    return {"exporter": {"enabled": True, "askApiServer": True, "hostPID": True, "port": free_port(), "extraArgs": more}}


async def export(made: Stage, daemon_set: Json, fake: FakeKubelet, node: str) -> Scrape:
    """Run the exporter of a DaemonSet on ``node``.

    Returns its metrics page, once it has named the pod that holds a GPU and has read ResourceSlices for a claim.
    """
    namespace = daemon_set["metadata"]["namespace"]
    holder = json.loads(await made.admin.create(PODS, pod(HOLDER, 0, nodeName=node), namespace=namespace))
    _allocate(fake, holder["metadata"]["uid"])
    kubeconfig = made.folder / "exporter.kubeconfig"
    kubeconfig.write_text(json.dumps(made.plane.config(token=await token(made, ACCOUNT, namespace))))
    (main,) = daemon_set["spec"]["template"]["spec"]["containers"]
    url = f"http://127.0.0.1:{main['ports'][0]['containerPort']}/metrics"
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "NODE_NAME": node}

    async def named() -> Scrape | None:
        page = scrape(await _page(url))
        return page if HOLDER in page.pods("nvidia_gpu_duty_cycle") else None

    async def sliced() -> bool:
        return any(request["objectRef"]["resource"] == "resourceslices" for request in asked(made, ACCOUNT, namespace))

    with _running([sys.executable, "-m", "gpuscaler", *main["args"]], environ, made.folder / "exporter.log"):
        page: Scrape = await until("the exporter has the name of a pod from the API server", named)
        # Claims are reported by the kubelet's API only, so the kubelet has to answer now.
        fake.pods = [held(namespace, HOLDER, container("main", claims=[claim("gpu-0", pool=node)]))]
        await asyncio.to_thread(fake.start)
        await until("the exporter has asked for slices", sliced)
    return page


def _allocate(fake: FakeKubelet, uid: str) -> None:
    """Write the kubelet's checkpoint, which names a pod only by its UID. The kubelet itself does not run."""
    gpu = Simulated(_GPUS).devices()[0].uuid
    row = {"PodUID": uid, "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": [gpu]}}
    file = fake.path.parent.parent / "device-plugins" / "kubelet_internal_checkpoint"
    file.write_text(json.dumps({"Data": {"PodDeviceEntries": [row], "RegisteredDevices": {}}, "Checksum": 1}))


@contextmanager
def _running(words: list[str], environ: dict[str, Any], log: Path) -> Iterator[None]:
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=environ) as process:
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()[-2000:]


async def _page(url: str) -> str:
    """The served page, or an empty text before the server listens."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()
    except aiohttp.ClientConnectorError:
        return ""
