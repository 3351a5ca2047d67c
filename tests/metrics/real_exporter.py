"""The real exporter process, with simulated GPUs and a kubelet that allocates them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.exporter.attribution.kubelet import FakeKubelet, container, devices
from tests.exporter.attribution.kubelet import pod as held
from tests.metrics.real_prometheus import PATIENCE

from gpuscaler.exporter.backends.simulated import Simulated


@asynccontextmanager
async def exporter(folder: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The command with four simulated GPUs: two belong to training-0, one to inference-0, the last is divided. Yields HOST:PORT."""
    uuids = [device.uuid for device in Simulated(4).devices()]
    kubelet = FakeKubelet(folder / "kubelet.sock")
    kubelet.pods = [
        held("ml", "training-0", container("main", devices(*uuids[:2]))),
        held("ml", "inference-0", container("main", devices(uuids[2]))),
    ]
    kubelet.start()
    command = [sys.executable, "-m", "gpuscaler", "exporter", "--backend", "simulated", "--simulated-gpus", "4", "--node-name", "n1"]
    process = await asyncio.create_subprocess_exec(
        *command, "--listen", "127.0.0.1:0", "--kubelet-socket", str(kubelet.path), stderr=asyncio.subprocess.PIPE, env=os.environ
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"serving on port" not in (line := await process.stderr.readline()):
                pass
        yield f"127.0.0.1:{int(line.split(b'port ')[1].split(chr(34).encode())[0])}", process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
        kubelet.stop()
