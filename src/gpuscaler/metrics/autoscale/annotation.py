"""Parses the annotation ``gpuscaler.io/autoscale`` into the autoscaling that it requests."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from gpuscaler.metrics.rules.builtin import of_replicas
from gpuscaler.model.quantities import QuantityError, format_quantity, parse, unrepeated

ANNOTATION = "gpuscaler.io/autoscale"
_MOST_REPLICAS = 2**31 - 1
_EXTERNAL = re.compile(r"([A-Za-z_:][A-Za-z0-9_:.-]*):(.+)")


class AnnotationError(ValueError):
    """An invalid value; the text says what was seen, what was expected, and what to do."""


class Aim(Struct, frozen=True):
    """One metric and the target for its average over pods. The first of ``candidates`` that is served is used."""

    kind: Literal["Pods", "External"]
    candidates: tuple[str, ...]
    target: str


class Profile(NamedTuple):
    """A documented set of metric, target and behaviour (``spec.behavior``)."""

    aim: Aim
    behavior: Mapping[str, Any]


class Autoscale(Struct, frozen=True):
    """The requested autoscaler. ``behavior`` is empty for the default of Kubernetes."""

    aims: tuple[Aim, ...]
    minimum: int
    maximum: int
    behavior: Mapping[str, Any] = {}


def _pace(*, up: int, down: int, percent: int) -> Mapping[str, Any]:
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
        "inference": Profile(Aim("Pods", ("duty_cycle_current",), "60"), _pace(up=0, down=300, percent=100)),
        "llm": Profile(Aim("Pods", _QUEUES, "5"), _pace(up=0, down=600, percent=100)),
        "batch": Profile(Aim("Pods", ("duty_cycle_over_time",), "80"), _pace(up=120, down=900, percent=50)),
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


def read(text: str) -> Autoscale:
    """The autoscaling that ``text`` requests. Raises :class:`AnnotationError`."""
    told = _pairs(text)
    profile = PROFILES.get(told.get("profile", ""))
    if "profile" in told and profile is None:
        raise AnnotationError(f"saw an unknown profile, expected one of {', '.join(PROFILES)}")
    aims = [Aim("Pods", names, _target(key, told[key], most)) for key, (names, most) in _SHORT.items() if key in told]
    if "external" in told:
        aims.append(_external(told["external"]))
    if profile is not None:
        target = _target("target", told["target"], None) if "target" in told else profile.aim.target
        aims.insert(0, Aim(profile.aim.kind, profile.aim.candidates, target))
    elif "target" in told:
        raise AnnotationError("saw a target without a profile, expected duty_cycle=N or a profile; add one")
    if not aims:
        raise AnnotationError("saw nothing to scale by, expected duty_cycle=N, queue=N, external=NAME:N or profile=NAME; add one")
    minimum, maximum = _count(told, "min", 1), _count(told, "max", None)
    if maximum < max(minimum, 1):
        raise AnnotationError(f"saw max={maximum} below min={minimum}, expected at least as many; correct one of them")
    if minimum == 0:
        _check_wakes(aims)
    return Autoscale(tuple(aims), minimum, maximum, profile.behavior if profile else {})


def _check_wakes(aims: list[Aim]) -> None:
    """Check that a signal exists at zero replicas: only such a signal can start the first replica again."""
    if not any(aim.kind == "External" and not of_replicas(aim.candidates[0]) for aim in aims):
        shown = ", ".join(aim.candidates[0] for aim in aims)
        raise AnnotationError(
            f"saw min=0 with {shown}, which the replicas report themselves: without replicas it is missing, and nothing would start the "
            "first one again; expected min=1, or external=NAME:N from a gateway or a queue"
        )


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, part in enumerate(text.split(","), start=1):
        key, mark, value = (piece.strip() for piece in part.partition("="))
        if not mark or not value or key not in KEYS:
            raise AnnotationError(f"saw {unrepeated(part.strip())} in part {place}, expected KEY=VALUE with a key of {', '.join(KEYS)}")
        if key in found:
            raise AnnotationError(f"saw {key} twice, expected it once; remove one")
        found[key] = value
    return found


def _target(key: str, text: str, most: int | None) -> str:
    try:
        value = parse(text)
    except QuantityError:
        value = parse(0)
    if value <= 0 or (most is not None and value > most):
        limit = f" and at most {most}" if most is not None else ""
        raise AnnotationError(f"{key}: saw {unrepeated(text)}, expected a quantity above 0{limit}")
    return format_quantity(value)


def _external(text: str) -> Aim:
    match = _EXTERNAL.fullmatch(text)
    if match is None:
        raise AnnotationError(f"external: saw {unrepeated(text)}, expected NAME:N, such as external=queue_length:10")
    return Aim("External", (match[1],), _target("external", match[2], None))


def _count(told: Mapping[str, str], key: str, default: int | None) -> int:
    text = told.get(key)
    if text is None:
        if default is None:
            raise AnnotationError(f"saw no {key}, expected the number of replicas; add {key}=N")
        return default
    if not text.isascii() or not text.isdigit() or int(text) > _MOST_REPLICAS:
        raise AnnotationError(f"{key}: saw {unrepeated(text)}, expected a whole number of replicas")
    return int(text)
