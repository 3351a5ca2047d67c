"""Decoding of nodes."""

from collections.abc import Sequence

from msgspec import field

from gpuscaler.model.azure_names import canonical_provider_id
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.pods import Condition
from gpuscaler.model.decoding.selecting import WireTaint
from gpuscaler.model.nodes import Node
from gpuscaler.model.options import IGNORE_FINDINGS, parse_boolean, parse_ignored_findings
from gpuscaler.model.quantities import describe_unreadable
from gpuscaler.model.requests import node_resources
from gpuscaler.model.scheduled_events import SCHEDULED_EVENT, ScheduledEvent, parse_scheduled_event
from gpuscaler.model.wire import Metadata, UnreadableError, Wire, WireObject, parse_timestamp, require_name


class NodeAnnotations(Wire):
    scale_down_disabled: str | None = field(default=None, name="cluster-autoscaler.kubernetes.io/scale-down-disabled")
    do_not_disrupt: str | None = field(default=None, name="karpenter.sh/do-not-disrupt")
    scheduled_event: str | None = field(default=None, name=SCHEDULED_EVENT)
    ignore_findings: str | None = field(default=None, name=IGNORE_FINDINGS)


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
    """Decode a node. Raises :class:`~gpuscaler.model.wire.UnreadableError`.

    A node without ``allocatable`` offers its capacity, as defaulted by the API server. A node without conditions counts as ready: only
    hand-written files contain such nodes.
    """
    name, metadata = require_name(wire.metadata)
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
        provider_id=canonical_provider_id(spec.provider_id or ""),
        uid=metadata.uid or "",
        created=parse_timestamp(metadata.creation_timestamp, "metadata.creationTimestamp"),
        deleted=parse_timestamp(metadata.deletion_timestamp, "metadata.deletionTimestamp"),
        scale_down_disabled=_flag("cluster-autoscaler.kubernetes.io/scale-down-disabled", annotations.scale_down_disabled, warnings),
        do_not_disrupt=_flag("karpenter.sh/do-not-disrupt", annotations.do_not_disrupt, warnings),
        unready_since=_unready_since(status.conditions or ()),
        scheduled_event=_scheduled_event(annotations.scheduled_event, warnings),
        warnings=tuple(warnings),
        ignored_findings=parse_ignored_findings(annotations.ignore_findings),
    )


def _ready(conditions: Sequence[Condition]) -> bool:
    statuses = [condition.status for condition in conditions if condition.type == "Ready"]
    return not conditions or "True" in statuses


def _unready_since(conditions: Sequence[Condition]) -> float:
    """Return when the node stopped being Ready, 0 while it is Ready. An unreadable time does not cause the node to be skipped."""
    for condition in conditions:
        if condition.type == "Ready" and condition.status != "True":
            try:
                return parse_timestamp(condition.last_transition_time, "status.conditions[Ready].lastTransitionTime")
            except UnreadableError:
                return 0.0
    return 0.0


def _flag(name: str, value: str | None, warnings: list[str]) -> bool:
    """Read a protecting annotation. An unreadable one protects the node, which is the safe choice."""
    if value is None:
        return False
    try:
        return parse_boolean(value.strip())
    except ValueError as error:
        warnings.append(f"{name}: saw {describe_unreadable(value)}, expected {error}; the node is not removed")
        return True


def _scheduled_event(value: str | None, warnings: list[str]) -> ScheduledEvent | None:
    """Read the annotation of an agent on the node. An unreadable one announces nothing."""
    if value is None:
        return None
    try:
        return parse_scheduled_event(value)
    except ValueError as error:
        warnings.append(f"{SCHEDULED_EVENT}: saw {describe_unreadable(value)}, expected {error}; ignored")
        return None
