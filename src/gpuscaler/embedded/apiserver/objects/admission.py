"""Changes to an object before it is stored: defaults, resets, and the few rules that clients rely on.

Source: ``k8s.io/kubernetes/pkg/registry/*/strategy.go`` and ``plugin/pkg/admission`` (Priority, DefaultTolerationSeconds, RuntimeClass),
Kubernetes 1.35.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuscaler.embedded.apiserver.kinds import NODES, PODS, PRIORITY_CLASSES, RUNTIME_CLASSES, Kind
from gpuscaler.embedded.apiserver.objects import defaults, pod_defaults
from gpuscaler.embedded.apiserver.store import Object, Store
from gpuscaler.embedded.apiserver.wire.failures import forbidden, invalid

#: Fields that no update changes.
_FIXED: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "selfLink",
    "namespace",
    "name",
)


def prepare(kind: Kind, obj: Object, store: Store, *, now: str) -> None:
    """Complete ``obj``, which a client wants to create, for the store. Raises a Failure if it is refused."""
    if kind is PODS:
        _prepare_pod(obj, store, now)
    elif kind.status and kind is not NODES:
        obj.pop("status", None)
    if fill := _DEFAULTS.get(kind.plural):
        fill(obj)


def _prepare_pod(pod: Object, store: Store, now: str) -> None:
    name, spec = pod["metadata"]["name"], pod.get("spec")
    if not isinstance(spec, dict) or not spec.get("containers"):
        raise invalid(PODS, name, (("FieldValueRequired", "spec.containers", "Required value"),))
    for i, container in enumerate(spec["containers"]):
        if not isinstance(container, dict) or not container.get("name"):
            raise invalid(PODS, name, (("FieldValueRequired", f"spec.containers[{i}].name", "Required value"),))
    _runtime_class(pod, spec, store)
    _priority(pod, spec, store)
    pod_defaults.spec(spec)
    pod_defaults.tolerations(spec)
    pod["status"] = pod_defaults.status(spec, now)


def _priority(pod: Object, spec: Object, store: Store) -> None:
    classes = store[PRIORITY_CLASSES]
    if name := spec.get("priorityClassName"):
        stored = classes.objects.get(name)
        if stored is None:
            raise forbidden(PODS, pod["metadata"]["name"], f"no PriorityClass with name {name} was found")
        chosen: Object | None = stored.read()
    else:
        defaults_ = [priority_class for entry in classes.objects.values() if (priority_class := entry.read()).get("globalDefault")]
        chosen = min(defaults_, key=lambda priority_class: int(priority_class.get("value", 0)), default=None)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    spec["priority"] = int(chosen.get("value", 0)) if chosen else 0
    spec["preemptionPolicy"] = spec.get("preemptionPolicy") or (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"


def _runtime_class(pod: Object, spec: Object, store: Store) -> None:
    name = spec.get("runtimeClassName")
    if not name:
        return
    stored = store.get(RUNTIME_CLASSES, name)
    if stored is None:
        raise forbidden(PODS, pod["metadata"]["name"], f'pod rejected: RuntimeClass "{name}" not found')
    runtime_class = stored.read()
    if overhead := (runtime_class.get("overhead") or {}).get("podFixed"):
        spec["overhead"] = overhead
    scheduling = runtime_class.get("scheduling") or {}
    if scheduling.get("nodeSelector"):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **scheduling["nodeSelector"]}
    extra = [toleration for toleration in scheduling.get("tolerations") or () if toleration not in (spec.get("tolerations") or ())]
    if extra:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *extra]


def prepare_update(kind: Kind, new: Object, old: Object, *, part: str) -> Object:
    """``new`` as a replacement for ``old``: through the main resource all but the status, through ``status`` little else."""
    result = {**old, "metadata": dict(old["metadata"])} if part == "status" else {**new, "metadata": dict(new["metadata"])}
    metadata = result["metadata"]
    if part == "status":
        result["status"] = new.get("status") or {}
        if kind in (PODS, NODES):
            metadata |= {field: new["metadata"][field] for field in ("labels", "annotations") if field in new["metadata"]}
        if "managedFields" in new["metadata"]:
            metadata["managedFields"] = new["metadata"]["managedFields"]
    elif kind.status:
        _take(result, old, "status")
    for field in (*_FIXED, "generation", "resourceVersion"):
        _take(metadata, old["metadata"], field)
    if part != "status":
        if kind is PODS:
            pod_defaults.spec(result.setdefault("spec", {}))
            _check_pod(result, old)
        elif fill := _DEFAULTS.get(kind.plural):
            fill(result)
        if result.get("spec") != old.get("spec"):
            metadata["generation"] = metadata.get("generation", 1) + 1
    return result


def _take(target: Object, source: Mapping[str, Any], field: str) -> None:
    if field in source:
        target[field] = source[field]
    else:
        target.pop(field, None)


def _check_pod(new: Object, old: Object) -> None:
    if _settled_by_admission(new["spec"], old["spec"]) != _settled_by_admission(old["spec"], old["spec"]):
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )
        raise invalid(PODS, new["metadata"]["name"], (("FieldValueForbidden", "spec", why),))


def _settled_by_admission(spec: Mapping[str, Any], old: Mapping[str, Any]) -> Object:
    """The immutable part of a pod's spec; values may be removed if they were there, and scheduling gates may be removed."""
    kept = {name: value for name, value in spec.items() if name not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")}
    for field in ("containers", "initContainers"):
        if kept.get(field):
            kept[field] = [{name: value for name, value in container.items() if name != "image"} for container in kept[field]]
    kept["lost"] = [item for item in old.get("tolerations") or () if item not in (spec.get("tolerations") or ())]
    kept["gates"] = [item for item in spec.get("schedulingGates") or () if item not in (old.get("schedulingGates") or ())]
    return kept


def grace_period(pod: Object, requested: int | None) -> int:
    """Seconds that a pod gets to end: none if nothing runs."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = spec.get("terminationGracePeriodSeconds", 30) if requested is None else requested
    return max(0, int(seconds))


_DEFAULTS: Final[Mapping[str, Callable[[Object], None]]] = {
    "deployments": defaults.deployment,
    "replicasets": defaults.replica_set,
    "replicationcontrollers": defaults.replica_set,
    "statefulsets": defaults.stateful_set,
    "daemonsets": defaults.daemon_set,
    "jobs": defaults.job,
    "cronjobs": defaults.cron_job,
    "horizontalpodautoscalers": defaults.autoscaler,
    "persistentvolumeclaims": defaults.claim,
    "persistentvolumes": defaults.volume,
    "storageclasses": defaults.storage_class,
    "namespaces": defaults.namespace,
    "services": defaults.service,
    "secrets": defaults.secret,
}
