"""Nodes that say that they are one machine stay, and say why (I4)."""

from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, pool

from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.state import State

IDLE = State(idle_seconds=dict.fromkeys("abc", 7200.0))
POLICY = Policy((pool(offering(), idle_after=600.0),))
TWINS = [node("a", provider_id="i-1"), node("b", provider_id="i-1"), node("c", provider_id="i-2")]


def test_of_idle_nodes_with_one_provider_id_none_is_removed_and_each_names_another() -> None:
    plan = Planner(POLICY).plan(Cluster.of(TWINS), IDLE, NOW)

    assert [one.node for one in plan.removals] == ["c"]
    assert [(one.node, one.blocker, one.detail) for one in plan.blocked_nodes] == [
        ("a", "same-machine", "node b has the same spec.providerID, i-1"),
        ("b", "same-machine", "node a has the same spec.providerID, i-1"),
    ]


def test_once_one_of_them_is_gone_or_says_something_else_they_go() -> None:
    planner, cluster = Planner(POLICY), Cluster.of(TWINS)
    planner.plan(cluster, IDLE, NOW)

    gone = planner.plan(cluster.apply(Delta(deletes=((Node, "b"),))), IDLE, NOW)
    other = planner.plan(cluster.apply(Delta(upserts=(replace(TWINS[1], provider_id="i-3"),))), IDLE, NOW)
    assert [one.node for one in gone.removals] == ["a", "c"]
    assert [one.node for one in other.removals] == ["a", "b", "c"]


def test_nodes_that_do_not_say_which_machine_they_are_are_no_twins() -> None:
    nodes = [node("a", provider_id=""), node("b", provider_id="")]

    assert [one.node for one in Planner(POLICY).plan(Cluster.of(nodes), IDLE, NOW).removals] == ["a", "b"]
