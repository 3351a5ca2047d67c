"""Workloads of a hostile user who may create pods in one namespace: the time of a plan, and whether the lease stays with its holder.

Each workload is planned alone and among 5,000 ordinary pods, in a separate process that reads one object after the other as a watch does.
``HOSTILE_MINUTES=10`` is how long two controllers are observed, at least.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import msgspec
from tests.cli.serving import Served, served
from tests.hostile.workloads import CASES, NOW, POOLS, mixed, ordinary, policy

from benchmarks.figures import Figure
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import LEASES, NODES, PODS
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

#: Limits of a plan in seconds and MiB of memory, and the number of ordinary pods beside it.
SECONDS, MIB, ORDINARY = 5.0, 600, 5_000
#: Number of ordinary pods with running controllers; the interval and the time limit of their health checks, in seconds.
ORDINARY_LIVE, EVERY, PATIENCE = 20, 2.0, 5.0
MINUTES = float(os.environ.get("HOSTILE_MINUTES", "10"))
SIMULATED = """
cloud: simulated
simulated: {boot: 5s, device_plugin_delay: 1s, capacity_error_delay: 100ms}
pages: {enabled: false}
"""
#: There is room for all pods: how to share a small limit is a matter of priorities.
ROOMY = f"{POOLS}limits: {{gpus: 2500, dollars_per_hour: 9000}}\n{SIMULATED}"


def figures() -> Iterator[Figure]:
    for name in CASES:
        for others in (0, ORDINARY):
            yield planned(name, others)
    yield leading()


def planned(name: str, others: int) -> Figure:
    """One workload, planned three times in a separate process."""
    make, count = CASES[name]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "objects.jsonl"
        with path.open("w") as file:
            for each in [*make(count), *ordinary(others)]:
                file.write(json.dumps(each) + "\n")
        done = subprocess.run(
            (sys.executable, "-m", "benchmarks.hostile", str(path)), capture_output=True, text=True, check=True, timeout=900
        )
    found = json.loads(done.stdout)
    served_all = found["served"] == others
    beside = f" among {others:,} ordinary pods, {found['served']:,} of them served" if others else ""
    return Figure(
        what=f"{count:,} hostile pods ({name}){beside}",
        peers="11 to 152 s",
        reach=f"a plan within {SECONDS:g} s and {MIB} MiB",
        measured=(
            f"{found['seconds']:.2f} s ({found['cpu']:.2f} s of a core), {found['mib']:.0f} MiB, "
            f"{found['cut']} over their budget, {found['aside']} skipped"
        ),
        reached=found["seconds"] <= SECONDS and found["mib"] <= MIB and served_all,
        values=found,
    )


def measure(path: Path) -> dict[str, float]:
    """Read objects line by line, and plan for them three times."""
    interner, items, aside = Interner(), list[Item](), list[Skipped]()
    with path.open("rb") as file:
        for line in file:
            found = decode_object(line, interner)
            if isinstance(found, Skipped):
                aside.append(found)
            elif found is not None:
                items += found if isinstance(found, list | tuple) else [found]  # type: ignore[list-item]  # one object each
    cluster, settings = Cluster.of(items, aside), policy(POOLS)
    seconds, cpu = [], []
    for _ in range(3):
        began, used = time.perf_counter(), time.process_time()
        made = plan(cluster, State(), settings, NOW)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return {
        "seconds": statistics.median(seconds),
        "cpu": statistics.median(cpu),
        "mib": peak(),
        "served": sum(key.startswith("others/") for machine in made.machines for key in machine.pods),
        "cut": sum(each.reasons[0].excluded_by == "budget" for each in made.unplaced if each.reasons),
        "aside": len(aside),
    }


def peak() -> float:
    """The peak memory of this process in MiB; getrusage would include the process that it was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def leading() -> Figure:
    """Two controllers while 1,900 pods with affinity wait: whether the lease stays, both answer, and the others' pods run."""
    with TemporaryDirectory() as folder, served(Path(folder)) as cluster:
        running = [started(cluster, Path(folder), place) for place in range(2)]
        try:
            cluster.until(held, within=60)
            before = cluster.ask(transitions)
            cluster.load(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("tenant", "others")))
            cluster.load(*mixed(1900), *ordinary(ORDINARY_LIVE))
            waits = list(watched([each.port for each in running]))
            changes, nodes, others = cluster.ask(transitions) - before, cluster.ask(count_nodes), cluster.ask(bound)
            alive = sum(each.process.poll() is None for each in running)
            lapses = sum(each.log.read_bytes().count(b'"this process does not lead"') for each in running)
        finally:
            for each in running:
                each.process.kill()
                each.process.wait()
    late = sum(each >= PATIENCE for each in waits)
    return Figure(
        what=f"two controllers over {MINUTES:g} minutes with 1,900 hostile pods and {ORDINARY_LIVE} ordinary ones",
        peers="the lease changed hands 12 times in 5 minutes, and nothing was bought",
        reach=f"the lease is never lost, both answer within {PATIENCE:g} s, and the ordinary pods run",
        measured=(
            f"{changes} transitions, {lapses} lapses, {alive} alive, {nodes} nodes, {others} ordinary pods bound, "
            f"{late} of {len(waits)} answers of /healthz later than {PATIENCE:g} s, {max(waits):.2f} s at most"
        ),
        reached=not changes and not lapses and alive == 2 and others == ORDINARY_LIVE and not late,
        values={
            "transitions": changes,
            "lapses": lapses,
            "alive": alive,
            "nodes": nodes,
            "bound": others,
            "late": late,
            "worst": max(waits),
        },
    )


@dataclass(frozen=True)
class Running:
    """A controller: its process, the port of its health endpoint, and its log."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path


def started(cluster: Served, folder: Path, place: int) -> Running:
    port, settings, log = free_port(), folder / f"run-{place}.yaml", folder / f"log-{place}"
    settings.write_text(f'{ROOMY}http: {{address: "127.0.0.1:{port}"}}\n')
    command = [sys.executable, "-c", "from gpuscaler.cli import run; run()", "run"]
    command += ["--config", str(settings), "--kubeconfig", str(cluster.kubeconfig)]
    with log.open("wb") as file:
        return Running(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT), port, log)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def watched(ports: Iterable[int]) -> Iterator[float]:
    """The duration of each answer, for ``MINUTES``."""
    until = time.monotonic() + MINUTES * 60
    while time.monotonic() < until:
        time.sleep(EVERY)
        yield from map(answered, ports)


def answered(port: int) -> float:
    """Seconds until the controller reported healthy; ``PATIENCE`` if it did not."""
    began = time.perf_counter()
    try:
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE):
            return time.perf_counter() - began
    except OSError:
        return PATIENCE


async def lease(client: Client) -> dict[str, object]:
    found = [msgspec.json.decode(one) for one in await client.list_all(LEASES, namespace="kube-system")]
    return next((one["spec"] for one in found if one["metadata"]["name"] == "gpuscaler"), {})


async def held(client: Client) -> bool:
    return bool((await lease(client)).get("holderIdentity"))


async def transitions(client: Client) -> int:
    return int(str((await lease(client)).get("leaseTransitions") or 0))


async def count_nodes(client: Client) -> int:
    return len(await client.list_all(NODES))


async def bound(client: Client) -> int:
    return sum(bool(msgspec.json.decode(one)["spec"].get("nodeName")) for one in await client.list_all(PODS, namespace="others"))


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
