"""Helpers that build whole clusters and policies, and read the plans made for them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodAffinityTerm, PodOptions, PodSpec, SpreadConstraint
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan, Reason
from gpuscaler.planning.state import State

NOW = 1_700_000_000.0
GI = 2**30
HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
TYPE = "node.kubernetes.io/instance-type"
ARCH = "kubernetes.io/arch"
PRODUCT = "nvidia.com/gpu.product"
GPU = "nvidia.com/gpu"
REPLICAS = Owner("ReplicaSet", "web-1", "u1")
DAEMON = Owner("DaemonSet", "agent", "u2")
JOB = Owner("Job", "train", "u3")


def room(*, gpus: int = 0, cpu: float = 8, memory: float = 32, pods: int = 110, **more: int) -> dict[str, int]:
    """Resources from GPUs, cores and GiB."""
    amounts = {"cpu": int(cpu * 1000), "memory": int(memory * GI), "pods": pods, **more}
    return {**amounts, GPU: gpus} if gpus else amounts


def offering(
    instance_type: str = "g.1",
    price: float = 1.0,
    *,
    pool: str = "main",
    zone: str = "z1",
    market: str = "on-demand",
    gpus: int = 1,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Any, ...] = (),
    count: int | None = None,
    **size: Any,
) -> Offering:
    own = {"gpuscaler.io/pool": pool, TYPE: instance_type, ZONE: zone, ARCH: "amd64", "karpenter.sh/capacity-type": market}
    if gpus:
        own[PRODUCT] = "A100"
    return Offering(pool, market, instance_type, zone, price, room(gpus=gpus, **size), {**own, **(labels or {})}, taints, count)


def pool(*offerings: Offering, **more: Any) -> Pool:
    """A pool with the pool name of its first offering."""
    return Pool(**{"name": offerings[0].pool, "offerings": offerings, **more})


def zones(instance_type: str = "g.1", price: float = 1.0, *, names: Sequence[str] = ("z1", "z2", "z3"), **more: Any) -> list[Offering]:
    """One offering at one price in several zones."""
    return [offering(instance_type, price, zone=zone, **more) for zone in names]


def node(name: str, of: Offering | None = None, *, labels: Mapping[str, str] | None = None, **more: Any) -> Node:
    """A node of the offering, two hours old."""
    of = of or offering()
    all_labels = {**of.labels, HOST: name, **(labels or {})}
    return Node(**{"name": name, "labels": all_labels, "allocatable": of.allocatable, "taints": of.taints, "created": NOW - 7200, **more})


def bare_node(name: str, labels: Mapping[str, str] | None = None, **more: Any) -> Node:
    """A large node of no offering, with no label but its hostname and ``labels``."""
    return Node(**{"name": name, "labels": {HOST: name, **(labels or {})}, "allocatable": room(cpu=64, memory=1024), **more})


def spec(*, namespace: str = "default", requests: Mapping[str, int] | None = None, **fields: Any) -> PodSpec:
    """A specification whose digest is that of its content; amounts as in :func:`amounts_of`."""
    amounts = (
        amounts_of(**{name: fields.pop(name) for name in ("gpus", "cpu", "memory") if name in fields}) if requests is None else requests
    )
    return PodSpec(
        digest=sha256(repr((namespace, sorted(amounts.items()), fields)).encode()).hexdigest(),
        namespace=namespace,
        requests=amounts,
        **fields,
    )


def amounts_of(*, gpus: int = 0, cpu: float = 1, memory: float = 1) -> dict[str, int]:
    amounts = {"cpu": int(cpu * 1000), "memory": int(memory * GI)}
    return {**amounts, GPU: gpus} if gpus else amounts


def pod(
    name: str,
    of: PodSpec | None = None,
    *,
    on: str = "",
    labels: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Pod:
    """A pending pod, or one that runs on node ``on``."""
    of = of or spec(gpus=1)
    fields = {"phase": "Running" if on else "Pending", "created": NOW - 60, "owner": REPLICAS, **more}
    return Pod(
        namespace=of.namespace,
        name=name,
        spec=of,
        labels=LabelSet(labels or {}),
        node_name=on,
        options=PodOptions(**(options or {})),
        **fields,
    )


def pods(name: str, count: int, of: PodSpec | None = None, **more: Any) -> list[Pod]:
    """``count`` pods called name-0, name-1, …"""
    return [pod(f"{name}-{number}", of, **more) for number in range(count)]


def daemon(name: str, of: PodSpec) -> Workload:
    return Workload("DaemonSet", of.namespace, name, template=of)


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))


def near(
    key: str, *, where: tuple[str, ...] = ("default",), spaces: LabelSelector | None = None, weight: int = 0, **labels: str
) -> PodAffinityTerm:
    """An affinity term over the topology ``key`` that selects pods with ``labels``."""
    return PodAffinityTerm(key, selector(**labels), where, spaces, weight)


def spread(key: str, *, skew: int = 1, hard: bool = True, **labels: str) -> SpreadConstraint:
    return SpreadConstraint(key, skew, hard, selector(**labels))


def term(*expressions: tuple[str, ...], fields: Iterable[tuple[str, ...]] = ()) -> NodeSelectorTerm:
    """A term of expressions ``(key, operator, *values)``."""
    return NodeSelectorTerm(tuple(map(_requirement, expressions)), tuple(map(_requirement, fields)))


def _requirement(expression: tuple[str, ...]) -> Requirement:
    key, operator, *values = expression
    return Requirement(key, operator, tuple(values))


def affinity(*expressions: tuple[str, ...], fields: Iterable[tuple[str, ...]] = ()) -> NodeSelector:
    """One term of expressions ``(key, operator, *values)``."""
    return NodeSelector((term(*expressions, fields=fields),))


def planned(items: Iterable[Item], *pools: Pool, state: State | None = None, now: float = NOW, **policy: Any) -> Plan:
    """The plan for ``items`` under ``pools`` (a pool of one-GPU machines at a dollar when none is given)."""
    return plan(Cluster.of(items), state or State(), Policy(pools or (pool(offering()),), **policy), now)


def bought(made: Plan, purpose: str = "demand") -> dict[str, int]:
    """Machines to buy, by instance type."""
    return dict(Counter(machine.instance_type for machine in made.machines if machine.purpose == purpose))


def zones_of(made: Plan) -> dict[str, int]:
    """Pods on machines to buy, by zone."""
    counts: Counter[str] = Counter()
    for machine in made.machines:
        counts[machine.zone] += len(machine.pods)
    return {zone: count for zone, count in counts.items() if count}


def shares(made: Plan) -> list[int]:
    """How many pods each machine to buy gets, most first."""
    return sorted((len(machine.pods) for machine in made.machines), reverse=True)


def placed(made: Plan) -> dict[str, str]:
    """The existing or ordered machine of each placed pod, by pod name without its namespace."""
    return {placement.pod.partition("/")[2]: placement.node for placement in made.placements}


def unplaced(made: Plan) -> list[str]:
    return [entry.pod.partition("/")[2] for entry in made.unplaced]


def ignored(made: Plan) -> dict[str, str]:
    return {entry.pod.partition("/")[2]: entry.reason for entry in made.ignored}


def reasons(made: Plan, name: str) -> tuple[Reason, ...]:
    return next(entry.reasons for entry in made.unplaced if entry.pod.partition("/")[2] == name)
