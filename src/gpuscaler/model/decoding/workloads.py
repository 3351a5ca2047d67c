"""Decoding of controllers, budgets and classes."""

from typing import Any

from msgspec import field

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.pods import Condition, controller
from gpuscaler.model.decoding.selecting import WireLabelSelector, label_selector
from gpuscaler.model.decoding.specs import WirePodSpec, daemon_tolerations, intern_spec
from gpuscaler.model.labels import NO_LABELS, LabelSet
from gpuscaler.model.options import (
    DISRUPTION,
    IGNORE_FINDINGS,
    NO_CHECKS,
    STEERING,
    parse_disruption,
    parse_ignored_findings,
    parse_steering,
)
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.requests import node_resources
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.wire import Int32, Metadata, Wire, WireObject, require_name
from gpuscaler.model.workloads import Namespace, PodDisruptionBudget, PriorityClass, RuntimeClass, Workload


class Template(Wire):
    metadata: Metadata | None = None
    spec: WirePodSpec | None = None


class ControllerSpec(Wire):
    """The union of the specifications of all controllers: their fields do not conflict."""

    replicas: Int32 | None = None
    parallelism: Int32 | None = None
    completions: Int32 | None = None
    suspend: bool | None = None
    selector: WireLabelSelector | None = None
    template: Template | None = None


class ControllerStatus(Wire):
    replicas: Int32 | None = None
    active: Int32 | None = None
    succeeded: Int32 | None = None
    current_number_scheduled: Int32 | None = None
    desired_number_scheduled: Int32 | None = None
    conditions: list[Condition] | None = None


class Annotations(Wire):
    """The annotations that are read from owners and namespaces of pods, and from budgets."""

    disruption: str | None = field(default=None, name=DISRUPTION)
    steering: str | None = field(default=None, name=STEERING)
    ignore_findings: str | None = field(default=None, name=IGNORE_FINDINGS)


class AnnotatedMetadata(Metadata):
    annotations: Annotations | None = None


class WireController(WireObject):
    metadata: AnnotatedMetadata | None = None
    spec: ControllerSpec | None = None
    status: ControllerStatus | None = None


def read_deployment(wire: WireController, interner: Interner) -> Workload:
    return _replicated(wire, interner, "Deployment")


def read_replica_set(wire: WireController, interner: Interner) -> Workload:
    return _replicated(wire, interner, "ReplicaSet")


def read_stateful_set(wire: WireController, interner: Interner) -> Workload:
    return _replicated(wire, interner, "StatefulSet")


def _replicated(wire: WireController, interner: Interner, kind: str) -> Workload:
    spec, status = wire.spec or ControllerSpec(), wire.status or ControllerStatus()
    return _workload(wire, interner, kind, replicas=1 if spec.replicas is None else spec.replicas, observed=status.replicas or 0)


def read_daemon_set(wire: WireController, interner: Interner) -> Workload:
    """Decode a DaemonSet; its template gets the tolerations that the controller adds to its pods."""
    status = wire.status or ControllerStatus()
    if wire.spec and wire.spec.template and wire.spec.template.spec:
        daemon_tolerations(wire.spec.template.spec)
    desired, observed = status.desired_number_scheduled or 0, status.current_number_scheduled or 0
    return _workload(wire, interner, "DaemonSet", replicas=desired, observed=observed)


def read_job(wire: WireController, interner: Interner) -> Workload:
    """Decode a Job; its replicas are its parallelism, limited to the remaining completions, and 0 once it is finished."""
    spec, status = wire.spec or ControllerSpec(), wire.status or ControllerStatus()
    desired = 1 if spec.parallelism is None else spec.parallelism
    if spec.completions is not None:
        desired = min(desired, max(0, spec.completions - (status.succeeded or 0)))
    if any(item.type in ("Complete", "Failed") and item.status == "True" for item in status.conditions or ()):
        desired = 0
    return _workload(wire, interner, "Job", replicas=desired, observed=status.active or 0)


def _workload(wire: WireController, interner: Interner, kind: str, *, replicas: int, observed: int) -> Workload:
    name, metadata = require_name(wire.metadata)
    spec = wire.spec or ControllerSpec()
    namespace = interner.text(metadata.namespace or "default")
    template, labels = _template(spec.template, namespace, interner)
    selector = label_selector(spec.selector)
    if selector is None and labels:
        # The old API groups defaulted the selector to the template's labels.
        selector = label_selector(WireLabelSelector(match_labels=dict(labels)))
    disruption, warnings = disruption_annotation(metadata)
    return Workload(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=metadata.uid or "",
        owner=controller(metadata.owner_references, metadata.uid, interner),
        replicas=max(0, replicas),
        observed=max(0, observed),
        completions=spec.completions,
        suspended=bool(spec.suspend),
        selector=selector,
        template=template,
        template_labels=labels,
        disruption=disruption,
        warnings=warnings,
        ignored_findings=_ignored_findings(metadata),
    )


