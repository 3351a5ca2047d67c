"""Nodes from the wire."""

from collections.abc import Sequence

from msgspec import field

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.pods import Condition
from gpuscaler.model.decoding.selecting import WireTaint
from gpuscaler.model.nodes import Node
from gpuscaler.model.options import boolean
from gpuscaler.model.quantities import unrepeated
from gpuscaler.model.requests import node_resources
from gpuscaler.model.wire import Metadata, UnreadableError, Wire, WireObject, named, seconds


class NodeAnnotations(Wire):
    scale_down_disabled: str | None = field(default=None, name="cluster-autoscaler.kubernetes.io/scale-down-disabled")
    do_not_disrupt: str | None = field(default=None, name="karpenter.sh/do-not-disrupt")


class NodeMetadata(Metadata):
    annotations: NodeAnnotations | None = None


class WireNodeSpec(Wire):
    provider_id: str | None = field(default=None, name="providerID")
    unschedulable: bool | None = None
    taints: list[WireTaint] | None = None


class NodeStatus(Wire):
    allocatable: dict[str, str | int | float | None] | None = None
    capacity: dict[str, str | int | float | None] | None = None
    conditions: list[Condition] | None = None


class WireNode(WireObject):
    metadata: NodeMetadata | None = None
    spec: WireNodeSpec | None = None
    status: NodeStatus | None = None


def read_node(wire: WireNode, interner: Interner) -> Node:
    """The node that ``wire`` describes. Raises :class:`~gpuscaler.model.wire.UnreadableError`.

    A node without ``allocatable`` offers its capacity, as the API server fills it in. One that never reported a condition is ready:
    only files written by hand have such nodes.
    """
    name, metadata = named(wire.metadata)
    spec, status = wire.spec or WireNodeSpec(), wire.status or NodeStatus()
    annotations = metadata.annotations or NodeAnnotations()
    warnings: list[str] = []
    text = interner.text
    capacity = node_resources(status.capacity, "status.capacity")
    return Node(
        name=text(name),
        labels={text(key): text(value or "") for key, value in (metadata.labels or {}).items()},
        allocatable=capacity if status.allocatable is None else node_resources(status.allocatable, "status.allocatable"),
        capacity=capacity,
        taints=tuple(taint.read() for taint in spec.taints or ()),
        unschedulable=bool(spec.unschedulable),
        ready=_ready(status.conditions or ()),
        provider_id=spec.provider_id or "",
        uid=metadata.uid or "",
        created=seconds(metadata.creation_timestamp, "metadata.creationTimestamp"),
        deleted=seconds(metadata.deletion_timestamp, "metadata.deletionTimestamp"),
        scale_down_disabled=_flag("cluster-autoscaler.kubernetes.io/scale-down-disabled", annotations.scale_down_disabled, warnings),
        do_not_disrupt=_flag("karpenter.sh/do-not-disrupt", annotations.do_not_disrupt, warnings),
        warnings=tuple(warnings),
        unready_since=_unready_since(status.conditions or ()),
    )


def _ready(conditions: Sequence[Condition]) -> bool:
    statuses = [condition.status for condition in conditions if condition.type == "Ready"]
    return not conditions or "True" in statuses


def _unready_since(conditions: Sequence[Condition]) -> float:
    """When the node ceased to be Ready, 0 while it is Ready; a moment that cannot be read is no reason to set the node aside."""
    for condition in conditions:
        if condition.type == "Ready" and condition.status != "True":
            try:
                return seconds(condition.last_transition_time, "status.conditions[Ready].lastTransitionTime")
            except UnreadableError:
                return 0.0
    return 0.0


def _flag(name: str, value: str | None, warnings: list[str]) -> bool:
    """A protecting annotation that cannot be read protects: the harmless side is to leave the node alone."""
    if value is None:
        return False
    try:
        return boolean(value.strip())
    except ValueError as error:
        warnings.append(f"{name}: saw {unrepeated(value)}, expected {error}; the node is left alone")
        return True
