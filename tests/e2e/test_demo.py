"""`gpuscaler demo --control-plane real`: from its first Job to the removal of the last machine, with nothing left at the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.stage import built, version

pytestmark = pytest.mark.e2e
#: A single pod, a gang, and a pod without a GPU. Each runs for some seconds: the demo runs jobs for a twentieth of the trace's duration.
TRACE = """job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib
alone,0,120,1,1,1000,2000,8192
gang,20,160,2,1,1000,2000,8192
plain,40,120,1,0,0,1000,1024
"""
PODS = 4


def test_the_demo_runs_all_jobs_on_a_real_control_plane_and_removes_every_machine(tmp_path: Path) -> None:
    built(version())
    trace, out, scratch = (tmp_path / name for name in ("jobs.csv", "out", "scratch"))
    trace.write_text(TRACE)
    scratch.mkdir()
    words = [sys.executable, "-m", "gpuscaler", "demo", "--trace", str(trace), "--out", str(out)]
    real = ["--control-plane", "real", "--kubernetes", version()]
    environ = {**os.environ, "TMPDIR": str(scratch)}

    done = subprocess.run([*words, *real], capture_output=True, text=True, timeout=900, env=environ, check=False)

    assert done.returncode == 0, done.stderr
    assert "all work is done and every machine is removed" in done.stdout
    report = json.loads((out / "report.json").read_text())
    (policy,) = report["policies"]
    assert report["inputs"]["pods"] == PODS
    # A pod that lost its machine is started again, and is counted once more.
    assert policy["served"] == PODS + policy["evictions"], done.stdout
    assert policy["unserved"] == 0
    assert {row["pool"] for row in policy["machine_hours"]} > {"cpu"}
    assert " removes " in done.stdout
    assert list(scratch.iterdir()) == []
    running = subprocess.run(["ps", "-A", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert str(scratch) not in running, "a program of the control plane still runs"
