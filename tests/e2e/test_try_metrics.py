"""The trial in the how-to about scaling by GPU metrics: its manifests on a real control plane, with the metrics API as a process."""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.stage import ROOT, Stage, free_port, stage, until
from tests.e2e.test_hpa import Load, address, exporting
from tests.metrics.real_prometheus import binary, real_prometheus

from gpuscaler.kube.resources import NODES

pytestmark = [pytest.mark.e2e, pytest.mark.looptime(False)]

EXAMPLES = ROOT / "docs" / "examples"
#: The port of the process, which another program of this machine may have, and the namespace of the workload, by the manifests.
PORT, WORK = "6443", "inference"


async def kubectl(made: Stage, *words: str, manifest: str = "") -> str:
    command = ("kubectl", "--kubeconfig", str(made.plane.kubeconfig), *words)
    done = await asyncio.to_thread(subprocess.run, command, input=manifest, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_manifests_of_the_how_to_scale_a_deployment_on_a_real_control_plane(tmp_path: Path) -> None:
    async with stage("try") as made, made.kubelets():
        room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        body = {"metadata": {"name": "plain"}, "status": {"capacity": room, "allocatable": room, "conditions": ready}}
        await made.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", **body})
        port = str(free_port())
        manifest = (EXAMPLES / "try-metrics.yaml").read_text(encoding="utf-8").replace("ADDRESS", address()).replace(PORT, port)
        await kubectl(made, "apply", "-f", "-", manifest=manifest)
        await kubectl(made, "apply", "-f", str(EXAMPLES / "hpa.yaml"))
        load = Load(made, total=90.0, namespace=WORK)
        async with exporting(load) as target, real_prometheus(binary(), tmp_path, target) as prometheus:
            words = ["metrics", "--prometheus-url", prometheus.url, "--metrics-relist-interval", "2s", "--secure-port", port]
            environ = {**os.environ, "KUBECONFIG": str(made.plane.kubeconfig)}
            log_file = made.folder / "try.log"
            with log_file.open("wb") as log:
                start = partial(subprocess.Popen, [sys.executable, "-m", "gpuscaler", *words], env=environ, stdout=log, stderr=log)
                process = await asyncio.to_thread(start)
            try:
                await until("the autoscaler scales", partial(scales, made, process, log_file))
                status = await asyncio.to_thread(
                    subprocess.run, [sys.executable, "-m", "gpuscaler", "status"], env=environ, capture_output=True, text=True, check=False
                )
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait, 60)
    assert "custom.metrics.k8s.io/v1beta1 by Service default/gpuscaler-metrics: no problems" in status.stdout


async def scales(made: Stage, metrics: subprocess.Popen[Any], log: Path) -> bool:
    """Whether one replica at 90 percent has become two at 45 percent, with the metrics API still running."""
    assert metrics.poll() is None, await asyncio.to_thread(log.read_text)
    deployment = json.loads(await kubectl(made, "get", "deployment", "serve", "--namespace", WORK, "--output", "json"))
    return bool(deployment["spec"]["replicas"] == 2)
