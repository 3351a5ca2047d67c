"""The table: the share of a full cluster's GPUs that each scheduler leaves unallocated."""

from collections.abc import Sequence

import numpy as np

from gpuscaler.simulation.papers import Published, TableRow
from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE
from gpuscaler.simulation.papers.fgd.placement_prices import solve
from gpuscaler.simulation.papers.fgd.placing import Cluster, unallocated
from gpuscaler.simulation.papers.fgd.scores import PUBLISHED, scoring_by_name
from gpuscaler.simulation.papers.fgd.workload import Nodes, Workload, arrivals

#: The first seed of the published runs, and the number of seeds.
FIRST_SEED, SEEDS = 42, 10
SOURCE = "Weng and others, USENIX ATC 2023; runs in hkust-adsl/kubernetes-scheduler-simulator, experiments/analysis/expected_results"
#: The number of pods and the thousandths of GPUs of the published runs.
PUBLISHED_FOR = (8152, 6_212_000)
ELSEWHERE = "these are other pods or other nodes than those of the published runs"
UNMATCHED = (
    "the order of pods and nodes, and the draws of Random: Go's generator uses seeds differently, so runs differ by chance",
    "FGD's choice among a node's equally good GPUs: here the fullest, in the published runs the first by number",
    "gpuscaler: no published value; the constants of its score were chosen on seeds 100 to 102",
)


def fgd_table(nodes: Nodes, load: Workload, *, policies: Sequence[str] = tuple(PUBLISHED), seeds: int = SEEDS) -> Published:
    """Run every policy on the same ``seeds`` orders of pods and nodes."""
    rows = []
    for name in policies:
        values = unallocated_by_seed(name, nodes, load, seeds=seeds)
        figures = {"least": min(values), "most": max(values)}
        rows.append(TableRow(policy=name, ours=float(np.mean(values)), published=PUBLISHED[name], figures=figures))
    other = (len(load.pods), nodes.capacity) != PUBLISHED_FOR
    return Published(
        name="fgd",
        title="Unallocated GPUs at 100 % arrived load",
        unit="% of all GPUs",
        source=SOURCE,
        rows=tuple(rows),
        inputs=(
            f"{len(load.pods):,} pods in {len(load.classes)} classes, {len(nodes):,} nodes with {nodes.capacity // WHOLE:,} GPUs.",
            f"Means of {seeds} runs, seeds {FIRST_SEED} to {FIRST_SEED + seeds - 1}.",
            (
                f"Any placement of these pods leaves at least {minimum_unallocated(nodes, load):.2f} % unallocated on average "
                "(bound of a linear program)."
            ),
        ),
        unmatched=(ELSEWHERE, *UNMATCHED) if other else UNMATCHED,
    )


def unallocated_by_seed(name: str, nodes: Nodes, load: Workload, *, seeds: int) -> list[float]:
    """Percent of GPUs that a policy leaves unallocated, for each seed."""
    scores = scoring_by_name(name, load, nodes)
    values = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        draw = np.random.default_rng(seed)
        coming = arrivals(load, capacity=nodes.capacity, draw=draw)
        order = draw.permutation(len(nodes))
        shuffled = Nodes(nodes.gpus[order], nodes.cpu[order], nodes.memory[order])
        cluster = Cluster(shuffled, load, scores)
        values.append(unallocated(cluster, coming, load, capacity=nodes.capacity, draw=draw))
    return values


def minimum_unallocated(nodes: Nodes, load: Workload) -> float:
    """The minimum percent of GPUs left unallocated if pods as frequent as in the list ask for all GPUs, ignoring CPU and memory."""
    asking = load.classes.subset(load.classes.gpus > 0)
    count = nodes.capacity / float(asking.demand @ asking.weight)
    devices = nodes.capacity // WHOLE
    demand = type(asking)(asking.gpus, asking.milli, asking.cpu, asking.weight * count)
    return 100.0 * (1.0 - solve(demand, devices=devices, cpu=float("inf")).served / devices)
