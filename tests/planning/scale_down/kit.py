"""Helpers to write clusters and to compute their scale-down."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.capacity.limits import fleets, limit_usage, remaining
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down import ScaleDownResult, Situation, scale_down
from gpuscaler.planning.state import State

BIG = offering("m.big", gpus=0, pods=20)


def big(name: str, **more: Any) -> Node:
    """A machine without GPUs, two hours old."""
    return node(name, BIG, **more)


def movable(name: str, on: str = "", of: PodSpec | None = None, *, options: Mapping[str, Any] | None = None, **more: Any) -> Pod:
    """A pod without GPUs that may be moved to save money, unless ``options`` override that."""
    of = of or spec()
    fields = {"labels": {"app": "web"}, "created": NOW - 7200, "started": NOW - 7200, **more}
    return pod(name, of, on=on, options={"disruption": "allow", **(options or {})}, **fields)


def situation(
    items: Iterable[Any],
    *pools: Pool,
    state: State | None = None,
    now: float = NOW,
    taken: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
    **policy: Any,
) -> Situation:
    """The situation of a cluster of ``items``. Without ``state`` every node has been idle for an hour.

    ``places`` gives the node that the plan assigns to pending pods, by key.
    """
    cluster = Cluster.of(items)
    room = Room.of(cluster)
    for key, name in (places or {}).items():
        room.place(cluster.pods[key].spec, cluster.pods[key].labels, room.table.row[name])
    state = State(idle_seconds=dict.fromkeys(cluster.nodes, 3600.0)) if state is None else state
    rules = Policy(pools or (pool(BIG),), **policy)
    belongs = members(cluster.nodes, rules, frozenset())
    have = fleets(rules, {}, state, {name: limit_usage(cluster.nodes[name], member) for name, member in belongs.items()})
    return Situation(
        cluster=cluster,
        state=state,
        policy=rules,
        now=now,
        room=room,
        present=Room.of(cluster) if places else None,
        members=belongs,
        taken=frozenset((*taken, *(places or {}).values())),
        templates=Templates(cluster, rules, state.blocked_offerings).without_unsettled(state.no_moves_to),
        limits=remaining(rules, state, have).for_mix(),
    )


def scale_down_of(items: Iterable[Any], *pools: Pool, **more: Any) -> ScaleDownResult:
    return scale_down(situation(items, *pools, **more))


def blockers(result: ScaleDownResult) -> dict[str, str]:
    return {blocked.node: blocked.blocker for blocked in result.blocked}


def detail(result: ScaleDownResult, name: str) -> str:
    return next(blocked.detail for blocked in result.blocked if blocked.node == name)


def removed(result: ScaleDownResult) -> list[str]:
    return sorted(removal.node for removal in result.removals)
