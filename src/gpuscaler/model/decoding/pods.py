"""Decoding of pods."""

from collections.abc import Sequence

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.specs import WirePodSpec, intern_spec
from gpuscaler.model.options import NO_CHECKS, PodAnnotations, parse_checkpoint, parse_ignored_findings
from gpuscaler.model.pods import NO_OWNER, Owner, Pod
from gpuscaler.model.requests import Container, ContainerStatus, ResourceRequirements
from gpuscaler.model.wire import Metadata, OwnerReference, UnreadableError, Wire, WireObject, parse_timestamp, require_name


class PodMetadata(Metadata):
    annotations: PodAnnotations | None = None


class Condition(Wire):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    last_transition_time: str | None = None


class PodStatus(Wire):
    phase: str | None = None
    reason: str | None = None
    conditions: list[Condition] | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int | float | None] | None = None
    resize: str | None = None


class WirePod(WireObject):
    metadata: PodMetadata | None = None
    spec: WirePodSpec | None = None
    status: PodStatus | None = None


NO_STATUS = PodStatus()
_NO_RESOURCES = ResourceRequirements()


def read_pod(wire: WirePod, interner: Interner) -> Pod:
    """Decode a pod. Raises :class:`~gpuscaler.model.wire.UnreadableError`."""
    name, metadata = require_name(wire.metadata)
    spec = wire.spec or WirePodSpec()
    status = wire.status or NO_STATUS
    namespace = interner.text(metadata.namespace or "default")
    labels = interner.labels(metadata.labels)
    owner = controller(metadata.owner_references, metadata.uid, interner)
    node_name = interner.text(spec.node_name) if spec.node_name else ""
    options, warnings = interner.options(metadata.annotations, labels, spec.group)
    scheduled, infeasible, ready = _conditions(status.conditions or ())
    interned = intern_spec(
        spec,
        namespace=namespace,
        labels=labels,
        interner=interner,
        pod_name=name,
        statuses=_resized(spec, status),
        pod_status=_pod_level_status(spec, status),
        # Until 1.32 this was a separate field.
        infeasible=infeasible or status.resize == "Infeasible",
    )
    requested, answered = parse_checkpoint(metadata.annotations)
    unschedulable = None if scheduled is None else scheduled.status == "False" and scheduled.reason == "Unschedulable"
    return Pod(
        namespace=namespace,
        name=name,
        spec=interned,
        labels=labels,
        uid=metadata.uid or "",
        node_name=node_name,
        nominated_node=interner.text(status.nominated_node_name) if status.nominated_node_name else "",
        phase=interner.text(status.phase) if status.phase else "Pending",
        created=parse_timestamp(metadata.creation_timestamp, "metadata.creationTimestamp"),
        deleted=parse_timestamp(metadata.deletion_timestamp, "metadata.deletionTimestamp"),
        started=parse_timestamp(status.start_time, "status.startTime"),
        unschedulable=unschedulable,
        unschedulable_since=parse_timestamp(scheduled.last_transition_time, "status.conditions") if unschedulable and scheduled else 0.0,
        owner=owner,
        options=options,
        warnings=warnings,
        checkpoint_requested=requested,
        checkpointed=answered,
        ready=None if ready is None else ready.status == "True",
        reason=interner.text(status.reason) if status.reason and status.phase == "Failed" else "",
        unready_since=_unready_since(ready) if ready is not None and ready.status != "True" else 0.0,
        ignored_findings=parse_ignored_findings(metadata.annotations.ignore_findings) if metadata.annotations is not None else NO_CHECKS,
    )


def controller(references: Sequence[OwnerReference] | None, uid: str | None, interner: Interner) -> Owner:
    """Return the owner that controls an object: the first with ``controller``. An object that claims to own itself has no owner."""
    for reference in references or ():
        if reference.controller and (not reference.uid or reference.uid != uid):
            return interner.owner(reference.kind or "", reference.name or "", reference.uid or "")
    return NO_OWNER


def _unready_since(ready: Condition) -> float:
    """Return when the condition Ready changed. An unreadable time does not cause the pod to be skipped."""
    try:
        return parse_timestamp(ready.last_transition_time, "status.conditions")
    except UnreadableError:
        return 0.0


def _conditions(conditions: Sequence[Condition]) -> tuple[Condition | None, bool, Condition | None]:
    """Return the condition PodScheduled, whether a pending resize is infeasible, and the condition Ready."""
    scheduled, infeasible, ready = None, False, None
    for condition in conditions:
        if condition.type == "PodScheduled":
            scheduled = condition
        elif condition.type == "PodResizePending":
            infeasible = condition.reason == "Infeasible"
        elif condition.type == "Ready":
            ready = condition
    return scheduled, infeasible, ready


def _resized(spec: WirePodSpec, status: PodStatus) -> list[ContainerStatus]:
    """Return the statuses that can change the effective requests of their container: those with differing requests."""
    statuses = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    if all(entry.resources is None for entry in statuses):
        return []
    desired: dict[str | None, Container] = {container.name: container for container in spec.containers or ()}
    desired.update((container.name, container) for container in spec.init_containers or () if container.sidecar)
    return [
        entry for entry in statuses if entry.resources is not None and entry.name in desired and _is_resized(entry, desired[entry.name])
    ]


def _pod_level_status(spec: WirePodSpec, status: PodStatus) -> ContainerStatus | None:
    """Return the node's status of pod-level resources, if the pod requests any; from 1.36 on every pod has such a status."""
    if spec.resources is None or status.resources is None:
        return None
    return ContainerStatus(resources=status.resources, allocated_resources=status.allocated_resources)


def _is_resized(status: ContainerStatus, container: Container) -> bool:
    desired, actual = container.resources or _NO_RESOURCES, status.resources or _NO_RESOURCES
    requests, limits = desired.requests or {}, desired.limits
    if actual.requests != requests and (actual.requests or requests):
        return True
    if limits and limits != requests and not limits.keys() <= requests.keys():
        # Limits that imply requests are left to the full computation.
        return True
    return status.allocated_resources is not None and status.allocated_resources != requests
