"""Nodes as planning sees them."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Resources
from gpuscaler.model.scheduled_events import ScheduledEvent
from gpuscaler.model.taints import Taint


class Node(Struct, frozen=True, gc=False, rename={"in_window": "ajar"}):
    """A node. ``allocatable`` is in the units of :data:`~gpuscaler.model.pods.Resources`; ``pods`` is its pod count limit.

    A machine that does not exist yet may become one of several: ``may_be`` has the labels of each, ``labels`` those that all share.
    ``bought`` is its machine's offering in the cloud's list: (pool, market, instance type, zone); None if it is not listed.
    ``unready_since`` is when the node stopped being Ready according to its condition; 0 if unknown. ``in_window`` means that the node
    admits only DaemonSet pods for a few seconds; its taints, and ``unschedulable``, are those that it has when it is closed again.
    ``scheduled_event`` is what the cloud will do to its machine, as an agent on the node reports it.
    ``ignored_findings`` are the checks whose findings about it are not reported.
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
    in_window: bool = False
    scheduled_event: ScheduledEvent | None = None
    ignored_findings: frozenset[str] = frozenset()


def first_label(node: Node, keys: tuple[str, ...]) -> str:
    """Return the value of the first of ``keys`` that the node has; empty if it has none."""
    return next((node.labels[key] for key in keys if key in node.labels), "")
