"""Short ways to write clusters and to ask for their scale-down."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.model.well_known import POOL_LABEL
from gpuscaler.planning.capacity.limits import fleets, remaining, worth
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down import Down, Situation, scale_down
from gpuscaler.planning.state import State

NOW = 1_700_000_000.0
GI = 2**30
BIG = {"cpu": 8_000, "memory": 32 * GI, "pods": 20}
REPLICAS = Owner("ReplicaSet", "web-1", "u1")
DAEMON = Owner("DaemonSet", "agent", "u2")
JOB = Owner("Job", "train", "u3")


def offering(
    instance_type: str = "m.big", price: float = 1.0, *, pool: str = "main", market: str = "on-demand", zone: str = "z1", **more: Any
) -> Offering:
    labels = {
        POOL_LABEL: pool,
        "node.kubernetes.io/instance-type": instance_type,
        "topology.kubernetes.io/zone": zone,
        "karpenter.sh/capacity-type": market,
    }
    return Offering(pool, market, instance_type, zone, price, **{"allocatable": BIG, "labels": labels, **more})


def pool(*offerings: Offering, name: str = "main", **more: Any) -> Pool:
    return Pool(name, offerings or (offering(pool=name),), **more)


def node(name: str, of: Offering | None = None, **more: Any) -> Node:
    """A node of an offering, two hours old."""
    of = of or offering()
    labels = {**of.labels, "kubernetes.io/hostname": name}
    return Node(**{"name": name, "labels": labels, "allocatable": of.allocatable, "taints": of.taints, "created": NOW - 7200, **more})


def spec(*, namespace: str = "default", cpu: int = 1000, memory: int = GI, requests: Any = None, **fields: Any) -> PodSpec:
    wanted = {"cpu": cpu, "memory": memory} if requests is None else requests
    return PodSpec(digest=repr((namespace, sorted(wanted.items()), fields)), namespace=namespace, requests=wanted, **fields)


def pod(
    name: str,
    on: str = "",
    of: PodSpec | None = None,
    *,
    owner: Owner = REPLICAS,
    labels: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Pod:
    """A pod that may be moved to save money, unless ``options`` say something else of its disruption."""
    body = of or spec()
    rest = {"phase": "Running" if on else "Pending", "created": NOW - 7200, "started": NOW - 7200, **more}
    return Pod(
        namespace=body.namespace,
        name=name,
        spec=body,
        labels=LabelSet({"app": "web"} if labels is None else labels),
        node_name=on,
        owner=owner,
        options=PodOptions(**{"disruption": "allow", **(options or {})}),
        **rest,
    )


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))


def situation(
    items: Iterable[Any],
    *pools: Pool,
    state: State | None = None,
    now: float = NOW,
    taken: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
    **policy: Any,
) -> Situation:
    """Where ``items`` stand. Without ``state`` every node has been idle for an hour.

    ``places`` says, by name, to which node the plan sends pods that wait.
    """
    cluster = Cluster.of(items)
    room = Room.of(cluster)
    for key, name in (places or {}).items():
        room.place(cluster.pods[key].spec, cluster.pods[key].labels, room.table.row[name])
    state = State(idle_seconds=dict.fromkeys(cluster.nodes, 3600.0)) if state is None else state
    rules = Policy(pools or (pool(),), **policy)
    belongs = members(cluster.nodes, rules)
    have = fleets(rules, {}, state, {name: worth(cluster.nodes[name], one) for name, one in belongs.items()})
    return Situation(
        cluster=cluster,
        state=state,
        policy=rules,
        now=now,
        room=room,
        present=Room.of(cluster) if places else None,
        members=belongs,
        taken=frozenset((*taken, *(places or {}).values())),
        templates=Templates(cluster, rules, state.blocked_offerings).settled(state.unsettled_offerings),
        limits=remaining(rules, state, have).for_mix(),
    )


def down(items: Iterable[Any], *pools: Pool, **more: Any) -> Down:
    return scale_down(situation(items, *pools, **more))


def blockers(answer: Down) -> dict[str, str]:
    return {blocked.node: blocked.blocker for blocked in answer.blocked}


def detail(answer: Down, name: str) -> str:
    return next(blocked.detail for blocked in answer.blocked if blocked.node == name)


def removed(answer: Down) -> list[str]:
    return sorted(removal.node for removal in answer.removals)
