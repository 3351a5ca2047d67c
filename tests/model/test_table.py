"""Nodes as arrays."""

from gpuscaler.model.nodes import Node
from gpuscaler.model.table import NodeTable
from gpuscaler.model.taints import Taint

ARRIVING, SOFT = Taint("gpuscaler.io/arriving"), Taint("gpuscaler.io/idle", effect="PreferNoSchedule")


def named(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def table(**taints: tuple[Taint, ...]) -> NodeTable:
    return NodeTable([Node(name=name, labels={}, allocatable={"cpu": 1000}, taints=taints) for name, taints in taints.items()])


def test_the_table_finds_nodes_by_the_key_of_any_of_their_taints() -> None:
    nodes = table(a=(ARRIVING,), b=(), c=(SOFT, ARRIVING), d=(SOFT,))
    assert named(nodes.tainted(ARRIVING.key)) == ["a", "c"]
    assert named(nodes.tainted(SOFT.key)) == ["c", "d"]
    assert nodes.tainted("gpuscaler.io/leaving") == []


def test_the_table_finds_no_node_without_the_taint() -> None:
    assert NodeTable(()).tainted(ARRIVING.key) == []


def test_a_removed_taint_is_no_longer_found() -> None:
    nodes = table(a=(ARRIVING,), b=(ARRIVING,))
    assert named(nodes.tainted(ARRIVING.key)) == ["a", "b"]
    after, _ = nodes.changed({"a": Node(name="a", labels={}, allocatable={"cpu": 1000}), "b": None})
    assert after.tainted(ARRIVING.key) == []
