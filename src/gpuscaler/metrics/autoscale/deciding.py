"""Decides what to do about annotations and autoscalers: data in, acts out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from gpuscaler.metrics.autoscale.annotation import ANNOTATION, PROFILES, AnnotationError, Autoscale, parse_annotation
from gpuscaler.metrics.sources.values import NOT_BELOW_ZERO

#: Marks our autoscalers; its value is the workload's UID. One without it belongs to a person or another program and is never changed.
OWNED_BY = "gpuscaler.io/autoscale-of"
_MANAGED = "app.kubernetes.io/managed-by"
_SELECTOR = {"matchExpressions": [{"key": NOT_BELOW_ZERO.key, "operator": NOT_BELOW_ZERO.operator}]}


class AnnotatedWorkload(Struct, frozen=True):
    """A workload; ``annotation`` is None if it has none."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotation: str | None = None

    @property
    def display_name(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class ExistingAutoscaler(Struct, frozen=True):
    """A HorizontalPodAutoscaler. ``owner`` is the UID in our mark, empty if it is not ours; ``spec`` is that on the server."""

    namespace: str
    name: str
    uid: str
    version: str
    target: tuple[str, str]
    owner: str
    spec: Mapping[str, Any]


class AutoscalerAction(Struct, frozen=True):
    """One change to an autoscaler. ``body`` is the object to create, or to replace ``existing`` with.

    ``note`` is the human-readable message. The verb ``refuse`` changes nothing.
    """

    verb: Literal["create", "replace", "delete", "refuse"]
    reason: str
    note: str
    about: AnnotatedWorkload
    body: Mapping[str, Any] | None = None
    existing: ExistingAutoscaler | None = None


def decide(
    workloads: Iterable[AnnotatedWorkload], existing: Collection[ExistingAutoscaler], *, served: Collection[str]
) -> tuple[AutoscalerAction, ...]:
    """Acts that make autoscalers match the annotations. ``served`` are the metrics of pods that are served.

    If the workload of an autoscaler is gone, Kubernetes deletes the autoscaler with its owner.
    """
    acts: list[AutoscalerAction] = []
    autoscaler_index = _AutoscalerIndex(existing)
    for workload in workloads:
        ours = next(iter(autoscaler_index.by_owner.get((workload.namespace, workload.uid), ())), None)
        if workload.annotation is None:
            if ours is not None:
                acts.append(
                    AutoscalerAction("delete", "AutoscaleEnded", f"deleted {ours.name}: {ANNOTATION} is gone", workload, None, ours)
                )
            continue
        acts += _actions_for(workload, workload.annotation, ours, autoscaler_index, served)
    return tuple(acts)


class _AutoscalerIndex:
    """Autoscalers by lookup key, always within one namespace: users of another namespace may write any UID there."""

    def __init__(self, existing: Iterable[ExistingAutoscaler]) -> None:
        self.by_owner: dict[tuple[str, str], list[ExistingAutoscaler]] = {}
        self.by_target: dict[tuple[str, tuple[str, str]], list[ExistingAutoscaler]] = {}
        self.by_name: dict[tuple[str, str], ExistingAutoscaler] = {}
        for autoscaler in existing:
            if autoscaler.owner:
                self.by_owner.setdefault((autoscaler.namespace, autoscaler.owner), []).append(autoscaler)
            self.by_target.setdefault((autoscaler.namespace, autoscaler.target), []).append(autoscaler)
            self.by_name[autoscaler.namespace, autoscaler.name] = autoscaler


def _actions_for(
    workload: AnnotatedWorkload, text: str, ours: ExistingAutoscaler | None, autoscaler_index: _AutoscalerIndex, served: Collection[str]
) -> Iterable[AutoscalerAction]:
    try:
        wanted = parse_annotation(text)
    except AnnotationError as error:
        unchanged = f"; {ours.name} stays unchanged" if ours else ""
        yield AutoscalerAction("refuse", "AutoscaleInvalid", f"{ANNOTATION}: {error}{unchanged}", workload)
        return
    same = autoscaler_index.by_target.get((workload.namespace, (workload.kind, workload.name)), ())
    other = next((existing for existing in same if existing is not ours), None)
    if other is None and ours is None:
        other = autoscaler_index.by_name.get((workload.namespace, _name(workload)))
    if other is not None:
        # One of ours for the same workload belongs to a deleted and recreated workload: Kubernetes is about to delete it, too.
        if not other.owner or other.target[0] != workload.kind:
            yield _refuse_beside(workload, other)
        return
    body = _body(workload, wanted, ours, served)
    if ours is None:
        yield AutoscalerAction("create", "AutoscaleCreated", f"created {_name(workload)}: {_describe_spec(body)}", workload, body)
    elif not _contains(ours.spec, body["spec"]) or (not wanted.behavior and _of_profile(ours.spec.get("behavior"))):
        yield AutoscalerAction("replace", "AutoscaleChanged", f"changed {ours.name}: {_describe_spec(body)}", workload, body, ours)
    missing = [
        aim.candidates[0]
        for aim in wanted.metric_targets
        if aim.kind == "Pods" and not any(candidate in served for candidate in aim.candidates)
    ]
    if missing:
        names = ", ".join(missing)
        note = f"no pod has the metric {names} now: replicas do not change until a pod has it; see gpuscaler why hpa for the reason"
        yield AutoscalerAction("refuse", "AutoscaleMetricMissing", note, workload)


def _refuse_beside(workload: AnnotatedWorkload, other: ExistingAutoscaler) -> AutoscalerAction:
    """Refuse to create an autoscaler beside one of another owner, or of another workload with the same name."""
    if other.target == (workload.kind, workload.name):
        note = f"HorizontalPodAutoscaler {other.name}, not made by gpuscaler, already scales it: nothing done; delete it or the annotation"
    else:
        origin = f"belongs to {other.target[0]} {other.target[1]}" if other.owner else "was not made by gpuscaler"
        note = f"HorizontalPodAutoscaler {other.name} already exists and {origin}: nothing done; rename one of them"
    return AutoscalerAction("refuse", "AutoscaleTaken", note, workload)


def _name(workload: AnnotatedWorkload) -> str:
    """The name of our autoscaler, unlike the usual choice of people, who name it like the workload."""
    return f"{workload.name[:240]}-gpuscaler"


def _body(workload: AnnotatedWorkload, wanted: Autoscale, ours: ExistingAutoscaler | None, served: Collection[str]) -> dict[str, Any]:
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
                    "metric": {"name": _select_metric(aim.candidates, ours, served), "selector": _SELECTOR},
                    "target": {"type": "AverageValue", "averageValue": aim.target},
                },
            }
            for aim in wanted.metric_targets
        ],
    }
    if wanted.behavior:
        spec["behavior"] = dict(wanted.behavior)
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}


