"""The real exporter process, with simulated GPUs and a kubelet that allocates them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.exporter.attribution.kubelet import FakeKubelet, container, devices
from tests.exporter.attribution.kubelet import pod as held
from tests.metrics.real_prometheus import PATIENCE

from gpuscaler.exporter.backends.simulated import Simulated


@contextmanager
def exporter(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The command with four simulated GPUs: two belong to training-0, one to inference-0, the last is divided. Yields HOST:PORT."""
    uuids = [device.uuid for device in Simulated(4).devices()]
    kubelet = FakeKubelet(folder / "kubelet.sock")
    kubelet.pods = [
        held("ml", "training-0", container("main", devices(*uuids[:2]))),
        held("ml", "inference-0", container("main", devices(uuids[2]))),
    ]
    kubelet.start()
    command = [sys.executable, "-m", "gpuscaler", "exporter", "--backend", "simulated", "--simulated-gpus", "4", "--node-name", "n1"]
    command += ["--listen", "127.0.0.1:0", "--kubelet-socket", str(kubelet.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            serving = next(line for line in process.stderr if b"serving on port" in line)
            yield f"127.0.0.1:{int(serving.split(b'port ')[1].split(chr(34).encode())[0])}", process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
            kubelet.stop()
