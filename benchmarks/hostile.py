"""What whoever may create pods in one namespace writes: how long a plan takes, and whether the lease stays where it is.

Each workload is planned alone and among 5,000 ordinary pods, in a process of its own that reads one object after the other as a watch does.
``HOSTILE_MINUTES=10`` is how long two controllers are watched, at least.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from tests.cli.serving import Served, served
from tests.hostile.workloads import CASES, LIMITED, NOW, POOLS, mixed, ordinary, policy

from benchmarks.figures import Figure
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import LEASES, NODES, PODS
from gpuscaler.model.aside import SetAside
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

#: Seconds for a plan, MiB of memory, and how many ordinary pods there are besides.
SECONDS, MIB, ORDINARY = 5.0, 600, 5_000
MINUTES = float(os.environ.get("HOSTILE_MINUTES", "10"))
RUN_FILE = (
    LIMITED
    + """
cloud: simulated
simulated: {boot: 5s, device_plugin_delay: 1s, capacity_error_delay: 100ms}
http: {enabled: false}
"""
)


def figures() -> Iterator[Figure]:
    for name in CASES:
        for others in (0, ORDINARY):
            yield planned(name, others)
    yield leading()


def planned(name: str, others: int) -> Figure:
    """One workload, planned three times in a process of its own."""
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
            f"{found['cut']} beyond their budget, {found['aside']} set aside"
        ),
        reached=found["seconds"] <= SECONDS and found["mib"] <= MIB and served_all,
        values=found,
    )


def measure(path: Path) -> dict[str, float]:
    """Read objects line by line, and plan for them three times."""
    interner, items, aside = Interner(), list[Item](), list[SetAside]()
    with path.open("rb") as file:
        for line in file:
            found = decode_object(line, interner)
            if isinstance(found, SetAside):
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
    """The most memory that this process has had, in MiB; what getrusage says counts the process that it was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def leading() -> Figure:
    """Two controllers while 1,900 pods with affinity wait: how often the lease changes hands once one of them leads."""
    with TemporaryDirectory() as folder, served(Path(folder)) as cluster:
        (Path(folder) / "run.yaml").write_text(RUN_FILE)
        controllers = [started(cluster, Path(folder) / "run.yaml") for _ in range(2)]
        try:
            cluster.until(held, within=60)
            before = cluster.ask(transitions)
            cluster.load(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("tenant", "others")))
            cluster.load(*mixed(1900), *ordinary(20))
            time.sleep(MINUTES * 60)
            after, nodes, served_now = cluster.ask(transitions), cluster.ask(count_nodes), cluster.ask(bound)
            alive = sum(each.poll() is None for each in controllers)
        finally:
            for each in controllers:
                each.kill()
                each.wait()
    return Figure(
        what=f"two controllers over {MINUTES:g} minutes with 1,900 hostile pods",
        peers="the lease went from one to the other 12 times in 5 minutes, and nothing was bought",
        reach="the lease stays, both live, machines come",
        measured=f"{after - before} transitions, {alive} alive, {nodes} nodes, {served_now} pods bound",
        reached=after == before and alive == 2 and nodes > 0,
        values={"transitions": after - before, "alive": alive, "nodes": nodes, "bound": served_now},
    )


def started(cluster: Served, path: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", "from gpuscaler.cli import run; run()", "run"]
    command += ["--config", str(path), "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


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
    return sum(bool(msgspec.json.decode(one)["spec"].get("nodeName")) for one in await client.list_all(PODS))


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
