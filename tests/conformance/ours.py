"""Our side of the comparison: decodes a case and judges it with :class:`gpuscaler.planning.feasibility.snapshot.Room`."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.table import Mask, NodeTable
from gpuscaler.planning.feasibility.snapshot import Room

from .asking import Json

#: For one pod: the names of the plug-ins that refuse a node, by the node's name; nodes that are accepted are missing.
Refusals = dict[str, list[str]]
NOT_CLUSTER = ("pending", "replay", "explain")


class NotUnderstoodError(Exception):
    """Our decoder skipped an object of a case, so there is nothing to compare."""


def judge(case: Json, *, otherwise: bool = False) -> list[Refusals]:
    """Our verdict on every pending pod of a plain case, on every node.

    ``otherwise`` starts with the nodes that hold pods, judges every pod there, and appends the other nodes as a plan appends machines;
    this must make no difference.
    """
    interner = Interner()
    cluster = cluster_of(case, interner)
    room = Room.of(cluster)
    pods = [decoded_pod(pod, interner) for pod in case.get("pending") or ()]
    if otherwise:
        used, unused = split(cluster)
        smaller = Room.of(cluster, NodeTable(used))
        for pod in pods:
            smaller.verdict(pod.spec, pod.labels)
        room = smaller.extended(unused)
    return [refusals(room, pod) for pod in pods]


def replay(case: Json, theirs: Iterable[Mapping[str, list[str]]], *, otherwise: bool = False) -> list[Refusals]:
    """Our verdict at every step of a replay. Each pod is placed where ``theirs``, the oracle's verdicts, admits it.

    ``otherwise`` makes a new room at every step, in which all pods placed before are placed one after the other; this must make no
    difference. At the end, placing all of them at once must make no difference either, and after removing all of them the room must be
    as at the start.
    """
    interner = Interner()
    room = start = Room.of(cluster_of(case, interner))
    taken: list[tuple[Pod, int]] = []
    verdicts = []
    for step, refused in zip(case["replay"], theirs, strict=True):
        pod = decoded_pod(case["pending"][step["pod"]], interner)
        verdicts.append(refusals(room, pod))
        where = next((name for name in step["nodes"] if name not in refused), None)
        if where is not None:
            taken.append((pod, room.table.row[where]))
            original = room
            room = Room.of(room.cluster) if otherwise else room.copy()
            for placed, row in taken if otherwise else taken[-1:]:
                # Placing and removing first must leave no trace; every later step checks this as well.
                room.place(placed.spec, placed.labels, row)
                room.remove(placed.spec, placed.labels, row)
                assert placed is not pod or refusals(room, pod) == verdicts[-1], "removing a pod left a trace"
                room.place(placed.spec, placed.labels, row)
            assert refusals(original, pod) == verdicts[-1], "placing a pod in a copy of a room changed the room"
    pods = [decoded_pod(pod, interner) for pod in case["pending"]]
    assert judged(placed_at_once(start, taken).extended(()), pods) == judged(room, pods), "it makes a difference to place pods at once"
    for pod, row in taken:
        room.remove(pod.spec, pod.labels, row)
    assert judged(room, pods) == judged(start, pods), "removing every pod left a trace"
    return verdicts


def judged(room: Room, pods: Iterable[Pod]) -> list[Refusals]:
    return [refusals(room, pod) for pod in pods]


def placed_at_once(room: Room, taken: Iterable[tuple[Pod, int]]) -> Room:
    """A new room like ``room`` in which the pods of one kind are placed together, before the first verdict."""
    together: dict[tuple[str, LabelSet], tuple[Pod, dict[int, int]]] = {}
    for pod, row in taken:
        rows = together.setdefault((pod.spec.digest, pod.labels), (pod, {}))[1]
        rows[row] = rows.get(row, 0) + 1
    new = Room.of(room.cluster)
    for pod, rows in together.values():
        new.place_all(pod.spec, pod.labels, np.array([*rows]), np.array([*rows.values()]))
    return new


def cluster_of(case: Json, interner: Interner) -> Cluster:
    """The cluster with all objects of the case. Pending pods are part of the cluster, as in planning, without a node."""
    objects = [raw for kind, items in case.items() if kind not in NOT_CLUSTER for raw in items]
    waiting = [{**pod, "spec": {**(pod.get("spec") or {}), "nodeName": None}} for pod in case.get("pending") or ()]
    return Cluster.of(item for raw in (*objects, *waiting) for item in decoded(raw, interner))


def split(cluster: Cluster) -> tuple[list[Node], list[Node]]:
    """Nodes that hold pods, and nodes that hold none."""
    used = [node for node in cluster.table.nodes if node.name in cluster.on_node]
    return used, [node for node in cluster.table.nodes if node.name not in cluster.on_node]


def decoded(raw: Json, interner: Interner) -> list[Item]:
    result = decode_object(raw, interner)
    if isinstance(result, Skipped):
        raise NotUnderstoodError(f"{result.object}: {result.reason}")
    if result is None:
        raise NotUnderstoodError(f"{raw.get('kind')} is not a kind that is decoded")
    return list(result) if isinstance(result, Sequence) else [result]


def decoded_pod(raw: Json, interner: Interner) -> Pod:
    (pod,) = decoded(raw, interner)
    assert isinstance(pod, Pod)
    return pod


def refusals(room: Room, pod: Pod) -> Refusals:
    """The refusals of the filters of ``room``, and of NodeName, which a room omits since pods with a node name are bound, never planned."""
    verdict = room.verdict(pod.spec, pod.labels)
    refused: Refusals = {}
    for plugin, mask in verdict.excluded.items():
        for name in names(room, mask):
            refused.setdefault(name, []).append(plugin)
    assert set(refused) == set(names(room, ~verdict.mask)), "the mask and the plug-ins of a verdict contradict each other"
    if pod.node_name:
        for name in room.table.names:
            if name != pod.node_name:
                refused.setdefault(name, []).append("NodeName")
    return refused


def names(room: Room, mask: Mask) -> list[str]:
    return [room.table.names[row] for row in np.flatnonzero(mask)]
