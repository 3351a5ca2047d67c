"""The whole exporter beside a kubelet: how soon a pod is on the metrics, and how soon it is gone from them."""

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.exporter.attribution.kubelet import container, devices, kubelet, pod

#: The first of the simulated GPUs.
GPU = "GPU-00000000-0000-4000-8000-000000000000"
#: Seconds until a pod that uses a GPU is on a sample, and one that ended is not.
SOON = 2.0


@contextmanager
def exporter(socket: Path) -> Iterator[Callable[[], str]]:
    """`gpuscaler exporter`, as a process of its own; yields what reads its metrics."""
    command = [sys.executable, "-m", "gpuscaler", "exporter", "--backend", "simulated", "--simulated-gpus", "2", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--kubelet-socket", str(socket), "--node-name", "node-a"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr
            found = re.search(r"serving at port (\d+)", process.stderr.readline())
            assert found
            yield lambda: urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=5).read().decode()
        finally:
            process.terminate()
            process.communicate(timeout=10)


def seconds_until(true: Callable[[], bool]) -> float:
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < 30.0
        time.sleep(0.05)
    return time.monotonic() - start


def duty_of(page: str, gpu: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("nvidia_gpu_duty_cycle{") and gpu in line]


def test_a_pod_that_starts_has_a_sample_within_two_seconds_and_one_that_ends_has_none() -> None:
    with kubelet() as here, exporter(here.path) as metrics:
        seconds_until(lambda: len(duty_of(metrics(), GPU)) == 1 and 'part="pods"} 1' in metrics())
        assert "pod_name" not in metrics()

        here.pods.append(pod("ml", "trainer-0", container("main", devices(GPU))))
        labelled = 'pod_name="trainer-0",namespace_name="ml",container_name="main"'
        assert seconds_until(lambda: labelled in duty_of(metrics(), GPU)[0]) <= SOON
        assert all("pod_name" not in line for line in metrics().splitlines() if "-000000000001" in line)

        here.pods.pop()
        assert seconds_until(lambda: "pod_name" not in metrics()) <= SOON
