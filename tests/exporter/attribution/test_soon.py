"""The whole exporter with a kubelet: how soon a pod appears in the metrics and disappears, and what is logged at a kubelet restart."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.exporter.attribution.kubelet import container, devices, kubelet, pod
from tests.patience import PATIENCE

#: The first of the simulated GPUs.
GPU = "GPU-00000000-0000-4000-8000-000000000000"
#: Seconds until a new pod with a GPU is in a sample, and one that ended is not.
SOON = 2.0


@contextmanager
def exporter(socket: Path, log: Path, *, interval: str = "1s") -> Iterator[Callable[[], str]]:
    """`gpuscaler exporter` as a separate process that writes to `log`; yields a function that reads its metrics."""
    command = [sys.executable, "-m", "gpuscaler", "exporter", "--backend", "simulated", "--simulated-gpus", "2", "--listen", "127.0.0.1:0"]
    command += ["--kubelet-socket", str(socket), "--node-name", "node-a", "--interval", interval]
    with log.open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            seconds_until(lambda: "serving on port" in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            port = log.read_text().partition("serving on port ")[2].partition('"')[0]
            yield lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).read().decode()
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)


def seconds_until(true: Callable[[], bool]) -> float:
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < 30.0
        time.sleep(0.05)
    return time.monotonic() - start


def duty_of(page: str, gpu: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("nvidia_gpu_duty_cycle{") and gpu in line]


def test_a_started_pod_has_a_sample_within_two_seconds_and_an_ended_pod_has_none(tmp_path: Path) -> None:
    with kubelet() as here, exporter(here.path, tmp_path / "log") as metrics:
        seconds_until(lambda: len(duty_of(metrics(), GPU)) == 1 and 'part="pods"} 1' in metrics())
        assert "pod_name" not in metrics()

        def is_for(labels: str) -> bool:
            return labels in duty_of(metrics(), GPU)[0]

        # The best of six, since other programs on this machine may delay one.
        began, ended = [], []
        for number in range(6):
            here.pods.append(pod("ml", f"trainer-{number}", container("main", devices(GPU))))
            labels = f'pod_name="trainer-{number}",namespace_name="ml",container_name="main"'
            began.append(seconds_until(partial(is_for, labels)))
            assert all("pod_name" not in line for line in metrics().splitlines() if "-000000000001" in line)
            here.pods.pop()
            ended.append(seconds_until(lambda: "pod_name" not in metrics()))
            if max(began[-1], ended[-1]) <= SOON:
                break
        assert min(began) <= SOON
        assert min(ended) <= SOON


def test_a_kubelet_restart_in_the_middle_of_a_response_is_logged_as_json(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with kubelet() as here, exporter(here.path, log, interval="100ms") as metrics:
        seconds_until(lambda: 'part="pods"} 1' in metrics())
        assert here.hang(seconds=0.8).wait(PATIENCE)
        here.restart()
        seconds_until(lambda: 'part="pods"} 0' in metrics())
        here.behave = None
        seconds_until(lambda: 'part="pods"} 1' in metrics())
    said = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert [message for message in said if message.startswith("pods: the kubelet at ")]
    assert said[-1] == "pods: pods of GPUs are known from pod-resources"


def test_without_a_kubelet_socket_the_checkpoint_is_looked_for_next_to_the_sockets_folder(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with exporter(tmp_path / "kubelet" / "pod-resources" / "kubelet.sock", log):
        seconds_until(lambda: "pods: " in log.read_text())
    assert f"no kubelet checkpoint at {tmp_path}/kubelet/device-plugins/kubelet_internal_checkpoint" in log.read_text()
