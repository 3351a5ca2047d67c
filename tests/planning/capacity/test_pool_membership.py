"""The pool of a node."""

import pytest

from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.capacity.pool_membership import market_of, members
from gpuscaler.settings import parse_policy

TWINS = """
region: us-east-1
pools:
  - {name: a, types: [g5.xlarge], markets: [on-demand, spot], zones: [us-east-1a]}
  - {name: b, types: [g5.xlarge], markets: [on-demand, spot], zones: [us-east-1a]}
"""
LABELS = {"node.kubernetes.io/instance-type": "g5.xlarge", "topology.kubernetes.io/zone": "us-east-1a"}


@pytest.mark.parametrize("labels", [{}, {"gpuscaler.io/pool": "a", "karpenter.sh/capacity-type": "on-demand"}])
def test_the_cloud_list_decides_the_pool_of_a_node_before_labels(labels: dict[str, str]) -> None:
    bought = OfferingKey("b", "spot", "g5.xlarge", "us-east-1a")
    node = Node("n", {**LABELS, **labels}, {}, bought=bought)

    member = members({"n": node}, parse_policy(TWINS), frozenset())["n"]

    assert member.offering is not None
    assert (member.pool.name, member.offering.key, market_of(node)) == ("b", bought, "spot")


def test_the_cloud_list_distinguishes_the_pools_of_nodes_with_the_same_labels() -> None:
    nodes = {name: Node(name, LABELS, {}, bought=OfferingKey(name, "spot", "g5.xlarge", "us-east-1a")) for name in ("a", "b")}

    assert {name: member.pool.name for name, member in members(nodes, parse_policy(TWINS), frozenset()).items()} == {"a": "a", "b": "b"}


def test_a_machine_of_a_deleted_pool_belongs_to_no_pool() -> None:
    node = Node("n", LABELS, {}, bought=OfferingKey("old", "spot", "g5.xlarge", "us-east-1a"))

    assert members({"n": node}, parse_policy(TWINS), frozenset()) == {}


def test_without_a_cloud_list_labels_decide_the_pool_of_a_node() -> None:
    node = Node("n", {**LABELS, "gpuscaler.io/pool": "b"}, {})

    assert members({"n": node}, parse_policy(TWINS), frozenset())["n"].pool.name == "b"


def test_an_unlisted_node_belongs_to_no_pool_regardless_of_its_labels() -> None:
    nodes = {
        "labelled": Node("labelled", {**LABELS, "gpuscaler.io/pool": "b"}, {}),
        "alike": Node("alike", LABELS, {}),
        "ours": Node("ours", {}, {}, bought=OfferingKey("b", "spot", "g5.xlarge", "us-east-1a")),
    }

    pools = members(nodes, parse_policy(TWINS), frozenset({"labelled", "alike"}))

    assert {name: member.pool.name for name, member in pools.items()} == {"ours": "b"}
