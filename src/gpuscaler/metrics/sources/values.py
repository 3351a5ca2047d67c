"""What the metrics APIs hand out, and the seam to where it comes from.

Facts: ``k8s.io/metrics`` (types), ``sigs.k8s.io/custom-metrics-apiserver`` (what a provider is asked), prometheus-adapter v0.12
(how a number becomes a quantity).
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from msgspec import Struct

from gpuscaler.model.quantities import format_quantity
from gpuscaler.model.selectors import LabelSelector, Requirement

#: Every selector that was not given: it matches everything.
EVERYTHING = LabelSelector()
#: Among what is asked of series: a number below zero is none, whatever the rule says. Autoscalers made from annotations ask so.
NOT_BELOW_ZERO = Requirement("gpuscaler.io/autoscale", "DoesNotExist")


class Value(Struct, frozen=True, gc=False):
    """One number, of one object or of one external series.

    ``group_resource`` is ``pods`` or ``deployments.apps``, and empty for an external metric, which has ``labels`` instead of ``name``.
    ``namespace`` is empty for objects without one. ``timestamp`` is of the sample, in Unix seconds; ``window_seconds`` is over how long it
    was averaged, None where that is not known. ``quantity`` is in Kubernetes' canonical text, as :func:`quantity` makes it.
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
    """A custom metric that is served: of which resource (``pods``, ``jobs.batch``), and whether that lives in namespaces.

    For one resource ``namespaced`` is always the same: a client refuses the whole group where it is not.
    """

    group_resource: str
    namespaced: bool
    metric: str


class SourceError(Exception):
    """A question that has no answer. The text is for people and is told to whoever asked."""


class UnknownMetric(SourceError):  # noqa: N818 - the API's own name of it is NotFound
    """No such metric for such a resource, or the named object has no fresh sample of it, or no such object."""


class Unavailable(SourceError):  # noqa: N818
    """What is needed for an answer cannot be had now: Prometheus, the API server. Never a reason to answer with a number."""


class Rejected(SourceError):  # noqa: N818
    """The question itself is wrong, such as a selector that cannot be said in PromQL."""


class Source(Protocol):
    """Where values come from. Every method may be asked at any time, many times at once.

    Resources are plurals with their group (``pods``, ``jobs.batch``), lower case. Samples that are missing, stale, or no finite number are
    left out. While nothing changed, the same question is best answered with the very same tuple: its encoded form is kept.
    """

    async def for_object(
        self, *, group_resource: str, namespace: str, name: str, metric: str, metric_selector: LabelSelector = EVERYTHING
    ) -> Value:
        """The metric of one object. Raises :class:`UnknownMetric` where it is not known or has no fresh sample."""
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
        """The metric of every object that ``label_selector`` matches; in all namespaces where ``namespace`` is empty.

        None at all where objects match and none has a fresh sample. Raises :class:`UnknownMetric` where the metric is not known or no
        object matches.
        """
        ...

    async def external(self, *, namespace: str, metric: str, metric_selector: LabelSelector = EVERYTHING) -> Sequence[Value]:
        """One value for each series of an external metric; none at all where nothing is fresh. Raises :class:`UnknownMetric`."""
        ...

    def custom_metrics(self) -> Sequence[MetricInfo]:
        """What can be asked for now."""
        ...

    def external_metrics(self) -> Sequence[str]:
        """The external metrics that can be asked for now."""
        ...


def quantity(value: float) -> str | None:
    """``value`` as a canonical quantity, cut off below a thousandth, or None where it cannot be said as one.

    That is so for NaN and infinities, and from 2**63 thousandths (9.2e15) on: the HorizontalPodAutoscaler would read 0 or a huge negative
    number there. The multiplication is that of prometheus-adapter, so that its answers are ours to the byte.
    """
    thousandths = value * 1000.0
    if not math.isfinite(thousandths) or abs(thousandths) >= 2**63:
        return None
    return format_quantity(Fraction(int(thousandths), 1000))
