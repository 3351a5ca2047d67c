"""Filling: the rows that take the pods of a class."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.building import node, offering, pod, spec
from tests.soaking import examples

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import NO_LABELS
from gpuscaler.model.pods import NO_OPTIONS
from gpuscaler.model.table import Array
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.topology import shape
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_up.draft.placing import PLENTY, PlacementArea, fill_rows

ONE = spec(cpu=1, memory=0.001)
MACHINE = offering(gpus=0, cpu=8, pods=20)
ranks = st.sampled_from((0, 1, 7, 2**50))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), ranks, st.integers(-3, 3)), min_size=1, max_size=12), st.integers(1, 30), st.booleans())
def test_nodes_are_filled_by_rank_then_least_free_capacity_then_preference(
    rows: list[tuple[int, int, int]], count: int, likes: bool
) -> None:
    used, rank, scores = zip(*rows, strict=True)
    nodes = [node(f"n{number:02}", MACHINE) for number in range(len(rows))]
    running = [pod(f"r-{number}", spec(cpu=cores, memory=0.001), on=f"n{number:02}") for number, cores in enumerate(used) if cores]
    cluster = Cluster.of([*nodes, *running])
    room = Room.of(cluster)
    wanted = PodClass(ONE, NO_LABELS, NO_OPTIONS, tuple(f"default/p-{number:02}" for number in range(count)))
    area = PlacementArea(
        cluster,
        room,
        templates=np.zeros(len(rows), dtype=np.bool_),
        usable=np.ones(len(rows), dtype=np.bool_),
        rank=array(rank),
        limits=np.full(len(rows), PLENTY, dtype=np.int64),
        scores=array(scores) if likes else None,
    )
    shares = [(share.row, share.count) for share in fill_rows(area, wanted, shape(cluster, wanted), count)]
    order = sorted(range(len(rows)), key=lambda row: (rank[row], 8 - used[row], -scores[row] if likes else 0, row))
    expected, left = [], count
    for row in order:
        taken = min(8 - used[row], left)
        expected += [(row, taken)] if taken else []
        left -= taken
    assert shares == expected
    assert room.free("cpu").tolist() == [(8 - used[row] - dict(shares).get(row, 0)) * 1000 for row in range(len(rows))]


def array(values: tuple[int, ...]) -> Array:
    return np.array(values, dtype=np.int64)
