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
def test_two_thousand_joint_gangs_cause_no_recursion_and_no_slowdown(distinct: bool) -> None:
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


def test_six_hundred_gangs_are_planned_beside_an_ordinary_pod() -> None:
    made = plan(cluster_of([*gangs(600, 1, alike=True), *ordinary(1)]), State(), policy(POOLS), NOW)

    assert "others/o0" in {key for machine in made.machines for key in machine.pods}
