"""Parses the annotation ``gpuscaler.io/autoscale`` into the autoscaling that it requests."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from gpuscaler.metrics.rules.builtin import is_exported_by_replicas
from gpuscaler.model.quantities import QuantityError, describe_unreadable, format_quantity, parse
from gpuscaler.model.similar import nearest

ANNOTATION = "gpuscaler.io/autoscale"
_MOST_REPLICAS = 2**31 - 1
_EXTERNAL = re.compile(r"([A-Za-z_:][A-Za-z0-9_:.-]*):(.+)")


class AnnotationError(ValueError):
    """An invalid value; the text says what was seen, what was expected, and what to do."""


class MetricTarget(Struct, frozen=True):
    """One metric and the target for its average over pods. The first of ``candidates`` that is served is used."""

    kind: Literal["Pods", "External"]
    candidates: tuple[str, ...]
    target: str


class Profile(NamedTuple):
    """A documented set of metric, target and behaviour (``spec.behavior``)."""

    metric_target: MetricTarget
    behavior: Mapping[str, Any]


class Autoscale(Struct, frozen=True):
    """The requested autoscaler. ``behavior`` is empty for the default of Kubernetes."""

    metric_targets: tuple[MetricTarget, ...]
    minimum: int
    maximum: int
    behavior: Mapping[str, Any] = {}


def _behavior(*, up: int, down: int, percent: int) -> Mapping[str, Any]:
    """Behavior with stabilization windows in seconds for scaling up and down, and the percentage that may be added per minute."""
    policies = [{"type": "Percent", "value": percent, "periodSeconds": 60}, {"type": "Pods", "value": 2, "periodSeconds": 60}]
    return MappingProxyType(
        {
            "scaleUp": {"stabilizationWindowSeconds": up, "policies": policies, "selectPolicy": "Max"},
            "scaleDown": {"stabilizationWindowSeconds": down, "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
        }
    )


_QUEUES = ("vllm_num_requests_waiting", "sglang_num_queue_reqs", "tgi_queue_size", "nv_inference_pending_request_count")
#: A model server takes minutes to start, so it scales up immediately and down late. Batch work rather waits than costs more.
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "inference": Profile(MetricTarget("Pods", ("duty_cycle_current",), "60"), _behavior(up=0, down=300, percent=100)),
        "llm": Profile(MetricTarget("Pods", _QUEUES, "5"), _behavior(up=0, down=600, percent=100)),
        "batch": Profile(MetricTarget("Pods", ("duty_cycle_over_time",), "80"), _behavior(up=120, down=900, percent=50)),
    }
)
#: Short names of metrics, with the candidates and the highest sensible target of each.
_SHORT: Mapping[str, tuple[tuple[str, ...], int | None]] = MappingProxyType(
    {
        "duty_cycle": (("duty_cycle_current",), 100),
        "memory_used": (("memory_used_bytes_current",), None),
        "queue": (_QUEUES, None),
    }
)
KEYS = ("profile", "target", *_SHORT, "external", "min", "max")


def parse_annotation(text: str) -> Autoscale:
    """The autoscaling that ``text`` requests. Raises :class:`AnnotationError`."""
    pairs = _pairs(text)
    profile = PROFILES.get(pairs.get("profile", ""))
    if "profile" in pairs and profile is None:
        raise AnnotationError(f"saw an unknown profile, expected one of {', '.join(PROFILES)}")
    aims = [MetricTarget("Pods", names, _target(key, pairs[key], highest)) for key, (names, highest) in _SHORT.items() if key in pairs]
    if "external" in pairs:
        aims.append(_external(pairs["external"]))
    if profile is not None:
        target = _target("target", pairs["target"], None) if "target" in pairs else profile.metric_target.target
        aims.insert(0, MetricTarget(profile.metric_target.kind, profile.metric_target.candidates, target))
    elif "target" in pairs:
        raise AnnotationError("saw a target without a profile, expected duty_cycle=N or a profile; add one")
    if not aims:
        raise AnnotationError("saw nothing to scale by, expected duty_cycle=N, queue=N, external=NAME:N or profile=NAME; add one")
    minimum, maximum = _count(pairs, "min", 1), _count(pairs, "max", None)
    if maximum < max(minimum, 1):
        raise AnnotationError(f"saw max={maximum} below min={minimum}, expected max to be at least min; correct one of them")
    if minimum == 0:
        _check_scale_from_zero(aims)
    return Autoscale(tuple(aims), minimum, maximum, profile.behavior if profile else {})


def _check_scale_from_zero(aims: list[MetricTarget]) -> None:
    """Check that a signal exists at zero replicas: only such a signal can start the first replica again."""
    if not any(aim.kind == "External" and not is_exported_by_replicas(aim.candidates[0]) for aim in aims):
        shown = ", ".join(aim.candidates[0] for aim in aims)
        raise AnnotationError(
            f"saw min=0 with {shown}, which the replicas report themselves: without replicas the metric is missing, and nothing "
            "would start the first replica again; expected min=1, or external=NAME:N from a gateway or a queue"
        )


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for place, part in enumerate(text.split(","), start=1):
        key, mark, value = (piece.strip() for piece in part.partition("="))
        if not mark or not key or not value:
            raise AnnotationError(
                f"saw {describe_unreadable(part.strip())} in part {place}, expected KEY=VALUE with a key of {', '.join(KEYS)}"
            )
        if key not in KEYS:
            raise AnnotationError(_unknown_key(key, place))
        if key in pairs:
            raise AnnotationError(f"saw {key} twice, expected it once; remove one")
        pairs[key] = value
    return pairs


def _unknown_key(key: str, place: int) -> str:
    """The message for an unknown key, which may be a private text like any other."""
    near = nearest(key, KEYS)
    seen = f"an unknown key of {len(key)} {'character' if len(key) == 1 else 'characters'}"
    return f"saw {seen} in part {place}, expected one of {', '.join(KEYS)}" + (f"; did you mean {near}?" if near else "")


def _target(key: str, text: str, highest: int | None) -> str:
    try:
        value = parse(text)
    except QuantityError:
        value = parse(0)
    if value <= 0 or (highest is not None and value > highest):
        limit = f" and at most {highest}" if highest is not None else ""
        raise AnnotationError(f"{key}: saw {describe_unreadable(text)}, expected a quantity above 0{limit}")
    return format_quantity(value)


def _external(text: str) -> MetricTarget:
    match = _EXTERNAL.fullmatch(text)
    if match is None:
        raise AnnotationError(f"external: saw {describe_unreadable(text)}, expected NAME:N, such as external=queue_length:10")
    return MetricTarget("External", (match[1],), _target("external", match[2], None))


def _count(pairs: Mapping[str, str], key: str, default: int | None) -> int:
    text = pairs.get(key)
    if text is None:
        if default is None:
            raise AnnotationError(f"saw no {key}, expected the number of replicas; add {key}=N")
        return default
    if not text.isascii() or not text.isdigit() or int(text) > _MOST_REPLICAS:
        raise AnnotationError(f"{key}: saw {describe_unreadable(text)}, expected a whole number of replicas")
    return int(text)
