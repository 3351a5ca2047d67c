"""Nodes as planning sees them."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Resources
from gpuscaler.model.taints import Taint


class Node(Struct, frozen=True, gc=False):
    """One node. ``allocatable`` is in the units of :data:`~gpuscaler.model.pods.Resources`; ``pods`` is its pod count limit.

    A machine that does not exist yet may turn out to be one of several: ``may_be`` has the labels of each, ``labels`` what all share.
    ``bought`` is what its machine is by the cloud's own list: (pool, market, instance type, zone); None where it is not listed.
    ``unready_since`` is when a node that is not Ready ceased to be, as its condition says; 0 where it does not say. ``ajar`` says that
    we let only pods of DaemonSets come for now; its taints, and ``unschedulable``, are those that it has when it is closed again.
    """

    name: str
    labels: Mapping[str, str]
    allocatable: Resources
    capacity: Resources = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    provider_id: str = ""
    uid: str = ""
    created: float = 0.0
    deleted: float = 0.0
    scale_down_disabled: bool = False
    do_not_disrupt: bool = False
    warnings: tuple[str, ...] = ()
    may_be: tuple[Mapping[str, str], ...] = ()
    bought: OfferingKey | None = None
    unready_since: float = 0.0
    ajar: bool = False


def first_label(node: Node, keys: tuple[str, ...]) -> str:
    """The value of the first of ``keys`` that the node has; empty where it has none."""
    return next((node.labels[key] for key in keys if key in node.labels), "")
