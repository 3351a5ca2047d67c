"""Metrics and targets of a HorizontalPodAutoscaler as a cell of ``kubectl get``.

Source: ``formatHPAMetrics`` of ``k8s.io/kubernetes/pkg/printers/internalversion/printers.go``, Kubernetes 1.35.
"""

from collections.abc import Mapping
from typing import Any, Final

Json = Mapping[str, Any]
#: The number of metrics that are shown; the others are only counted.
_SHOWN: Final = 2
_UNKNOWN: Final = "<unknown>"


def autoscaler_targets(hpa: Json, _: float) -> str:
    """``45/60``, ``cpu: 30%/80%``, ``<unknown>/5 (avg)``: the first two metrics, and the number of the others."""
    metrics = (hpa.get("spec") or {}).get("metrics") or ()
    statuses = (hpa.get("status") or {}).get("currentMetrics") or ()
    if not metrics:
        return "<none>"
    cells = [_cell(spec, statuses[number] if number < len(statuses) else {}) for number, spec in enumerate(metrics)]
    more = len(cells) - _SHOWN
    return ", ".join(cells[:_SHOWN]) + (f" + {more} more..." if more > 0 else "")


def _cell(spec: Json, status: Json) -> str:
    kind = str(spec.get("type"))
    field = kind[:1].lower() + kind[1:]
    source = spec.get(field) or {}
    target, current = source.get("target") or {}, (status.get(field) or {}).get("current") or {}
    of_resource = kind in ("Resource", "ContainerResource")
    named = f"{source.get('name')}: " if of_resource else ""
    if "averageValue" in target:
        average = " (avg)" if kind in ("External", "Object") else ""
        return f"{named}{current.get('averageValue', _UNKNOWN)}/{target['averageValue']}{average}"
    if of_resource:
        now, wanted = current.get("averageUtilization"), target.get("averageUtilization")
        return f"{named}{_UNKNOWN if now is None else f'{now}%'}/{'<auto>' if wanted is None else f'{wanted}%'}"
    return f"{current.get('value', _UNKNOWN)}/{target.get('value', _UNKNOWN)}"
