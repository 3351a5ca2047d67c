"""Converts HorizontalPodAutoscalers of autoscaling/v1, v2beta1 and v2beta2 to autoscaling/v2.

Source: the Kubernetes API reference of these versions; the annotations that autoscaling/v1 uses for values without a field.
"""

import json
from typing import Any

from gpuscaler.converting.objects import AddNote, Json, Unconvertible, ensure_mapping, get_items, text

_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"
#: Annotations that only report status.
_STATUS_ANNOTATIONS = ("autoscaling.alpha.kubernetes.io/conditions", "autoscaling.alpha.kubernetes.io/current-metrics")
_APPS = frozenset({"Deployment", "ReplicaSet", "StatefulSet"})
#: Fields of v2beta1 by metric type: the metric's name and selector, and targets with the field of v2 that each becomes.
_TARGETS = {
    "targetAverageUtilization": ("Utilization", "averageUtilization"),
    "targetAverageValue": ("AverageValue", "averageValue"),
    "averageValue": ("AverageValue", "averageValue"),
    "targetValue": ("Value", "value"),
}


def convert(manifest: Json, add_note: AddNote) -> None:
    """Convert ``manifest`` from a former version to autoscaling/v2."""
    former = text(manifest.get("apiVersion")).partition("/")[2]
    manifest["apiVersion"] = "autoscaling/v2"
    if manifest.pop("status", None) is not None:
        add_note("removed its status: the API server writes that")
    spec = ensure_mapping(manifest, "spec")
    if former == "v1":
        _from_v1(manifest, spec, add_note)
    if former in ("v1", "v2beta1") and isinstance(spec.get("metrics"), list):
        spec["metrics"] = [_metric(metric) for metric in get_items(spec, "metrics")]
    _update_target(ensure_mapping(spec, "scaleTargetRef"), add_note)


def _from_v1(manifest: Json, spec: Json, add_note: AddNote) -> None:
    annotations = ensure_mapping(ensure_mapping(manifest, "metadata"), "annotations")
    metrics: list[Any] = []
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None:
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": _utilization(percent)}})
    if _METRICS in annotations:
        # The annotation has the format of v2beta1.
        metrics.extend(_json(annotations, _METRICS, list))
        add_note(f"moved the annotation {_METRICS} to spec.metrics")
    if _BEHAVIOR in annotations:
        spec["behavior"] = {_lower_first(key): value for key, value in _json(annotations, _BEHAVIOR, dict).items()}
        add_note(f"moved the annotation {_BEHAVIOR} to spec.behavior")
    for key in _STATUS_ANNOTATIONS:
        annotations.pop(key, None)
    if not annotations:
        ensure_mapping(manifest, "metadata").pop("annotations", None)
    if metrics:
        spec["metrics"] = metrics


def _utilization(percent: object) -> Json:
    return {"type": "Utilization", "averageUtilization": percent}


def _json(annotations: Json, key: str, kind: type) -> Any:
    try:
        value = json.loads(text(annotations.pop(key)))
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise Unconvertible(f"saw an annotation {key} that is not a JSON {'list' if kind is list else 'object'}, expected one; correct it")
    return value


def _lower_first(key: str) -> str:
    return key[:1].lower() + key[1:]


def _metric(metric: Json) -> Json:
    """Convert a metric from v2beta1 to v2; one that already has a target is not changed."""
    kind = text(metric.get("type"))
    field = _lower_first(kind)
    source = metric.get(field)
    if not isinstance(source, dict):
        raise Unconvertible(f"saw a metric of the type {kind or 'nothing'} without {field or 'a source'}, expected one; correct it")
    if kind == "Object":
        described = source.get("target")
        if "describedObject" in source or not isinstance(described, dict):
            return metric
        converted: Json = {"describedObject": _described_object(described)}
    elif isinstance(source.get("target"), dict):
        return metric
    else:
        converted = {key: source[key] for key in ("name", "container") if key in source}
    if "metricName" in source:
        selector = source.get("selector") or source.get("metricSelector")
        converted["metric"] = {"name": source["metricName"]} | ({"selector": selector} if selector else {})
    converted["target"] = _metric_target(source, kind)
    return {"type": kind, field: converted}


def _metric_target(source: Json, kind: str) -> Json:
    """The target of a metric; as before, an average takes precedence over a value."""
    keys = [key for key in _TARGETS if source.get(key) is not None]
    if not keys:
        raise Unconvertible(f"saw a metric of the type {kind} without a target, expected one of {', '.join(_TARGETS)}; add it")
    target, field = _TARGETS[keys[0]]
    return {"type": target, field: source[keys[0]]}


def _described_object(described: Json) -> Json:
    if not described.get("apiVersion"):
        kind = text(described.get("kind"))
        version = "networking.k8s.io/v1" if kind == "Ingress" else "apps/v1" if kind in _APPS else "v1"
        return {"apiVersion": version, **{key: value for key, value in described.items() if key != "apiVersion"}}
    if text(described["apiVersion"]).startswith("extensions/") and described.get("kind") == "Ingress":
        return {**described, "apiVersion": "networking.k8s.io/v1"}
    return described


def _update_target(reference: Json, add_note: AddNote) -> None:
    version = text(reference.get("apiVersion"))
    if text(reference.get("kind")) in _APPS and version != "apps/v1":
        reference["apiVersion"] = "apps/v1"
        add_note(f"scaleTargetRef.apiVersion: {version or 'nothing'} became apps/v1")
