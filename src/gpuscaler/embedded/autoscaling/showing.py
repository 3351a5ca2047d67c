"""The status of a HorizontalPodAutoscaler. Source: ``setStatus`` of ``pkg/controller/podautoscaler/horizontal.go``, Kubernetes 1.35."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.model.quantities import format_quantity
from gpuscaler.simulation.horizontal.history import History
from gpuscaler.simulation.horizontal.specs import Autoscaler, Current, Metric

Json = dict[str, Any]


def conditions(history: History) -> list[Json]:
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "lastTransitionTime": timestamp(condition.since),
            "reason": condition.reason,
            "message": condition.message,
        }
        for condition in history.conditions
    ]


def metrics(autoscaler: Autoscaler, spec: Mapping[str, Any], current: Sequence[Current | None]) -> list[Json]:
    """``status.currentMetrics``; a metric without a value has an empty entry."""
    raw = spec.get("metrics") or [{}] * len(autoscaler.metrics)
    return [
        {"type": ""} if now is None else _metric(metric, metric_spec, now)
        for metric, metric_spec, now in zip(autoscaler.metrics, raw, current, strict=False)
    ]


def _metric(metric: Metric, metric_spec: Mapping[str, Any], current: Current) -> Json:
    field = f"{metric.type[0].lower()}{metric.type[1:]}"
    if metric.type in ("Resource", "ContainerResource"):
        target: Json = {"name": metric.name, **({"container": metric.container} if metric.container else {})}
    else:
        source = metric_spec[field]
        target = {name: source[name] for name in ("metric", "describedObject") if name in source}
    return {"type": metric.type, field: {**target, "current": _current(current)}}


def _current(current: Current) -> Json:
    result: Json = {"value": _quantity(current.value), "averageValue": _quantity(current.average_value)}
    result["averageUtilization"] = current.average_utilization
    return {name: value for name, value in result.items() if value is not None}


def _quantity(milli: int | None) -> str | None:
    return None if milli is None else format_quantity(Fraction(milli, 1000))
