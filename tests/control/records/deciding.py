"""Decisions for tests."""

from tests.planning.building import NOW, node, offering, pool

from gpuscaler.control.records.events.records import Decision
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

POLICY = Policy((pool(offering("g.1", 1.0, gpus=1, cpu=4), idle_after=60.0),))


def make_decision(cluster: Cluster, state: State, policy: Policy, now: float) -> Decision:
    return Decision("d-1", now, "buys", cluster, state, policy, plan(cluster, state, policy, now, live=True))


def removal_decision() -> Decision:
    """A decision to remove a node."""
    state = State(idle_seconds={"n1": 1e6})
    return make_decision(Cluster.of([node("n1", offering("g.1", 1.0, gpus=1, cpu=4))]), state, POLICY, NOW)
