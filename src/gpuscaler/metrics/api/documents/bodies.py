"""Metric values as JSON, with the same fields as the types of ``k8s.io/metrics``."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from gpuscaler.metrics.api.documents.encoding import encode
from gpuscaler.metrics.api.documents.kinds import kind_of
from gpuscaler.metrics.api.paths import Metric
from gpuscaler.metrics.sources.values import Value
from gpuscaler.model.selector_text import Term


class WireExpression(Struct, frozen=True, gc=False, omit_defaults=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class WireSelector(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[WireExpression, ...] = ()


class WireObject(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    kind: str
    namespace: str = ""
    name: str = ""
    api_version: str = ""


class WireValue1(Struct, frozen=True, gc=False, rename="camel"):
    """An item of custom.metrics.k8s.io/v1beta1."""

    described_object: WireObject
    metric_name: str
    timestamp: str
    window: int | msgspec.UnsetType
    value: str
    selector: WireSelector | None


class WireMetric(Struct, frozen=True, gc=False):
    name: str
    selector: WireSelector | None


class WireValue2(Struct, frozen=True, gc=False, rename="camel"):
    """An item of custom.metrics.k8s.io/v1beta2."""

    described_object: WireObject
    metric: WireMetric
    timestamp: str
    window_seconds: int | msgspec.UnsetType
    value: str


class WireExternalValue(Struct, frozen=True, gc=False, rename="camel"):
    """An item of external.metrics.k8s.io/v1beta1."""

    metric_name: str
    metric_labels: dict[str, str]
    timestamp: str
    window: int | msgspec.UnsetType
    value: str


class WireList(Struct, frozen=True, gc=False, rename="camel"):
    kind: str
    api_version: str
    metadata: dict[str, str]
    items: Sequence[WireValue1 | WireValue2 | WireExternalValue]


def encode_custom(request: Metric, values: Sequence[Value], terms: Sequence[Term]) -> bytes:
    """A MetricValueList in the version that was asked for; ``terms`` are those of metricLabelSelector."""
    kind, api_version = kind_of(request.group_resource)
    selector = selector_of(terms)
    stamps: dict[float, str] = {}
    items: list[WireValue1 | WireValue2] = []
    for value in values:
        described = WireObject(kind, value.namespace, value.name, api_version)
        stamp = stamps.get(value.timestamp) or stamps.setdefault(value.timestamp, timestamp(value.timestamp))
        window = msgspec.UNSET if value.window_seconds is None else value.window_seconds
        if request.version == "v1beta1":
            items.append(WireValue1(described, request.metric, stamp, window, value.quantity, selector))
        else:
            items.append(WireValue2(described, WireMetric(request.metric, selector), stamp, window, value.quantity))
    return encode(WireList("MetricValueList", f"{request.group}/{request.version}", {}, items))


def encode_external(request: Metric, values: Sequence[Value]) -> bytes:
    """An ExternalMetricValueList."""
    items = [
        WireExternalValue(
            request.metric,
            _sorted(value.labels),
            timestamp(value.timestamp),
            msgspec.UNSET if value.window_seconds is None else value.window_seconds,
            value.quantity,
        )
        for value in values
    ]
    return encode(WireList("ExternalMetricValueList", f"{request.group}/{request.version}", {}, items))


def selector_of(terms: Sequence[Term]) -> WireSelector | None:
    """The selector of ``terms`` as an object, ordered by key; None without terms.

    prometheus-adapter fails on ``!=``; here it is written as the equivalent NotIn.
    """
    if not terms:
        return None
    ordered = sorted(terms, key=lambda term: term.key)
    equal = {term.key: term.values[0] for term in ordered if term.operator in ("=", "==")}
    other_requirements = [term.requirement for term in ordered if term.operator not in ("=", "==")]
    return WireSelector(
        equal, tuple(WireExpression(requirement.key, requirement.operator, requirement.values) for requirement in other_requirements)
    )


def timestamp(seconds: float) -> str:
    """A time in RFC 3339 with whole seconds, as ``metav1.Time`` is written."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _sorted(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(labels.items()))