def disruption_annotation(metadata: AnnotatedMetadata) -> tuple[str, tuple[str, ...]]:
    """Return the object's annotation about moving its pods to save money, and warnings."""
    return parse_disruption(metadata.annotations.disruption) if metadata.annotations is not None else ("", ())


def _ignored_findings(metadata: AnnotatedMetadata) -> frozenset[str]:
    return parse_ignored_findings(metadata.annotations.ignore_findings) if metadata.annotations is not None else NO_CHECKS


def _template(template: Template | None, namespace: str, interner: Interner) -> tuple[PodSpec | None, LabelSet]:
    if template is None:
        return None, NO_LABELS
    labels = interner.labels(template.metadata.labels if template.metadata else None)
    if template.spec is None:
        return None, labels
    return intern_spec(template.spec, namespace=namespace, labels=labels, interner=interner, at="spec.template.spec"), labels


class BudgetSpec(Wire):
    selector: WireLabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None
    min_available: Any = None
    max_unavailable: Any = None


class BudgetStatus(Wire):
    disruptions_allowed: Int32 | None = None
    expected_pods: Int32 | None = None
    current_healthy: Int32 | None = None
    desired_healthy: Int32 | None = None


class WireBudget(WireObject):
    metadata: AnnotatedMetadata | None = None
    spec: BudgetSpec | None = None
    status: BudgetStatus | None = None


def read_budget(wire: WireBudget, interner: Interner) -> PodDisruptionBudget:
    """Decode a budget; an empty selector selects every pod of the namespace in v1, and none in v1beta1."""
    name, metadata = require_name(wire.metadata)
    spec, status = wire.spec or BudgetSpec(), wire.status or BudgetStatus()
    selector = label_selector(spec.selector)
    if wire.api_version == "policy/v1beta1" and selector == LabelSelector():
        selector = None
    return PodDisruptionBudget(
        namespace=interner.text(metadata.namespace or "default"),
        name=name,
        selector=selector,
        disruptions_allowed=max(0, status.disruptions_allowed or 0),
        always_evict_unhealthy=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
        uid=metadata.uid or "",
        min_available=_rule(spec.min_available),
        max_unavailable=_rule(spec.max_unavailable),
        expected=status.expected_pods,
        healthy=status.current_healthy,
        desired=status.desired_healthy,
        ignored_findings=_ignored_findings(metadata),
    )


def _rule(value: object) -> int | str | None:
    """A number or a percentage of pods; None for what is neither, which must not hide the budget."""
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


class WirePriorityClass(WireObject):
    metadata: Metadata | None = None
    value: Int32 | None = None
    global_default: bool | None = None


def read_priority_class(wire: WirePriorityClass, interner: Interner) -> PriorityClass:
    name, _ = require_name(wire.metadata)
    return PriorityClass(interner.text(name), wire.value or 0, bool(wire.global_default))


class WireNamespace(WireObject):
    metadata: AnnotatedMetadata | None = None


def read_namespace(wire: WireNamespace, interner: Interner) -> Namespace:
    """Decode a namespace, with the label of its name that the API server sets on it."""
    name, metadata = require_name(wire.metadata)
    disruption, warnings = disruption_annotation(metadata)
    steered, unread = parse_steering(metadata.annotations.steering if metadata.annotations is not None else None)
    labels = interner.labels({**(metadata.labels or {}), "kubernetes.io/metadata.name": name})
    return Namespace(interner.text(name), labels, disruption, (*warnings, *unread), steered, _ignored_findings(metadata))


class RuntimeOverhead(Wire):
    pod_fixed: dict[str, str | int | float | None] | None = None


class RuntimeScheduling(Wire):
    node_selector: dict[str, str] | None = None


class RuntimeSpec(Wire):
    """The fields of v1alpha1 that later versions have at the top level."""

    runtime_handler: str | None = None
    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None


class WireRuntimeClass(WireObject):
    metadata: Metadata | None = None
    handler: str | None = None
    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None
    spec: RuntimeSpec | None = None


def read_runtime_class(wire: WireRuntimeClass, interner: Interner) -> RuntimeClass:
    name, _ = require_name(wire.metadata)
    old = wire.spec or RuntimeSpec()
    overhead, scheduling = wire.overhead or old.overhead, wire.scheduling or old.scheduling
    return RuntimeClass(
        name=interner.text(name),
        handler=wire.handler or old.runtime_handler or "",
        overhead=node_resources(overhead.pod_fixed if overhead else None, "overhead.podFixed"),
        node_selector=tuple(sorted(((scheduling.node_selector if scheduling else None) or {}).items())),
    )
