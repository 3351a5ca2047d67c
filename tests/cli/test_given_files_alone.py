"""Claims of SECURITY.md about commands on files: they open no connection, start no process, and write only requested files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_plan import NOW, POOLS, node, pod

#: Ends the process at any access outside of it; prints what was opened for writing and what was changed in a folder.
WATCHED = """
import os, sys
def watch(event, told):
    # A loop of asyncio has a pair of sockets of its own.
    inside = ("socket.__new__", "socket.gethostname")
    if event.startswith(("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.system", "os.fork")) and event not in inside:
        os.write(2, f"LEFT {event} {told}".encode())
        os._exit(99)
    if event == "open" and isinstance(told[0], str) and told[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(2, f"WROTE {told[0]}\\n".encode())
    elif event in {"os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink", "os.truncate"}:
        os.write(2, f"WROTE {told[0]}\\n".encode())
sys.addaudithook(watch)
from gpuscaler.cli import run
run()
"""
TRACE = "job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib\na,0,60,1,1,1000,1000,1024\n"


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "pools.yaml"),
        ("plan", "--cluster", "cluster.json", "--pools", "pools.yaml", *NOW),
        ("plan", "--cluster", "cluster.json", "--pools", "pools.yaml", *NOW, "--json"),
        ("simulate", "--trace", "jobs.csv", "--pools", "pools.yaml"),
    ],
    ids=lambda words: " ".join(words[:1] + words[-1:]),
)
def test_commands_on_files_open_no_connection_start_nothing_and_write_no_file(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(POOLS)
    (tmp_path / "cluster.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("n1", 1), pod("a"), pod("b", 8)]})
    )
    (tmp_path / "jobs.csv").write_text(TRACE)
    done = watched(tmp_path, *words)

    assert done.returncode in {0, 1}, done.stderr
    assert done.stdout
    assert [line for line in done.stderr.splitlines() if line.startswith(("LEFT", "WROTE")) and line != "WROTE /dev/null"] == []


def watched(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    command = [sys.executable, "-c", WATCHED, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_planning_from_a_cluster_dump_runs_no_code_and_repeats_no_secret(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(POOLS)
    private_pod = pod("a")
    private_pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    others = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "default"}, "data": {"key": "hunter2"}}
        for kind in ("Secret", "ConfigMap")
    ]
    tagged = "---\n!!python/object/apply:os.system ['touch ran']\n"
    (tmp_path / "cluster.yaml").write_text("".join(f"---\n{json.dumps(item)}\n" for item in (private_pod, *others)))
    (tmp_path / "tagged.yaml").write_text(tagged)

    done = watched(tmp_path, "plan", "--cluster", "cluster.yaml", "--pools", "pools.yaml", *NOW, "--json")
    assert "default/a" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    refused = watched(tmp_path, "plan", "--cluster", "tagged.yaml", "--pools", "pools.yaml", *NOW)
    assert refused.returncode != 99
    assert not (tmp_path / "ran").exists()


def test_the_guard_of_these_tests_detects_a_connection_and_a_written_file(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: ''}}]\n"
    )
    done = watched(tmp_path, "status", "--kubeconfig", "kubeconfig")

    assert done.returncode == 99
    assert "LEFT socket." in done.stderr
