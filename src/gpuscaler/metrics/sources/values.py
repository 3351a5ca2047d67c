"""The values that the metrics APIs serve, and the interface to their sources.

Based on: ``k8s.io/metrics`` (types), ``sigs.k8s.io/custom-metrics-apiserver`` (requests to a provider), prometheus-adapter v0.12
(conversion of numbers to quantities).
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from msgspec import Struct

from gpuscaler.model.quantities import format_quantity
from gpuscaler.model.selectors import LabelSelector, Requirement

#: The default selector, which matches everything.
EVERYTHING = LabelSelector()
#: In a selector of series: numbers below zero are dropped, regardless of the rule. Autoscalers made from annotations use this.
NOT_BELOW_ZERO = Requirement("gpuscaler.io/autoscale", "DoesNotExist")


class Value(Struct, frozen=True, gc=False):
    """One number, of one object or of one external series.

    ``group_resource`` is ``pods`` or ``deployments.apps``, and empty for an external metric, which has ``labels`` instead of ``name``.
    ``namespace`` is empty for objects without one. ``timestamp`` is that of the sample, in Unix seconds; ``window_seconds`` is the period
    over which it was averaged, None if unknown. ``quantity`` is in the canonical form of Kubernetes, as :func:`format_value` makes it.
    """

    metric: str
    quantity: str
    timestamp: float
    group_resource: str = ""
    namespace: str = ""
    name: str = ""
    window_seconds: int | None = None
    labels: Mapping[str, str] = {}


class MetricInfo(Struct, frozen=True, gc=False, order=True):
    """A custom metric that is served: its resource (``pods``, ``jobs.batch``), and whether that is namespaced.

    ``namespaced`` must be the same for all metrics of one resource; otherwise clients reject the whole group.
    """

    group_resource: str
    namespaced: bool
    metric: str


class SourceError(Exception):
    """A request without an answer. The text is for people and is sent to the client."""


class UnknownMetric(SourceError):  # noqa: N818 - the API's own name of it is NotFound
    """The resource has no such metric, the named object has no fresh sample of it, or there is no such object."""


class Unavailable(SourceError):  # noqa: N818
    """Something needed for an answer is unavailable: Prometheus or the API server. Never answered with a number instead."""


class Rejected(SourceError):  # noqa: N818
    """The request itself is invalid, such as a selector that cannot be expressed in PromQL."""


class Source(Protocol):
    """A source of values. Every method may be called at any time, also concurrently.

    Resources are plurals with their group (``pods``, ``jobs.batch``), in lower case. Samples that are missing, stale or not finite are left
    out. While nothing changes, the same request should return the same tuple object, since its encoded form is cached.
    """

    async def for_object(
        self, *, group_resource: str, namespace: str, name: str, metric: str, metric_selector: LabelSelector = EVERYTHING
    ) -> Value:
        """The metric of one object. Raises :class:`UnknownMetric` if it is unknown or has no fresh sample."""
        ...

    async def for_selector(
        self,
        *,
        group_resource: str,
        namespace: str,
        label_selector: LabelSelector = EVERYTHING,
        metric: str,
        metric_selector: LabelSelector = EVERYTHING,
    ) -> Sequence[Value]:
        """The metric of every object that ``label_selector`` matches; in all namespaces if ``namespace`` is empty.

        The result is empty if objects match but none has a fresh sample. Raises :class:`UnknownMetric` if the metric is unknown or no
        object matches.
        """
        ...

    async def external(self, *, namespace: str, metric: str, metric_selector: LabelSelector = EVERYTHING) -> Sequence[Value]:
        """One value for each series of an external metric; empty if none is fresh. Raises :class:`UnknownMetric`."""
        ...

    def custom_metrics(self) -> Sequence[MetricInfo]:
        """The custom metrics that are served now."""
        ...

    def external_metrics(self) -> Sequence[str]:
        """The external metrics that are served now."""
        ...


def format_value(value: float) -> str | None:
    """``value`` as a canonical quantity, truncated to thousandths, or None if it cannot be represented.

    NaN, infinities, and values from 2**63 thousandths (9.2e15) on cannot be represented: the HorizontalPodAutoscaler would read 0 or a huge
    negative number. The multiplication is that of prometheus-adapter, so that answers are identical to the byte.
    """
    thousandths = value * 1000.0
    if not math.isfinite(thousandths) or abs(thousandths) >= 2**63:
        return None
    return format_quantity(Fraction(int(thousandths), 1000))
