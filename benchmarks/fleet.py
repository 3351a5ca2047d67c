"""A large cluster: 5,000 nodes with 150,000 running pods, and 10,000 pending in 200 classes, from JSON to a plan.

Four fifths of the pending pods find room on the nodes, which are two thirds full; the rest asks for a GPU that no node has, and machines
are bought for it. The changed plan is made by the same planner after 100 pods were created, deleted or bound.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter
from typing import Any, BinaryIO

import msgspec
from tests.model import realistic

from benchmarks.figures import REGION, Figure, types_of_families
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.decoding import Interner, read_items
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.state import State
from gpuscaler.settings import parse_policy

NODES, RUNNING, PENDING, CLASSES = 5_000, 150_000, 10_000, 200


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        with path.open("wb") as stream:
            realistic.write_list(stream, fleet_objects())
        megabytes = path.stat().st_size / 1e6
        command = [sys.executable, "-m", "benchmarks.fleet", str(path)]
        values = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    what = f"{NODES:,} nodes, {RUNNING:,} running pods, {PENDING:,} pending in {CLASSES} classes"
    yield make_figure(f"{what}: load {megabytes:,.0f} MB of JSON", "≤ 10 s", f"{values['load']:.1f} s", values["load"] <= 10, values)
    yield make_figure(f"{what}: first plan", "≤ 1 s", f"{values['first']:.2f} s", values["first"] <= 1, values)
    changed = f"{values['again'] * 1000:.0f} ms, plus {values['apply'] * 1000:.0f} ms to apply the change"
    yield make_figure(f"{what}: a plan after 100 pods changed", "≤ 100 ms", changed, values["again"] <= 0.1, values)
    yield make_figure(
        f"{what}: memory of loading and planning", "≤ 600 MB", f"{values['megabytes']:.0f} MB", values["megabytes"] <= 600, values
    )


def make_figure(what: str, reach: str, measured: str, reached: bool, values: dict[str, float]) -> Figure:
    return Figure(what, "", reach, measured, reached, values)


def fleet_objects() -> Iterator[dict[str, Any]]:
    names = []
    for number in range(NODES):
        node = realistic.node(number)
        names.append(node["metadata"]["name"])
        yield node
    for number in range(RUNNING):
        yield with_requests(
            realistic.pod(number, node=names[number % NODES]), cpu=500 + 250 * (number // 50 % 15), gib=2 + number // 50 % 30
        )
    for number in range(PENDING):
        class_number = number % CLASSES
        manifest = realistic.pod(RUNNING + class_number * 50 + number // CLASSES)
        gpus = 1 + class_number % 4 if class_number % 5 < 2 else 0
        yield with_requests(
            manifest,
            cpu=1000 + 250 * (class_number % 29),
            gib=2 + class_number % 31,
            gpus=gpus,
            product="NVIDIA-A10G" if class_number % 5 == 0 else "",
        )


def with_requests(pod: dict[str, Any], *, cpu: int, gib: int, gpus: int = 0, product: str = "") -> dict[str, Any]:
    """``pod`` with other requests, and bound to a GPU product if given."""
    requests = {"cpu": f"{cpu}m", "memory": f"{gib}Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    pod["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    for status in pod["status"].get("containerStatuses", ())[:1]:
        status |= {"allocatedResources": requests, "resources": {"requests": requests, "limits": requests}}
    pod["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": product} if product else {}
    return pod


def fleet_policy() -> Policy:
    """Six pools that the nodes are members of, and one to buy from."""
    zones = ", ".join(f"us-east-1{letter}" for letter in "abc")
    node_pools = "".join(f"- {{name: pool-{number}, types: [p4d.24xlarge], zones: [{zones}]}}\n" for number in range(6))
    types = ", ".join(types_of_families("g5", "m5", "c5", "r5"))
    return parse_policy(f"region: {REGION}\npools:\n{node_pools}- {{name: other, types: [{types}], zones: [{zones}]}}\n", "benchmark")


def load_cluster(stream: BinaryIO) -> Cluster:
    interner = Interner()
    items = [item for item in read_items(stream, interner) if not isinstance(item, Skipped)]
    return Cluster.of(items)


def pod_changes(cluster: Cluster, round_number: int) -> Delta:
    """Changes of 100 pods: some are deleted, some have been bound, some are new."""
    draw = random.Random(round_number)
    pending = sorted(key for bucket in cluster.unbound.values() for key in bucket.keys)
    node_names = sorted(cluster.nodes)
    keys = draw.sample(pending, 75)
    bound = [msgspec.structs.replace(cluster.pods[key], node_name=draw.choice(node_names), phase="Running") for key in keys[:25]]
    new = [msgspec.structs.replace(cluster.pods[key], name=f"{cluster.pods[key].name}-{round_number}") for key in keys[25:50]]
    ended = [min(cluster.on_node[name]) for name in draw.sample(node_names, 25)]
    deletes = tuple((Pod, key) for key in keys[50:] + ended)
    return Delta(upserts=tuple(bound + new), deletes=deletes)


def measure_planning(path: str) -> dict[str, float]:
    began = perf_counter()
    with Path(path).open("rb") as stream:
        cluster = load_cluster(stream)
    loaded = perf_counter() - began
    planner = Planner(fleet_policy())
    began = perf_counter()
    result = planner.plan(cluster, State(), 0.0)
    first = perf_counter() - began
    applying, planning = [], []
    for number in range(9):
        delta = pod_changes(cluster, number)
        began = perf_counter()
        cluster = cluster.apply(delta)
        applied = perf_counter()
        result = planner.plan(cluster, State(), 0.0)
        applying.append(applied - began)
        planning.append(perf_counter() - applied)
    return {
        "load": loaded,
        "first": first,
        "apply": median(applying),
        "again": median(planning),
        "megabytes": getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        "bought": len(result.machines),
        "placed": len(result.placements),
        "unplaced": len(result.unplaced),
        "gap": result.gap,
    }


if __name__ == "__main__":
    print(json.dumps(measure_planning(sys.argv[1])))
