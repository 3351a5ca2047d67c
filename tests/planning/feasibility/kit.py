"""Short ways to write nodes, pods and rooms in the tests of the filters."""

from collections.abc import Mapping
from typing import Any

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodAffinityTerm, PodSpec
from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.planning.feasibility.snapshot import Room

ROOMY = {"cpu": 64_000, "memory": 2**40, "pods": 110}


HOST = "kubernetes.io/hostname"


def node(
    name: str,
    *,
    taints: tuple[Any, ...] = (),
    unschedulable: bool = False,
    offers: Any = None,
    also: Mapping[str, str] | None = None,
    **labels: str,
) -> Node:
    """A node with a hostname, these labels, and ``also`` those whose keys are no Python names."""
    known = {HOST: name, **labels, **(also or {})}
    return Node(name=name, labels=known, allocatable=ROOMY if offers is None else offers, taints=taints, unschedulable=unschedulable)


def spec(*, namespace: str = "default", requests: Any = None, **fields: Any) -> PodSpec:
    """A specification whose digest is its content."""
    wanted = {"cpu": 100} if requests is None else requests
    return PodSpec(digest=repr((namespace, sorted(wanted.items()), fields)), namespace=namespace, requests=wanted, **fields)


def pod(name: str, on: str = "", *, of: PodSpec | None = None, phase: str = "Running", deleted: float = 0.0, **labels: str) -> Pod:
    """A pod of specification ``of`` bound to node ``on``."""
    body = spec() if of is None else of
    return Pod(namespace=body.namespace, name=name, spec=body, labels=LabelSet(labels), node_name=on, phase=phase, deleted=deleted)


def room(*items: Item) -> Room:
    return Room.of(Cluster.of(items))


def rows(room: Room, wanted: PodSpec, **labels: str) -> list[str]:
    """The names of the nodes that admit the pod."""
    mask = room.verdict(wanted, LabelSet(labels)).mask
    return [name for name, admitted in zip(room.table.names, mask, strict=True) if admitted]


def why(room: Room, wanted: PodSpec, name: str, **labels: str) -> tuple[str, str]:
    """The first filter that rejects the pod on the node ``name``, and its words."""
    return room.reason(wanted, LabelSet(labels), room.table.row[name])


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))


def term(*expressions: tuple[Any, ...], fields: tuple[tuple[Any, ...], ...] = ()) -> NodeSelectorTerm:
    """A term of ``(key, operator, *values)``."""
    return NodeSelectorTerm(tuple(_requirement(e) for e in expressions), tuple(_requirement(f) for f in fields))


def affinity(*terms: NodeSelectorTerm) -> NodeSelector:
    return NodeSelector(terms)


def _requirement(expression: tuple[Any, ...]) -> Requirement:
    key, operator, *values = expression
    return Requirement(key, operator, tuple(values))


def near(key: str, *, where: tuple[str, ...] = ("default",), spaces: LabelSelector | None = None, **labels: str) -> PodAffinityTerm:
    """An affinity term over the topology ``key`` that selects pods with ``labels``."""
    return PodAffinityTerm(key, selector(**labels), where, spaces)
