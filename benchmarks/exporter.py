"""Resource use of the exporter on a node: the real command, the real pynvml on a driver library made from C, a kubelet over gRPC.

The processor time of NVIDIA's own library is not included: it belongs to the driver, and is the same for every client.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from tests.exporter.attribution.kubelet import FakeKubelet, container, devices, pod
from tests.exporter.fake_nvml import GIB, FakeNvml, build
from tests.exporter.scraping import Scrape, scrape

from benchmarks.figures import Figure

GPUS, PODS = 8, 32
#: Seconds measured after the first ten, and between two scrapes.
MEASURED_SECONDS, SCRAPE_INTERVAL = 60, 15
SCRAPES = 200
STARTING_PODS = 12


def figures() -> Iterator[Figure]:
    with run_exporter() as (port, nvml, kubelet):
        while len(scrape_port(port).values("nvidia_gpu_temperature_celsius")) < PODS:
            time.sleep(0.2)
        time.sleep(10)
        yield idle_cost(port)
        yield scrape_cost(port)
        yield time_to_first_sample(port, nvml, kubelet)


@contextmanager
def run_exporter() -> Iterator[tuple[int, FakeNvml, FakeKubelet]]:
    """An exporter on a node with 8 GPUs, each shared by 4 pods; yields its port, the driver and the kubelet."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "driver").mkdir()
        nvml = FakeNvml(build(folder), folder / "driver", GPUS)
        kubelet = FakeKubelet(folder / "kubelet.sock")
        for number in range(PODS):
            gpu, replica = number // (PODS // GPUS), number % (PODS // GPUS)
            device_ids = devices(f"{nvml.gpu[gpu].uuid.decode()}::{replica}", resource="nvidia.com/gpu.shared")
            kubelet.pods.append(pod("ml", f"notebook-{number}", container("main", device_ids)))
        for device in nvml.gpu[:GPUS]:
            device.run(*((4_000_000 + number, 10, GIB) for number in range(PODS // GPUS)))
        kubelet.start()
        command = [sys.executable, "-m", "gpuscaler", "exporter", "--listen", "127.0.0.1:0", "--kubelet-socket", str(kubelet.path)]
        with subprocess.Popen(command, env={**os.environ, **nvml.environment}, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                port = next(int(line.split("port ")[1].rstrip('"}\n')) for line in process.stderr if "serving on port" in line)
                yield port, nvml, kubelet
            finally:
                process.terminate()
                kubelet.stop()


def fetch_metrics(port: int) -> bytes:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read()
    assert isinstance(text, bytes)
    return text


def scrape_port(port: int) -> Scrape:
    return scrape(fetch_metrics(port))


def idle_cost(port: int) -> Figure:
    """A minute of sampling, scraped as Prometheus does."""
    before, began = scrape_port(port), time.monotonic()
    for _ in range(MEASURED_SECONDS // SCRAPE_INTERVAL):
        time.sleep(SCRAPE_INTERVAL)
        after = scrape_port(port)
    seconds = time.monotonic() - began
    core = {
        name: (
            after.value("gpuscaler_exporter_cpu_seconds_total", process=name)
            - before.value("gpuscaler_exporter_cpu_seconds_total", process=name)
        )
        / seconds
        for name in ("serving", "measuring")
    }
    resident = {name: after.value("gpuscaler_exporter_resident_memory_bytes", process=name) for name in core}
    total, memory = sum(core.values()), sum(resident.values())
    return Figure(
        f"exporter: {GPUS} GPUs sampled every second, a scrape every {SCRAPE_INTERVAL} s",
        "",
        "≤ 1 % of a core, ≤ 60 MB RSS",
        f"{total:.2%} of a core ({core['measuring']:.2%} measuring), {memory / 1e6:.0f} MB RSS of both processes "
        f"({resident['measuring'] / 1e6:.0f} MB measuring)",
        total <= 0.01 and memory <= 60e6,
        {"core": total, "resident_bytes": memory, **{f"core_{name}": value for name, value in core.items()}},
    )


def scrape_cost(port: int) -> Figure:
    """Measured as processor time of the exporter: its wall time depends on the load of the machine."""
    seconds = []
    before = serving_cpu_seconds(scrape_port(port))
    for _ in range(SCRAPES):
        began = time.perf_counter()
        text = fetch_metrics(port)
        seconds.append(time.perf_counter() - began)
    cpu_seconds = (serving_cpu_seconds(scrape_port(port)) - before) / SCRAPES
    median, fastest = statistics.median(seconds), min(seconds)
    return Figure(
        f"exporter: a scrape of {GPUS} GPUs that {PODS} pods share",
        "",
        "≤ 5 ms",
        f"{cpu_seconds * 1e3:.1f} ms of processor time; wall time {fastest * 1e3:.1f} ms at best, {median * 1e3:.1f} ms median; "
        f"{len(text) / 1e3:.0f} kB",
        cpu_seconds <= 0.005,
        {"processor_seconds": cpu_seconds, "median_seconds": median, "fastest_seconds": fastest, "bytes": len(text)},
    )


def time_to_first_sample(port: int, nvml: FakeNvml, kubelet: FakeKubelet) -> Figure:
    """Pods that get a GPU and use it at once, one after the other, at different moments between two samples."""
    seconds = []
    for number in range(STARTING_PODS):
        gpu, name = nvml.gpu[number % GPUS], f"training-{number}"
        kubelet.pods = [pod("ml", name, container("main", devices(gpu.uuid.decode())))]
        gpu.utilization = 10 + number
        began = time.monotonic()
        while scrape_port(port).values("nvidia_gpu_duty_cycle", pod_name=name) != [10 + number]:
            time.sleep(0.02)
        seconds.append(time.monotonic() - began)
        # It was seen right after a sample: the next one begins later in the interval.
        time.sleep(number / STARTING_PODS)
    return Figure(
        f"exporter: a pod starts to use a GPU → its labelled sample, {STARTING_PODS} pods",
        "",
        "≤ 2 s",
        f"{max(seconds):.2f} s at most, {statistics.median(seconds):.2f} s median",
        max(seconds) <= 2,
        {"max_seconds": max(seconds), "median_seconds": statistics.median(seconds)},
    )


def serving_cpu_seconds(metrics: Scrape) -> float:
    """Processor time of the serving process in seconds."""
    return metrics.value("gpuscaler_exporter_cpu_seconds_total", process="serving")