def _select_metric(candidates: Sequence[str], ours: ExistingAutoscaler | None, served: Collection[str]) -> str:
    """The metric to scale by: the current one, unless it is not served and another candidate is."""
    metrics = ours.spec.get("metrics", ()) if ours else ()
    named = {part["metric"]["name"] for metric in metrics for part in metric.values() if isinstance(part, Mapping) and "metric" in part}
    usable = [candidate for candidate in candidates if candidate in served] or candidates
    return next((candidate for candidate in usable if candidate in named), usable[0])


def _contains(actual: Any, wanted: Any) -> bool:
    """Whether ``actual`` contains everything in ``wanted``; additions by the server do not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(key in actual and _contains(actual[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(actual, list) and len(actual) == len(wanted) and all(map(_contains, actual, wanted))
    return bool(actual == wanted)


def _of_profile(behavior: Any) -> bool:
    """Whether ``behavior`` comes from a profile. Values from an admission webhook are kept: the webhook would add them again."""
    return any(_contains(behavior, profile.behavior) for profile in PROFILES.values())


def _describe_spec(body: Mapping[str, Any]) -> str:
    spec = body["spec"]
    metrics = [(metric["type"], metric[metric["type"].lower()]) for metric in spec["metrics"]]
    targets = ", ".join(
        f"{kind} metric {source['metric']['name']} at {source['target']['averageValue']} a replica" for kind, source in metrics
    )
    return f"{spec['minReplicas']} to {spec['maxReplicas']} replicas by {targets}"
