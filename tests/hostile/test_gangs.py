"""Thousands of small gangs cause no deep recursion."""

import sys

import pytest
from tests.hostile.workloads import NOW, POOLS, cluster_of, gangs, ordinary, policy
from tests.planning.building import node as built
from tests.planning.building import offering, spec

from gpuscaler.model.table import NodeTable
from gpuscaler.planning.feasibility.static import Rows
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State


@pytest.mark.parametrize("distinct", [False, True])
def test_a_node_table_extended_thousands_of_times_needs_no_recursion(distinct: bool) -> None:
    rows = Rows(NodeTable([built("first")])).joined(Rows(NodeTable([built("second", offering(zone="z2"))])))
    depth = sys.getrecursionlimit()
    for number in range(2 * depth):
        name = f"n{number}"
        rows = rows.extended([built(name, offering(zone="z2" if number % 2 else "z1"))])
        if distinct:
            rows.verdict(spec(cpu=number + 1))
    mask, _ = rows.verdict(spec(gpus=1, node_selector=(("topology.kubernetes.io/zone", "z2"),)))

    assert mask.tolist() == [False, True, *([False, True] * depth)]
    table = rows.table
    assert table.allocatable("pods").tolist() == [110] * len(table)
    assert table.column("kubernetes.io/hostname").values[-1] == f"n{2 * depth - 1}"
    assert len(table.taints[0]) == len(table)
    assert table.undecided == ()


def test_an_ordinary_pod_is_planned_beside_600_gangs() -> None:
    made = plan(cluster_of([*gangs(600, 1, alike=True), *ordinary(1)]), State(), policy(POOLS), NOW)

    assert "others/o0" in {key for machine in made.machines for key in machine.pods}
