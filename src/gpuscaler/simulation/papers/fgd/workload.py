"""The cluster and the pods of the experiment, and the order in which pods come."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE, Floats, Ints, PodClasses
from gpuscaler.simulation.traces.jobs import MIB, Trace, TraceError, open_text, printable_names

#: Required columns of a file of nodes: GPUs, millicores and MiB of each, and the cluster if the file has several.
NODE_COLUMNS = ("gpus", "cpu_milli", "mem_mib", "cluster")
#: The same in the lists of nodes that Alibaba published with the openb trace, which contain one cluster.
OPENB_NODE_COLUMNS = ("gpu", "cpu_milli", "memory_mib")
#: Pods come until this part of the cluster's GPUs has been asked for: published values are means over arrivals that round to 100 %.
MEASURED = (0.995, 1.005)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes with GPUs, one entry each: devices, millicores, MiB."""

    gpus: Ints
    cpu: Ints
    memory: Ints

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def capacity(self) -> int:
        """Thousandths of devices."""
        return int(self.gpus.sum()) * WHOLE


@dataclass(frozen=True, slots=True)
class Workload:
    """``classes`` with their frequencies and ``memory`` (MiB), shape (K,); ``pods`` (P,) has the class of every pod of the list."""

    classes: PodClasses
    memory: Ints
    pods: Ints


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Classes of pods in order of arrival, and the part of the cluster's GPUs asked for after each arrival."""

    pods: Ints
    load: Floats


def read_nodes(path: Path, cluster: str) -> Nodes:
    """Read the nodes with GPUs of one cluster from a file, or from a published list. Raises :class:`TraceError`."""
    rows: list[tuple[int, ...]] = []
    clusters: set[str] = set()
    with open_text(path) as text:
        reader = csv.DictReader(text, strict=True)
        amounts = _amounts([name.strip() for name in reader.fieldnames or ()], path)
        for row in reader:
            of = row.get("cluster", cluster) or ""
            clusters.add(of)
            if of != cluster:
                continue
            try:
                node = tuple(int(row[name]) for name in amounts)
            except (TypeError, ValueError):
                raise TraceError(f"{path}:{reader.line_num}: expected whole numbers in {', '.join(amounts)}") from None
            if node[0] > 0:
                rows.append(node)
    if not rows:
        raise TraceError(f"{path}: no node with GPUs of cluster {cluster!r}; it has {printable_names(sorted(clusters)) or 'no cluster'}")
    gpus, cpu, memory = np.array(rows, dtype=np.int64).T
    return Nodes(gpus, cpu, memory)


def _amounts(header: list[str], path: Path) -> tuple[str, ...]:
    """The columns of GPUs, millicores and MiB."""
    if all(name in header for name in OPENB_NODE_COLUMNS):
        return OPENB_NODE_COLUMNS
    missing = [name for name in NODE_COLUMNS if name not in header]
    if missing:
        columns = printable_names(header) or "no header"
        raise TraceError(f"{path}: column {missing[0]} missing; seen: {columns}; expected {', '.join(NODE_COLUMNS)}")
    return NODE_COLUMNS[:3]


def workload_of_trace(trace: Trace) -> Workload:
    """The pods of a trace as classes; times, users and GPU models are ignored."""
    requests = [
        (job.gpus, job.gpu_milli if job.gpus else 0, job.cpu_milli or 0, -(-(job.memory or 0) // MIB))
        for job in trace.jobs
        for _ in range(job.pods)
    ]
    distinct, pods, counts = np.unique(np.array(requests, dtype=np.int64), axis=0, return_inverse=True, return_counts=True)
    gpus, milli, cpu, memory = distinct.T
    if not gpus.any():
        raise TraceError(f"{trace.name}: no pod takes GPUs, expected at least one")
    return Workload(PodClasses(gpus, milli, cpu, counts.astype(np.float64)), memory, pods.reshape(-1))


def arrivals(load: Workload, *, capacity: int, draw: np.random.Generator) -> Arrivals:
    """All pods of the list in random order, then pods drawn from it with replacement, until the cluster's GPUs are asked for."""
    demand = load.classes.demand
    order = draw.permutation(load.pods)
    short = max(0.0, MEASURED[1] * capacity - float(demand[order].sum()))
    # Twice the expected number, and some for short lists: the excess is cut off below.
    more = draw.choice(load.pods, size=int(2 * short / float(demand[load.pods].mean())) + 100) if short else load.pods[:0]
    pods = np.concatenate((order, more))
    load_share = np.cumsum(demand[pods]) / capacity
    count = int(np.searchsorted(load_share, MEASURED[1], side="right"))
    return Arrivals(pods[:count], load_share[:count])
