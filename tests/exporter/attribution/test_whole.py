"""From the driver and the kubelet to the page of metrics: pods that share a GPU, and MIG devices."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.exporter.attribution.kubelet import FakeKubelet, container, devices, kubelet, pod
from tests.exporter.attribution.node import FakeNode
from tests.exporter.fake_nvml import GIB, FakeNvml
from tests.exporter.scraping import Scrape, scrape
from tests.patience import PATIENCE

from gpuscaler.exporter.attribution.attributor import NodeAttributor, Pace
from gpuscaler.exporter.service import Exporter

pytestmark = pytest.mark.looptime(False)

GPU = "GPU-00000000-0000-4000-8000-000000000000"
UID, OTHER = "0f8e1a52-3b61-4b0c-9a4e-6e2d5c1b7a90", "7b1c9d20-1111-4222-8333-0123456789ab"


@dataclass
class Here:
    exporter: Exporter
    kubelet: FakeKubelet
    node: FakeNode

    async def until(self, wanted: Callable[[Scrape], bool]) -> Scrape:
        async with asyncio.timeout(PATIENCE):
            while not wanted(found := scrape(self.exporter.pages()["/metrics"]().body)):  # noqa: ASYNC110  # other processes change it
                await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def exporting(nvml: FakeNvml, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Here]:
    """The exporter on a node with a kubelet, measuring every 100 ms."""
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    with kubelet() as fake:
        node = FakeNode(folder)
        exporter = Exporter(
            [sys.executable, "-m", "gpuscaler.exporter.child", "nvml", "0.1", "0"],
            backend="nvml",
            interval=0.1,
            node="node-a",
            attributor=NodeAttributor(node.places(fake.path), clock=time.monotonic, pace=Pace(spacing=0.05)),
            log=lambda *_: None,
            clock=time.monotonic,
            wall=time.time,
        )
        running = asyncio.create_task(exporter.run())
        try:
            yield Here(exporter, fake, node)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_pods_on_a_shared_gpu_have_their_own_memory_until_they_end(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = nvml.gpu[0]
    gpu.utilization, gpu.used = 30, 7 * GIB
    gpu.run((4001, 30, 5 * GIB), (4002, 0, GIB), (4003, 0, GIB // 2))
    async with exporting(nvml, tmp_path, monkeypatch) as here:
        here.node.runs("ml", "a", "main", uid=UID, number=1, pids=[4001])
        here.node.runs("ml", "b", "main", uid=OTHER, number=2, pids=[4002])
        here.node.process(4003, "0::/user.slice")
        here.kubelet.pods += [pod("ml", name, container("main", devices(f"{GPU}::{n}"))) for n, name in enumerate("ab")]

        scrape = await here.until(lambda scrape: scrape.values("nvidia_gpu_memory_used_bytes", pod_name="a") == [5 * GIB])
        assert scrape.value("nvidia_gpu_memory_used_bytes", pod_name="b") == GIB
        assert scrape.value("nvidia_gpu_memory_total_bytes", pod_name="b") == 80 * GIB
        assert scrape.value("gpuscaler_gpu_process_memory_used_bytes", pid="4001", pod_name="a") == 5 * GIB
        assert scrape.pods("gpuscaler_gpu_process_memory_used_bytes", pid="4003") == [None]

        # The pod and its processes have ended, but the kubelet has not noticed.
        here.node.ends(UID)
        gpu.run((4002, 0, GIB))
        scrape = await here.until(lambda scrape: "a" not in scrape.pods("nvidia_gpu_memory_used_bytes"))
        assert scrape.pods("nvidia_gpu_memory_used_bytes", uuid=GPU) == ["b"]


async def test_mig_devices_are_attributed_to_their_pods_and_the_divided_gpu_to_none(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.gpu[0].divide(("3g.40gb", 60, GIB), ("1g.10gb", 0, 0))
    async with exporting(nvml, tmp_path, monkeypatch) as here:
        here.kubelet.pods += [pod("ml", "small", container("main", devices("MIG-0-1", resource="nvidia.com/mig-1g.10gb")))]
        scrape = await here.until(lambda scrape: scrape.pods("nvidia_gpu_memory_total_bytes", uuid="MIG-0-1") == ["small"])
        assert scrape.pods("nvidia_gpu_memory_total_bytes", uuid="MIG-0-0") == [None]
        assert scrape.pods("nvidia_gpu_temperature_celsius", uuid=GPU) == [None]
        assert scrape.value("gpuscaler_gpu_containers", uuid="MIG-0-1") == 1
