"""Converts HorizontalPodAutoscalers of autoscaling/v1, v2beta1 and v2beta2 to autoscaling/v2.

Source: the Kubernetes API reference of these versions; the annotations that autoscaling/v1 uses for values without a field.
"""

import json
from typing import Any

from gpuscaler.metrics.converting.objects import Json, Say, Unconvertible, items, mapping, text

_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"
#: Annotations that only report status.
_TOLD = ("autoscaling.alpha.kubernetes.io/conditions", "autoscaling.alpha.kubernetes.io/current-metrics")
_APPS = frozenset({"Deployment", "ReplicaSet", "StatefulSet"})
#: Fields of v2beta1 by metric type: the metric's name and selector, and targets with the field of v2 that each becomes.
_TARGETS = {
    "targetAverageUtilization": ("Utilization", "averageUtilization"),
    "targetAverageValue": ("AverageValue", "averageValue"),
    "averageValue": ("AverageValue", "averageValue"),
    "targetValue": ("Value", "value"),
}


def convert(one: Json, say: Say) -> None:
    """Convert ``one`` from a former version to autoscaling/v2."""
    former = text(one.get("apiVersion")).partition("/")[2]
    one["apiVersion"] = "autoscaling/v2"
    if one.pop("status", None) is not None:
        say("removed its status: the API server writes that")
    spec = mapping(one, "spec")
    if former == "v1":
        _from_v1(one, spec, say)
    if former in ("v1", "v2beta1") and isinstance(spec.get("metrics"), list):
        spec["metrics"] = [_metric(metric) for metric in items(spec, "metrics")]
    _target(mapping(spec, "scaleTargetRef"), say)


def _from_v1(one: Json, spec: Json, say: Say) -> None:
    annotations = mapping(mapping(one, "metadata"), "annotations")
    metrics: list[Any] = []
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None:
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": _utilization(percent)}})
    if _METRICS in annotations:
        # The annotation has the format of v2beta1.
        metrics.extend(_json(annotations, _METRICS, list))
        say(f"moved the annotation {_METRICS} to spec.metrics")
    if _BEHAVIOR in annotations:
        spec["behavior"] = {_lowered(key): value for key, value in _json(annotations, _BEHAVIOR, dict).items()}
        say(f"moved the annotation {_BEHAVIOR} to spec.behavior")
    for key in _TOLD:
        annotations.pop(key, None)
    if not annotations:
        mapping(one, "metadata").pop("annotations", None)
    if metrics:
        spec["metrics"] = metrics


def _utilization(percent: object) -> Json:
    return {"type": "Utilization", "averageUtilization": percent}


def _json(annotations: Json, key: str, kind: type) -> Any:
    try:
        found = json.loads(text(annotations.pop(key)))
    except ValueError:
        found = None
    if not isinstance(found, kind):
        raise Unconvertible(f"saw an annotation {key} that is not a JSON {'list' if kind is list else 'object'}, expected one; correct it")
    return found


def _lowered(key: str) -> str:
    return key[:1].lower() + key[1:]


def _metric(metric: Json) -> Json:
    """Convert a metric from v2beta1 to v2; one that already has a target is not changed."""
    kind = text(metric.get("type"))
    field = _lowered(kind)
    source = metric.get(field)
    if not isinstance(source, dict):
        raise Unconvertible(f"saw a metric of the type {kind or 'nothing'} without {field or 'a source'}, expected one; correct it")
    if kind == "Object":
        described = source.get("target")
        if "describedObject" in source or not isinstance(described, dict):
            return metric
        made: Json = {"describedObject": _referred(described)}
    elif isinstance(source.get("target"), dict):
        return metric
    else:
        made = {key: source[key] for key in ("name", "container") if key in source}
    if "metricName" in source:
        selector = source.get("selector") or source.get("metricSelector")
        made["metric"] = {"name": source["metricName"]} | ({"selector": selector} if selector else {})
    made["target"] = _chosen(source, kind)
    return {"type": kind, field: made}


def _chosen(source: Json, kind: str) -> Json:
    """The target of a metric; as before, an average takes precedence over a value."""
    found = [key for key in _TARGETS if source.get(key) is not None]
    if not found:
        raise Unconvertible(f"saw a metric of the type {kind} without a target, expected one of {', '.join(_TARGETS)}; add it")
    target, field = _TARGETS[found[0]]
    return {"type": target, field: source[found[0]]}


def _referred(described: Json) -> Json:
    if not described.get("apiVersion"):
        kind = text(described.get("kind"))
        version = "networking.k8s.io/v1" if kind == "Ingress" else "apps/v1" if kind in _APPS else "v1"
        return {"apiVersion": version, **{key: value for key, value in described.items() if key != "apiVersion"}}
    if text(described["apiVersion"]).startswith("extensions/") and described.get("kind") == "Ingress":
        return {**described, "apiVersion": "networking.k8s.io/v1"}
    return described


def _target(reference: Json, say: Say) -> None:
    version = text(reference.get("apiVersion"))
    if text(reference.get("kind")) in _APPS and version != "apps/v1":
        reference["apiVersion"] = "apps/v1"
        say(f"scaleTargetRef.apiVersion: {version or 'nothing'} became apps/v1")
