"""Decides what to do about annotations and autoscalers: data in, acts out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from gpuscaler.metrics.autoscale.annotation import ANNOTATION, PROFILES, AnnotationError, Autoscale, read
from gpuscaler.metrics.sources.values import NOT_BELOW_ZERO

#: Marks our autoscalers; its value is the workload's UID. One without it belongs to a person or another program and is never changed.
OWNED_BY = "gpuscaler.io/autoscale-of"
_MANAGED = "app.kubernetes.io/managed-by"
_SELECTOR = {"matchExpressions": [{"key": NOT_BELOW_ZERO.key, "operator": NOT_BELOW_ZERO.operator}]}


class Annotated(Struct, frozen=True):
    """A workload; ``annotation`` is None if it has none."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotation: str | None = None

    @property
    def shown(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Existing(Struct, frozen=True):
    """A HorizontalPodAutoscaler. ``owner`` is the UID in our mark, empty if it is not ours; ``spec`` is that on the server."""

    namespace: str
    name: str
    uid: str
    version: str
    target: tuple[str, str]
    owner: str
    spec: Mapping[str, Any]


class Act(Struct, frozen=True):
    """One act. ``body`` is the object to create, or to replace ``existing`` with; ``note`` is for people. ``refuse`` changes nothing."""

    verb: Literal["create", "replace", "delete", "refuse"]
    reason: str
    note: str
    about: Annotated
    body: Mapping[str, Any] | None = None
    existing: Existing | None = None


def decide(workloads: Iterable[Annotated], existing: Collection[Existing], *, served: Collection[str]) -> tuple[Act, ...]:
    """Acts that make autoscalers match the annotations. ``served`` are the metrics of pods that are served.

    If the workload of an autoscaler is gone, Kubernetes deletes the autoscaler with its owner.
    """
    acts: list[Act] = []
    autoscaler_index = _AutoscalerIndex(existing)
    for workload in workloads:
        ours = next(iter(autoscaler_index.by_owner.get((workload.namespace, workload.uid), ())), None)
        if workload.annotation is None:
            if ours is not None:
                acts.append(Act("delete", "AutoscaleEnded", f"deleted {ours.name}: {ANNOTATION} is gone", workload, None, ours))
            continue
        acts += _wanted(workload, workload.annotation, ours, autoscaler_index, served)
    return tuple(acts)


class _AutoscalerIndex:
    """Autoscalers by lookup key, always within one namespace: users of another namespace may write any UID there."""

    def __init__(self, existing: Iterable[Existing]) -> None:
        self.by_owner: dict[tuple[str, str], list[Existing]] = {}
        self.by_target: dict[tuple[str, tuple[str, str]], list[Existing]] = {}
        self.by_name: dict[tuple[str, str], Existing] = {}
        for one in existing:
            if one.owner:
                self.by_owner.setdefault((one.namespace, one.owner), []).append(one)
            self.by_target.setdefault((one.namespace, one.target), []).append(one)
            self.by_name[one.namespace, one.name] = one


def _wanted(
    workload: Annotated, text: str, ours: Existing | None, autoscaler_index: _AutoscalerIndex, served: Collection[str]
) -> Iterable[Act]:
    try:
        wanted = read(text)
    except AnnotationError as error:
        kept = f"; {ours.name} stays unchanged" if ours else ""
        yield Act("refuse", "AutoscaleInvalid", f"{ANNOTATION}: {error}{kept}", workload)
        return
    same = autoscaler_index.by_target.get((workload.namespace, (workload.kind, workload.name)), ())
    taken = next((existing for existing in same if existing is not ours), None)
    if taken is None and ours is None:
        taken = autoscaler_index.by_name.get((workload.namespace, _name(workload)))
    if taken is not None:
        # One of ours for the same workload belongs to a deleted and recreated workload: Kubernetes is about to delete it, too.
        if not taken.owner or taken.target[0] != workload.kind:
            yield _left_alone(workload, taken)
        return
    body = _body(workload, wanted, ours, served)
    if ours is None:
        yield Act("create", "AutoscaleCreated", f"created {_name(workload)}: {_told(body)}", workload, body)
    elif not _says(ours.spec, body["spec"]) or (not wanted.behavior and _of_profile(ours.spec.get("behavior"))):
        yield Act("replace", "AutoscaleChanged", f"changed {ours.name}: {_told(body)}", workload, body, ours)
    missing = [
        aim.candidates[0] for aim in wanted.aims if aim.kind == "Pods" and not any(candidate in served for candidate in aim.candidates)
    ]
    if missing:
        note = f"no pod has the metric {', '.join(missing)} now: replicas do not change until one has; see gpuscaler why hpa for the reason"
        yield Act("refuse", "AutoscaleMetricMissing", note, workload)


def _left_alone(workload: Annotated, taken: Existing) -> Act:
    """Refuse to create an autoscaler beside one of another owner, or of another workload with the same name."""
    if taken.target == (workload.kind, workload.name):
        note = f"HorizontalPodAutoscaler {taken.name}, not made by gpuscaler, already scales it: nothing done; delete it or the annotation"
    else:
        whose = f"belongs to {taken.target[0]} {taken.target[1]}" if taken.owner else "was not made by gpuscaler"
        note = f"HorizontalPodAutoscaler {taken.name} already exists and {whose}: nothing done; rename one of them"
    return Act("refuse", "AutoscaleTaken", note, workload)


def _name(workload: Annotated) -> str:
    """The name of our autoscaler, unlike the usual choice of people, who name it like the workload."""
    return f"{workload.name[:240]}-gpuscaler"


def _body(workload: Annotated, wanted: Autoscale, ours: Existing | None, served: Collection[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": ours.name if ours else _name(workload),
        "namespace": workload.namespace,
        "labels": {_MANAGED: "gpuscaler", OWNED_BY: workload.uid},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name, "uid": workload.uid, "controller": True}
        ],
    }
    if ours is not None:
        # A concurrent write causes a conflict, and is seen in the next pass.
        metadata["resourceVersion"] = ours.version
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name},
        "minReplicas": wanted.minimum,
        "maxReplicas": wanted.maximum,
        "metrics": [
            {
                "type": aim.kind,
                aim.kind.lower(): {
                    "metric": {"name": _chosen(aim.candidates, ours, served), "selector": _SELECTOR},
                    "target": {"type": "AverageValue", "averageValue": aim.target},
                },
            }
            for aim in wanted.aims
        ],
    }
    if wanted.behavior:
        spec["behavior"] = dict(wanted.behavior)
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}


