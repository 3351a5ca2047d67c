"""Helpers to find the nodes that the filters admit a pod to."""

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import PodSpec
from gpuscaler.planning.feasibility.snapshot import Room


def room(*items: Item) -> Room:
    return Room.of(Cluster.of(items))


def rows(room: Room, wanted: PodSpec, **labels: str) -> list[str]:
    """The names of the nodes that admit the pod."""
    mask = room.verdict(wanted, LabelSet(labels)).mask
    return [name for name, admitted in zip(room.table.names, mask, strict=True) if admitted]


def rejection(room: Room, wanted: PodSpec, name: str, **labels: str) -> tuple[str, str]:
    """The first filter that rejects the pod on the node ``name``, and its explanation."""
    return room.reason(wanted, LabelSet(labels), room.table.row[name])
