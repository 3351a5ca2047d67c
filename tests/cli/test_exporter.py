"""``gpuscaler exporter`` as users start it."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from tests.cli.walls import WALLED
from tests.exporter.attribution.kubelet import container, devices, kubelet, pod
from tests.exporter.fake_nvml import FakeNvml, build
from tests.exporter.scraping import Scrape, scrape
from tests.patience import PATIENCE

from gpuscaler.cli import main

PROGRAM = Path(sys.executable).with_name("gpuscaler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


class Started:
    """The running command and its log."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.log: list[dict[str, str]] = []

    def told(self, words: str) -> str:
        """Read the log up to a message with these words."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.log.append(json.loads(line))
            if words in self.log[-1]["message"]:
                return self.log[-1]["message"]
        raise AssertionError(self.log)

    def get(self, path: str) -> str:
        port = self.port
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            text = answer.read()
        assert isinstance(text, bytes)
        return text.decode()

    def metrics(self) -> Scrape:
        return scrape(self.get("/metrics"))

    port = 0


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[Started]:
    command = [str(PROGRAM), "exporter", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        running = Started(process)
        try:
            running.port = int(running.told("serving on port").rpartition(" ")[2])
            yield running
        finally:
            process.kill()


def test_the_exporter_measures_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    with started(
        "--backend", "simulated", "--simulated-gpus", "3", "--interval", "200ms", "--kubelet-socket", f"{tmp_path}/none", **WALLED
    ) as running:
        running.told("measuring 3 GPUs")
        scrape = running.metrics()
        health, front = running.get("/healthz"), running.get("/")
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        status = running.process.wait(20)

    assert scrape.value("nvidia_gpu_num_devices") == 3
    assert scrape.value("gpuscaler_exporter_working", part="gpus") == 1
    # There is no kubelet here, which is reported in one metric and one line of the log.
    assert scrape.value("gpuscaler_exporter_working", part="pods") == 0
    assert len([line for line in running.log if line["message"].startswith("pods:")]) == 1
    assert f"{tmp_path}/none" in front
    assert health == "ok\n"
    assert status == 0
    # The chart allows this much time.
    assert time.monotonic() - began < 10


def test_the_name_of_the_node_comes_from_the_environment() -> None:
    with started("--backend", "simulated", NODE_NAME="gpu-7") as running:
        running.told("measuring")
        scrape = running.metrics()

    assert {labels["node_name"] for labels, _ in scrape.samples["nvidia_gpu_temperature_celsius"]} == {"gpu-7"}


def test_without_a_driver_the_exporter_reports_that_there_are_no_gpus(tmp_path: Path) -> None:
    with started("--backend", "nvml", LD_LIBRARY_PATH=str(tmp_path)) as running:
        message = running.told("gpus:")
        scrape = running.metrics()

    assert "saw no libnvidia-ml.so.1" in message
    assert scrape.value("nvidia_gpu_num_devices") == 0
    assert scrape.value("gpuscaler_exporter_working", part="gpus") == 0


def test_a_pod_that_starts_to_use_a_gpu_soon_appears_in_its_metrics(library: Path, tmp_path: Path) -> None:
    """The whole path: driver, kubelet over gRPC, HTTP. ``python -m benchmarks exporter`` measures the delay: other tests run here."""
    nvml = FakeNvml(library, tmp_path, 2)
    with kubelet() as node, started("--kubelet-socket", str(node.path), **nvml.environment) as running:
        running.told("measuring 2 GPUs")
        node.pods.append(pod("ml", "training-0", container("main", devices(nvml.gpu[1].uuid.decode()))))
        nvml.gpu[1].utilization = 73
        began = time.monotonic()
        while running.metrics().values("nvidia_gpu_duty_cycle", pod_name="training-0", minor_number="1") != [73]:
            assert time.monotonic() - began < 10
            time.sleep(0.02)
        scrape = running.metrics()

    assert scrape.pods("nvidia_gpu_duty_cycle", minor_number="0") == [None]
    assert scrape.value("gpuscaler_exporter_working", part="pods") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--interval", "20ms"], "expected a duration from 100ms to 10s"),
        (["--interval", "soon"], "expected a duration from 100ms to 10s"),
        (["--listen", "9400"], "expected HOST:PORT, such as :9400"),
        (["--listen", ":99999"], "expected HOST:PORT, such as :9400"),
        (["--simulated-gpus", "0"], "0 is not in the range"),
        (["--backend", "rocm"], "'nvml', 'simulated'"),
    ],
)
def test_an_invalid_option_is_reported_with_what_was_expected(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["exporter", *arguments])

    assert done.exit_code == 2
    assert words in done.output


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(main, ["exporter", "--backend", "simulated", "--listen", address])

    assert done.exit_code == 2
    assert f"--listen {address}: saw" in done.output
    assert "choose another" in done.output


def test_an_invalid_host_is_reported() -> None:
    done = CliRunner().invoke(main, ["exporter", "--backend", "simulated", "--listen", "..:9400"])

    assert done.exit_code == 2
    assert "--listen ..:9400: saw" in done.output
    assert "expected a free address of this machine" in done.output


def test_a_missing_api_server_is_reported_with_advice_for_this_command(tmp_path: Path) -> None:
    nowhere = {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""}
    done = CliRunner().invoke(main, ["exporter", "--backend", "simulated", "--ask-api-server"], env=nowhere)

    assert done.exit_code == 2
    assert "--ask-api-server: " in done.output
    assert f"looked at {tmp_path}/.kube/config" in done.output
    assert "omit --ask-api-server" in done.output
    # This command has no such option.
    assert "--kubeconfig" not in done.output


def test_ctrl_c_ends_the_exporter_and_its_measuring_process() -> None:
    with started("--backend", "simulated") as running:
        running.told("measuring")
        process_id = running.process.pid
        (measuring,) = [int(pid) for pid in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]
        running.process.send_signal(signal.SIGINT)
        status = running.process.wait(20)

    assert status == 130
    assert not Path(f"/proc/{measuring}").exists()


def test_missing_packages_are_named_with_the_command_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str) -> ModuleSpec | None:
        return None if name == "pynvml" else find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    done = CliRunner().invoke(main, ["exporter"])

    assert done.exit_code == 2
    assert "saw no Python module pynvml" in done.output
    assert "pip install '.[exporter]' in a clone of gpuscaler" in done.output
