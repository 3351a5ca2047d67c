"""`gpuscaler cluster --control-plane real`: a cluster of the requested release, of which nothing is left at the end."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.stage import version
from tests.embedded.kubectl_building import kubectl

pytestmark = pytest.mark.e2e


def test_a_real_control_plane_serves_until_it_is_terminated(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    words = [sys.executable, "-m", "gpuscaler", "cluster", "--kubeconfig", str(kubeconfig), "--control-plane", "real"]
    more = ["--kubernetes", version(), "--nodes", "g5.xlarge=1"]

    def ask(*what: str) -> str:
        command = [str(kubectl()), "--kubeconfig", str(kubeconfig), *what]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout

    with subprocess.Popen([*words, *more], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "The API server is at https://127.0.0.1:" in process.stdout.readline()
            assert json.loads(ask("get", "--raw", "/version"))["gitVersion"] == f"v{version()}"
            ask("create", "job", "train", "--image", "train:1")
            # Wait for the Job, which exists at once. Its pods are created later, and waiting for pods that do not exist yet fails.
            ask("wait", "job", "train", "--for", "jsonpath={.status.ready}=1", "--timeout", "180s")
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
    assert not kubeconfig.exists()
