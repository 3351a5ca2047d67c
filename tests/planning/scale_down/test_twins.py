"""Nodes with the same provider ID stay, with a blocker (I4)."""

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


def test_idle_nodes_with_the_same_provider_id_stay_and_name_each_other() -> None:
    plan = Planner(POLICY).plan(Cluster.of(TWINS), IDLE, NOW)

    assert [removal.node for removal in plan.removals] == ["c"]
    assert [(blocked.node, blocked.blocker, blocked.detail) for blocked in plan.blocked_nodes] == [
        ("a", "same-machine", "node b has the same spec.providerID, i-1"),
        ("b", "same-machine", "node a has the same spec.providerID, i-1"),
    ]


def test_nodes_are_removed_after_their_twin_is_gone_or_has_another_provider_id() -> None:
    planner, cluster = Planner(POLICY), Cluster.of(TWINS)
    planner.plan(cluster, IDLE, NOW)

    plan_without_twin = planner.plan(cluster.apply(Delta(deletes=((Node, "b"),))), IDLE, NOW)
    other = planner.plan(cluster.apply(Delta(upserts=(replace(TWINS[1], provider_id="i-3"),))), IDLE, NOW)
    assert [removal.node for removal in plan_without_twin.removals] == ["a", "c"]
    assert [removal.node for removal in other.removals] == ["a", "b", "c"]


def test_nodes_without_a_provider_id_are_not_twins() -> None:
    nodes = [node("a", provider_id=""), node("b", provider_id="")]

    assert [removal.node for removal in Planner(POLICY).plan(Cluster.of(nodes), IDLE, NOW).removals] == ["a", "b"]
