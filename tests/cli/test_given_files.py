"""Claims of SECURITY.md about files: they are data, secrets in them are not kept, and reading opens no connection and writes nothing."""

import io
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.control.records.deciding import POLICY, make_decision
from tests.planning.building import NOW

from gpuscaler.cli import main
from gpuscaler.control.records.history.packing import pack_decision
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.decoding import Interner, read_items
from gpuscaler.planning.state import State

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SECRET = "hunter2-of-the-tenant"
#: Runs a command and prints, after a marker, each connection and each file that is opened for writing.
WATCHED = """
import os, sys
seen = []
def watch(event, words):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        seen.append(event)
    elif event == "open" and words[2] is not None and words[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen.append(str(words[0]))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.system", "subprocess.Popen"):
        seen.append(event)
from gpuscaler.cli import run
sys.addaudithook(watch)
try:
    run()
finally:
    print("WATCHED", seen, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "pools.yaml"),
        ("plan", "--cluster", "cluster.yaml", "--pools", "pools.yaml"),
        ("simulate", "--trace", "jobs.csv", "--pools", "pools.yaml"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_on_files_opens_no_connection_and_writes_nothing(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-B", "-c", WATCHED, *words], cwd=EXAMPLES, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "WATCHED []"


def test_commands_on_files_write_only_the_requested_file(tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    words = ("plan", "--cluster", "cluster.yaml", "--pools", "pools.yaml", "--proof", str(proof))
    done = subprocess.run([sys.executable, "-B", "-c", WATCHED, *words], cwd=EXAMPLES, capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == f"WATCHED [{str(proof)!r}]"


@pytest.mark.parametrize("option", ["--cluster", "--pools"])
def test_a_yaml_tag_creates_no_object_and_calls_nothing(option: str, tmp_path: Path) -> None:
    hostile, made = tmp_path / "hostile.yaml", tmp_path / "made"
    hostile.write_text(f"kind: Pod\npools: !!python/object/apply:os.system ['touch {made}']\n")
    files = {"--cluster": EXAMPLES / "cluster.yaml", "--pools": EXAMPLES / "pools.yaml", option: hostile}
    done = CliRunner().invoke(main, ["plan", *(str(word) for pair in files.items() for word in pair)])

    assert done.exit_code == 2
    assert not made.exists()


def secretive() -> Cluster:
    """A pod with secrets in all fields that planning does not read, and a Secret and a ConfigMap."""
    container = {
        "name": "main",
        "image": f"registry.example/{SECRET}:1",
        "command": [SECRET],
        "args": [SECRET],
        "env": [{"name": "TOKEN", "value": SECRET}],
        "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
    }
    metadata = {"name": "train", "namespace": "tenant", "uid": "1", "annotations": {"example.com/note": SECRET}}
    objects = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Pending"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "tenant"}, "stringData": {"token": SECRET}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "tenant"}, "data": {"token": SECRET}},
    ]
    items = list(read_items(io.BytesIO(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()), Interner()))
    asides = tuple(item for item in items if isinstance(item, Skipped))
    return Cluster().apply(Delta(tuple(item for item in items if not isinstance(item, Skipped))), set_aside=asides)


def test_a_replay_file_contains_only_what_planning_reads() -> None:
    inputs = pack_decision(make_decision(secretive(), State(), POLICY, NOW))

    assert b"train" in unzipped(inputs)
    assert SECRET.encode() not in unzipped(inputs)


def unzipped(data: bytes) -> bytes:
    """Return all decompressed data, one stream after the other."""
    content = b""
    while data:
        decompress = zlib.decompressobj()
        content += decompress.decompress(data)
        data = decompress.unused_data
    return content
