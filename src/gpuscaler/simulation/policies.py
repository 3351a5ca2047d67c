"""Policies: what decides which machines are bought and given back. One today; each later one is another entry of :data:`POLICIES`."""

from collections.abc import Callable, Mapping

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

#: What a run asks: the cluster as it stands, what is remembered, the time in seconds since the epoch.
Decide = Callable[[Cluster, State, float], Plan]


def gpuscaler(policy: Policy) -> Decide:
    """The production planner, as it is."""
    return Planner(policy).plan


POLICIES: Mapping[str, Callable[[Policy], Decide]] = {"gpuscaler": gpuscaler}
