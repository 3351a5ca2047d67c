"""Decoding of the parts of pod specifications that scheduling reads, from pods and from templates of workloads."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.selecting import WireLabelSelector, WireNodeSelector, WireNodeTerm, WireToleration, label_selector
from gpuscaler.model.decoding.storage.volumes import Volume, relevant_volumes, volume_uses
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import HostPort, PodAffinityTerm, PodSpec, SpreadConstraint
from gpuscaler.model.requests import Container, ContainerStatus, ResourceRequirements, pod_requests
from gpuscaler.model.wire import Int32, Int64, UnreadableError, Wire

#: The priorities that exist in every cluster; the API server resolves others, in pods but not in templates.
_BUILT_IN_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

#: Maximum size of a pod's placement rules, in bytes as JSON: five times the size of the longest lists of names in use.
MOST_RULES = 131_072

#: Tolerations that the DaemonSet controller adds to its pods (``pkg/controller/daemon/util/daemonset_util.go``).
_DAEMON_TOLERATIONS = tuple(
    WireToleration(f"node.kubernetes.io/{taint}", "Exists", None, effect)
    for taint, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
_DAEMON_HOST_NETWORK = WireToleration("node.kubernetes.io/network-unavailable", "Exists", None, "NoSchedule")


class WireAffinityTerm(Wire):
    topology_key: str | None = None
    label_selector: WireLabelSelector | None = None
    namespaces: list[str | None] | None = None
    namespace_selector: WireLabelSelector | None = None
    match_label_keys: list[str | None] | None = None
    mismatch_label_keys: list[str | None] | None = None


class WireWeightedTerm(Wire):
    weight: Int32 | None = None
    pod_affinity_term: WireAffinityTerm | None = None


class WirePodAffinity(Wire):
    required_during_scheduling_ignored_during_execution: list[WireAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[WireWeightedTerm] | None = None


class WirePreferredNode(Wire):
    weight: Int32 | None = None
    preference: WireNodeTerm | None = None


class WireNodeAffinity(Wire):
    required_during_scheduling_ignored_during_execution: WireNodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[WirePreferredNode] | None = None


class WireAffinity(Wire):
    node_affinity: WireNodeAffinity | None = None
    pod_affinity: WirePodAffinity | None = None
    pod_anti_affinity: WirePodAffinity | None = None


class WireSpread(Wire):
    topology_key: str | None = None
    max_skew: Int32 | None = None
    when_unsatisfiable: str | None = None
    label_selector: WireLabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str | None] | None = None


class Named(Wire):
    name: str | None = None


class WorkloadReference(Wire):
    """The native pod group of a pod in v1alpha1; each replica of a group is a separate gang."""

    name: str | None = None
    pod_group: str | None = None
    pod_group_replica_key: str | None = None


class SchedulingGroup(Wire):
    """The native pod group of a pod in later versions."""

    pod_group_name: str | None = None


class WirePodSpec(Wire):
    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None
    overhead: dict[str, str | int | float | None] | None = None
    node_selector: dict[str, str | None] | None = None
    affinity: WireAffinity | None = None
    tolerations: list[WireToleration] | None = None
    topology_spread_constraints: list[WireSpread] | None = None
    volumes: list[Volume] | None = None
    host_network: bool | None = None
    scheduling_gates: list[Named] | None = None
    resource_claims: list[Named] | None = None
    scheduler_name: str | None = None
    priority: Int32 | None = None
    priority_class_name: str | None = None
    termination_grace_period_seconds: Int64 | None = None
    restart_policy: str | None = None
    workload_ref: WorkloadReference | None = None
    scheduling_group: SchedulingGroup | None = None

    @property
    def group(self) -> str:
        """The native pod group: its name, or ``workload/group/replica``; "" if there is none."""
        if self.scheduling_group is not None:
            return self.scheduling_group.pod_group_name or ""
        if (owner := self.workload_ref) is None:
            return ""
        return "/".join(part for part in (owner.name, owner.pod_group, owner.pod_group_replica_key) if part)


class Source(Struct, gc=False, omit_defaults=True):
    """All input of a specification; its encoding is the key under which the result is cached.

    ``keyed_labels`` are the pod's labels named by matchLabelKeys or mismatchLabelKeys; ``statuses`` are only set while a resize makes them
    differ from the specification; ``pod_status`` if the pod has pod-level resources; ``pod_name`` only if a volume is named after it.
    """

    namespace: str
    spec: WirePodSpec
    keyed_labels: dict[str, str] = {}
    statuses: list[ContainerStatus] = []
    pod_status: ContainerStatus | None = None
    infeasible: bool = False
    pod_name: str = ""


def intern_spec(
    wire: WirePodSpec,
    *,
    namespace: str,
    labels: LabelSet,
    interner: Interner,
    pod_name: str = "",
    statuses: Sequence[ContainerStatus] = (),
    pod_status: ContainerStatus | None = None,
    infeasible: bool = False,
    at: str = "spec",
) -> PodSpec:
    """Return the shared specification of ``wire``, which is modified: fields that differ from pod to pod are removed.

    Raises :class:`UnreadableError` with a path below ``at``.
    """
    _check_size(wire, at)
    wire.node_name = None
    wire.workload_ref = None
    wire.scheduling_group = None
    source = Source(namespace, wire, pod_status=pod_status, infeasible=infeasible)
    if wire.volumes:
        wire.volumes = relevant_volumes(wire.volumes) or None
        if wire.volumes and any(volume.ephemeral is not None for volume in wire.volumes):
            source.pod_name = pod_name
    if wire.affinity is not None or wire.topology_spread_constraints:
        source.keyed_labels = _keyed_labels(wire, labels)
    source.statuses = [status for status in statuses if status.resources is not None]
    try:
        return interner.spec(source, lambda: _build(source))
    except UnreadableError as error:
        raise UnreadableError(f"{at}.{error.path}", error.seen, error.expected) from error


def _check_size(wire: WirePodSpec, at: str) -> None:
    """Raise :class:`UnreadableError` for excessively large rules, before they are processed."""
    rules = (wire.affinity, wire.tolerations, wire.topology_spread_constraints, wire.node_selector)
    if any(rules) and (size := len(msgspec.json.encode(rules))) > MOST_RULES:
        seen = f"affinity, tolerations, spread constraints and node selector of {size} bytes"
        raise UnreadableError(at, seen, f"at most {MOST_RULES} bytes")


def daemon_tolerations(wire: WirePodSpec) -> None:
    """Add the tolerations that pods of a DaemonSet get in addition to those of its template."""
    added = (*_DAEMON_TOLERATIONS, _DAEMON_HOST_NETWORK) if wire.host_network else _DAEMON_TOLERATIONS
    wire.tolerations = [*(wire.tolerations or ()), *(item for item in added if item not in (wire.tolerations or ()))]


def _keyed_labels(wire: WirePodSpec, labels: LabelSet) -> dict[str, str]:
    """Return the labels with values that become part of selectors."""
    keys: set[str] = set()
    for constraint in wire.topology_spread_constraints or ():
        keys.update(key for key in constraint.match_label_keys or () if key)
    for affinity in (wire.affinity.pod_affinity, wire.affinity.pod_anti_affinity) if wire.affinity else ():
        if affinity is None:
            continue
        terms = list(affinity.required_during_scheduling_ignored_during_execution or ())
        weighted = affinity.preferred_during_scheduling_ignored_during_execution or ()
        terms.extend(item.pod_affinity_term for item in weighted if item.pod_affinity_term is not None)
        for term in terms:
            keys.update(key for key in (*(term.match_label_keys or ()), *(term.mismatch_label_keys or ())) if key)
    return {key: labels[key] for key in sorted(keys) if key in labels}


def _build(source: Source) -> PodSpec:
    wire = source.spec
    affinity = wire.affinity or WireAffinity()
    nodes = affinity.node_affinity or WireNodeAffinity()
    pods, anti = affinity.pod_affinity or WirePodAffinity(), affinity.pod_anti_affinity or WirePodAffinity()
    required = nodes.required_during_scheduling_ignored_during_execution
    preferred = nodes.preferred_during_scheduling_ignored_during_execution
    volumes = wire.volumes or ()
    return PodSpec(
        digest="",
        namespace=source.namespace,
        requests=_requests(source),
        node_selector=tuple(sorted((key, value or "") for key, value in (wire.node_selector or {}).items())),
        node_affinity=required.read() if required is not None else None,
        preferred_nodes=tuple((item.weight or 0, item.preference.read()) for item in preferred or () if item.preference is not None),
        tolerations=tuple(item.read() for item in wire.tolerations or ()),
        host_ports=_host_ports(wire),
        affinity=_terms(pods, source),
        anti_affinity=_terms(anti, source),
        preferred_affinity=_weighted_terms(pods, source),
        preferred_anti_affinity=_weighted_terms(anti, source),
        spread=_spread(source),
        volumes=volume_uses(volumes, source.pod_name),
        resource_claims=tuple(item.name or "" for item in wire.resource_claims or ()),
        scheduler_name=wire.scheduler_name or "default-scheduler",
        priority=wire.priority if wire.priority is not None else _BUILT_IN_PRIORITIES.get(wire.priority_class_name or "", 0),
        gates=tuple(item.name or "" for item in wire.scheduling_gates or ()),
        local_storage=tuple(volume.name or "" for volume in volumes if volume.local),
        grace_seconds=30 if wire.termination_grace_period_seconds is None else wire.termination_grace_period_seconds,
        restart_policy=wire.restart_policy or "Always",
    )


def _requests(source: Source) -> dict[str, int]:
    """Return the requests, sorted by name: equal requests must have equal digests."""
    wire = source.spec
    requests = pod_requests(
        wire.containers or (),
        wire.init_containers or (),
        overhead=wire.overhead,
        pod_level=wire.resources,
        pod_status=source.pod_status,
        statuses=source.statuses,
        infeasible=source.infeasible,
    )
    return {name: requests[name] for name in sorted(requests)}


def _host_ports(wire: WirePodSpec) -> tuple[HostPort, ...]:
    """Return the host ports of containers and sidecars. With hostNetwork every container port is one."""
    holders = [*(container for container in wire.init_containers or () if container.sidecar), *(wire.containers or ())]
    ports: dict[HostPort, None] = {}
    for container in holders:
        for port in container.ports or ():
            number = port.host_port or (port.container_port if wire.host_network else None)
            if number is not None and number > 0:
                ports[HostPort(number, port.protocol or "TCP", port.host_ip or "0.0.0.0")] = None
    return tuple(ports)


def _term(wire: WireAffinityTerm, source: Source, weight: int = 0) -> PodAffinityTerm:
    names = tuple(sorted({name for name in wire.namespaces or () if name}))
    return PodAffinityTerm(
        topology_key=wire.topology_key or "",
        selector=label_selector(
            wire.label_selector,
            labels=source.keyed_labels,
            match_keys=wire.match_label_keys,
            mismatch_keys=wire.mismatch_label_keys,
        ),
        namespaces=names if names or wire.namespace_selector is not None else (source.namespace,),
        namespace_selector=label_selector(wire.namespace_selector),
        weight=weight,
    )


def _terms(wire: WirePodAffinity, source: Source) -> tuple[PodAffinityTerm, ...]:
    return tuple(_term(item, source) for item in wire.required_during_scheduling_ignored_during_execution or ())


def _weighted_terms(wire: WirePodAffinity, source: Source) -> tuple[PodAffinityTerm, ...]:
    items = wire.preferred_during_scheduling_ignored_during_execution or ()
    return tuple(_term(item.pod_affinity_term, source, item.weight or 0) for item in items if item.pod_affinity_term is not None)


def _spread(source: Source) -> tuple[SpreadConstraint, ...]:
    """Return the spread constraints that are DoNotSchedule or ScheduleAnyway: no scheduler acts on others."""
    return tuple(
        SpreadConstraint(
            topology_key=item.topology_key or "",
            max_skew=item.max_skew if item.max_skew is not None else 1,
            hard=item.when_unsatisfiable == "DoNotSchedule",
            selector=label_selector(item.label_selector, labels=source.keyed_labels, match_keys=item.match_label_keys, stored_once=False),
            min_domains=item.min_domains if item.min_domains is not None else 1,
            honor_affinity=(item.node_affinity_policy or "Honor") == "Honor",
            honor_taints=item.node_taints_policy == "Honor",
        )
        for item in source.spec.topology_spread_constraints or ()
        if item.when_unsatisfiable in ("DoNotSchedule", "ScheduleAnyway")
    )