def _chosen(candidates: Sequence[str], ours: Existing | None, served: Collection[str]) -> str:
    """The metric to scale by: the current one, unless it is not served and another candidate is."""
    metrics = ours.spec.get("metrics", ()) if ours else ()
    named = {part["metric"]["name"] for metric in metrics for part in metric.values() if isinstance(part, Mapping) and "metric" in part}
    there = [candidate for candidate in candidates if candidate in served] or candidates
    return next((one for one in there if one in named), there[0])


def _says(found: Any, wanted: Any) -> bool:
    """Whether ``found`` contains everything in ``wanted``; additions by the server do not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(key in found and _says(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_says, found, wanted))
    return bool(found == wanted)


def _of_profile(behavior: Any) -> bool:
    """Whether ``behavior`` comes from a profile. Values from an admission webhook are kept: removing them would be undone again."""
    return any(_says(behavior, profile.behavior) for profile in PROFILES.values())


def _told(body: Mapping[str, Any]) -> str:
    spec = body["spec"]
    aims = [(one["type"], one[one["type"].lower()]) for one in spec["metrics"]]
    shown = ", ".join(f"{kind} metric {one['metric']['name']} at {one['target']['averageValue']} a replica" for kind, one in aims)
    return f"{spec['minReplicas']} to {spec['maxReplicas']} replicas by {shown}"
