"""The columns of ``kubectl get``, kind by kind.

Source: ``k8s.io/kubernetes/pkg/printers/internalversion/printers.go`` and ``k8s.io/apimachinery/pkg/util/duration``, Kubernetes 1.35.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpuscaler.embedded.apiserver.kubectl.autoscaler_words import autoscaler_targets
from gpuscaler.embedded.apiserver.kubectl.pod_words import pod_ready, pod_restarts, pod_status
from gpuscaler.embedded.apiserver.store import Object

Cell = Callable[[Object, float], Any]
_NONE: Final = "<none>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, the function for its cells, and whether only ``-o wide`` shows it."""

    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False

    def definition(self) -> Object:
        priority = 1 if self.wide else 0
        return {
            "name": self.name,
            "type": self.type,
            "format": "name" if self.name == "Name" else "",
            "description": "",
            "priority": priority,
        }


def human_duration(seconds: float) -> str:
    """A duration as kubectl shows ages: ``45s``, ``5m10s``, ``3h``, ``2d4h``."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if whole < -1:
        return "<invalid>"
    if whole < 120:
        return f"{max(0, whole)}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d") if days < 2920 else f"{days // 365}y"


def _two(large: int, unit: str, small: int, part: str) -> str:
    return f"{large}{unit}{small}{part}" if small else f"{large}{unit}"


def _since(text: Any, now: float) -> str:
    try:
        return human_duration(now - datetime.fromisoformat(text).timestamp())
    except (TypeError, ValueError):
        return "<unknown>"


def value_at(obj: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for step in path.split("."):
        obj = obj.get(step) if isinstance(obj, Mapping) else None
    return obj


def _get(path: str, other: Any = "") -> Cell:
    return lambda obj, _: value if (value := value_at(obj, path)) is not None else other


def _word(path: str, other: str = _NONE) -> Cell:
    return lambda obj, _: str(value) if (value := value_at(obj, path)) not in (None, "") else other


def _count(path: str) -> Cell:
    return lambda obj, _: len(value_at(obj, path) or ())


def _of(done: str, wanted: str) -> Cell:
    return lambda obj, _: f"{value_at(obj, done) or 0}/{value_at(obj, wanted) or 0}"


def _bool(path: str) -> Cell:
    return lambda obj, _: bool(value_at(obj, path))


def _text(path: str) -> Cell:
    return lambda obj, _: "true" if value_at(obj, path) else "false"


def _time(path: str, other: str = "<unknown>") -> Cell:
    return lambda obj, now: _since(value, now) if (value := value_at(obj, path)) else other


def _names(path: str, field: str) -> Cell:
    return lambda obj, _: ",".join(str(item.get(field, "")) for item in value_at(obj, path) or ())


def _selector(path: str) -> Cell:
    def cell(obj: Object, _: float) -> str:
        selector = value_at(obj, path) or {}
        terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
        terms += [f"{item.get('key')} {item.get('operator')} {item.get('values')}" for item in selector.get("matchExpressions") or ()]
        return ",".join(terms) or _NONE

    return cell


def _columns(*middle: Column, wide: Sequence[Column] = (), age: bool = True) -> tuple[Column, ...]:
    return (Column("Name", _get("metadata.name")), *middle, *((_AGE,) if age else ()), *wide)


def _wide(name: str, cell: Cell) -> Column:
    return Column(name, cell, wide=True)


def _number(name: str, path: str) -> Column:
    return Column(name, _get(path, 0), "integer")


def _templates(path: str, *, selector: str = "spec.selector") -> tuple[Column, ...]:
    containers = f"{path}.spec.containers"
    return (
        _wide("Containers", _names(containers, "name")),
        _wide("Images", _names(containers, "image")),
        *((_wide("Selector", _selector(selector)),) if selector else ()),
    )


def _node_status(node: Object, _: float) -> str:
    ready = next((item for item in value_at(node, "status.conditions") or () if item.get("type") == "Ready"), None)
    word = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if value_at(node, "spec.unschedulable") else word


def _roles(node: Object, _: float) -> str:
    labels = value_at(node, "metadata.labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)} | {labels.get("kubernetes.io/role", "")}
    return ",".join(sorted(role for role in roles if role)) or _NONE


def _address(kind: str) -> Cell:
    return lambda node, _: next((a["address"] for a in value_at(node, "status.addresses") or () if a.get("type") == kind), _NONE)


def _job_status(job: Object, _: float) -> str:
    met = {item.get("type") for item in value_at(job, "status.conditions") or () if item.get("status") == "True"}
    if value_at(job, "metadata.deletionTimestamp") and not met & {"Complete", "Failed"}:
        return "Terminating"
    return next((word for word in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet") if word in met), "Running")


def _completions(job: Object, _: float) -> str:
    done, wanted, parallel = (
        value_at(job, "status.succeeded") or 0,
        value_at(job, "spec.completions"),
        value_at(job, "spec.parallelism") or 0,
    )
    return f"{done}/{wanted}" if wanted is not None else f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(job: Object, now: float) -> str:
    started, ended = value_at(job, "status.startTime"), value_at(job, "status.completionTime")
    if not started:
        return ""
    return _since(started, datetime.fromisoformat(ended).timestamp() if ended else now)


def _controller(obj: Object, _: float) -> str:
    owner: Object = next((reference for reference in value_at(obj, "metadata.ownerReferences") or () if reference.get("controller")), {})
    group = str(owner.get("apiVersion", "")).rpartition("/")[0]
    return f"{str(owner['kind']).lower()}{f'.{group}' if group else ''}/{owner['name']}" if owner else _NONE


def _last_seen(event: Object, now: float) -> str:
    times = (
        value_at(event, "series.lastObservedTime"),
        value_at(event, "lastTimestamp"),
        value_at(event, "firstTimestamp"),
        value_at(event, "eventTime"),
    )
    return _since(next((time for time in times if time), None), now)


def _involved(event: Object, _: float) -> str:
    kind, name = str(value_at(event, "involvedObject.kind") or "").lower(), value_at(event, "involvedObject.name")
    return f"{kind}/{name}" if name else kind


def _service(api: Object, _: float) -> str:
    service = value_at(api, "spec.service")
    return f"{service.get('namespace')}/{service.get('name')}" if isinstance(service, Mapping) else "Local"


def _available(api: Object, _: float) -> str:
    condition: Object = next((item for item in value_at(api, "status.conditions") or () if item.get("type") == "Available"), {})
    status, reason = condition.get("status", "Unknown"), condition.get("reason", "")
    return f"{status} ({reason})" if status == "False" and reason else str(status)


_AGE: Final = Column("Age", _time("metadata.creationTimestamp"))
GENERIC: Final = _columns()
_REPLICAS: Final = (
    _number("Desired", "spec.replicas"),
    _number("Current", "status.replicas"),
    _number("Ready", "status.readyReplicas"),
)
COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "pods": _columns(
        Column("Ready", pod_ready),
        Column("Status", pod_status),
        Column("Restarts", pod_restarts),
        wide=(
            _wide("IP", _word("status.podIP")),
            _wide("Node", _word("spec.nodeName")),
            _wide("Nominated Node", _word("status.nominatedNodeName")),
            _wide("Readiness Gates", lambda _, __: _NONE),
        ),
    ),
    "nodes": (
        *_columns(Column("Status", _node_status), Column("Roles", _roles)),
        Column("Version", _get("status.nodeInfo.kubeletVersion")),
        _wide("Internal-IP", _address("InternalIP")),
        _wide("External-IP", _address("ExternalIP")),
        _wide("OS-Image", _word("status.nodeInfo.osImage", "<unknown>")),
        _wide("Kernel-Version", _word("status.nodeInfo.kernelVersion", "<unknown>")),
        _wide("Container-Runtime", _word("status.nodeInfo.containerRuntimeVersion", "<unknown>")),
    ),
    "namespaces": _columns(Column("Status", _get("status.phase"))),
    "configmaps": _columns(Column("Data", _count("data"), "integer")),
    "secrets": _columns(Column("Type", _get("type")), Column("Data", _count("data"), "integer")),
    "events": (
        Column("Last Seen", _last_seen),
        Column("Type", _get("type")),
        Column("Reason", _get("reason")),
        Column("Object", _involved),
        _wide("Source", lambda event, _: value_at(event, "source.component") or event.get("reportingComponent") or ""),
        Column("Message", lambda event, _: str(event.get("message") or "").strip()),
        _wide("First Seen", lambda event, now: _since(event.get("firstTimestamp") or event.get("eventTime"), now)),
        _wide("Count", lambda event, _: value_at(event, "series.count") or event.get("count") or 1),
        _wide("Name", _get("metadata.name")),
    ),
    "persistentvolumes": _columns(
        Column("Capacity", _get("spec.capacity.storage")),
        Column("Reclaim Policy", _get("spec.persistentVolumeReclaimPolicy")),
        Column("Status", _get("status.phase")),
        Column(
            "Claim", lambda volume, _: "/".join(filter(None, (value_at(volume, f"spec.claimRef.{part}") for part in ("namespace", "name"))))
        ),
        Column("StorageClass", _get("spec.storageClassName")),
    ),
    "persistentvolumeclaims": _columns(
        Column("Status", _get("status.phase")),
        Column("Volume", _get("spec.volumeName")),
        Column("Capacity", _get("status.capacity.storage")),
        Column("StorageClass", _get("spec.storageClassName")),
    ),
    "replicationcontrollers": _columns(*_REPLICAS, wide=_templates("spec.template", selector="")),
    "replicasets.apps": _columns(*_REPLICAS, wide=_templates("spec.template")),
    "deployments.apps": _columns(
        Column("Ready", _of("status.readyReplicas", "spec.replicas")),
        _number("Up-to-date", "status.updatedReplicas"),
        _number("Available", "status.availableReplicas"),
        wide=_templates("spec.template"),
    ),
    "statefulsets.apps": _columns(
        Column("Ready", _of("status.readyReplicas", "spec.replicas")), wide=_templates("spec.template", selector="")
    ),
    "controllerrevisions.apps": _columns(Column("Controller", _controller), _number("Revision", "revision")),
    "daemonsets.apps": _columns(
        _number("Desired", "status.desiredNumberScheduled"),
        _number("Current", "status.currentNumberScheduled"),
        _number("Ready", "status.numberReady"),
        _number("Up-to-date", "status.updatedNumberScheduled"),
        _number("Available", "status.numberAvailable"),
        Column(
            "Node Selector",
            lambda obj, _: (
                ",".join(f"{k}={v}" for k, v in sorted((value_at(obj, "spec.template.spec.nodeSelector") or {}).items())) or _NONE
            ),
        ),
        wide=_templates("spec.template"),
    ),
    "jobs.batch": _columns(
        Column("Status", _job_status),
        Column("Completions", _completions),
        Column("Duration", _job_duration),
        wide=_templates("spec.template"),
    ),
    "cronjobs.batch": _columns(
        Column("Schedule", _get("spec.schedule")),
        Column("Timezone", _word("spec.timeZone")),
        Column("Suspend", _text("spec.suspend")),
        Column("Active", _count("status.active"), "integer"),
        Column("Last Schedule", _time("status.lastScheduleTime", _NONE)),
        wide=_templates("spec.jobTemplate.spec.template", selector=""),
    ),
    "horizontalpodautoscalers.autoscaling": _columns(
        Column("Reference", lambda hpa, _: f"{value_at(hpa, 'spec.scaleTargetRef.kind')}/{value_at(hpa, 'spec.scaleTargetRef.name')}"),
        Column("Targets", autoscaler_targets),
        Column("MinPods", lambda hpa, _: "<unset>" if (least := value_at(hpa, "spec.minReplicas")) is None else str(least)),
        _number("MaxPods", "spec.maxReplicas"),
        _number("Replicas", "status.currentReplicas"),
    ),
    "apiservices.apiregistration.k8s.io": _columns(Column("Service", _service), Column("Available", _available)),
    "poddisruptionbudgets.policy": _columns(
        Column(
            "Min Available",
            lambda obj, _: str(value_at(obj, "spec.minAvailable")) if value_at(obj, "spec.minAvailable") is not None else "N/A",
        ),
        Column(
            "Max Unavailable",
            lambda obj, _: str(value_at(obj, "spec.maxUnavailable")) if value_at(obj, "spec.maxUnavailable") is not None else "N/A",
        ),
        _number("Allowed Disruptions", "status.disruptionsAllowed"),
    ),
    "leases.coordination.k8s.io": _columns(Column("Holder", _get("spec.holderIdentity"))),
    "storageclasses.storage.k8s.io": _columns(
        Column("Provisioner", _get("provisioner")),
        Column("ReclaimPolicy", _get("reclaimPolicy")),
        Column("VolumeBindingMode", _get("volumeBindingMode")),
        Column("AllowVolumeExpansion", _bool("allowVolumeExpansion"), "boolean"),
    ),
    "priorityclasses.scheduling.k8s.io": _columns(
        _number("Value", "value"),
        Column("Global-Default", _bool("globalDefault"), "boolean"),
        wide=(_wide("PreemptionPolicy", _get("preemptionPolicy")),),
    ),
    "runtimeclasses.node.k8s.io": _columns(Column("Handler", _get("handler"))),
    "resourceslices.resource.k8s.io": _columns(
        Column("Node", _get("spec.nodeName")), Column("Driver", _get("spec.driver")), Column("Pool", _get("spec.pool.name"))
    ),
}
