"""Metrics of the metrics API itself on ``/metrics``: sources and age of its values, and failures."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuscaler.metrics.sources.answers import AnswerCache
from gpuscaler.metrics.sources.discovering import Discoverer
from gpuscaler.metrics.sources.evaluating import Counts
from gpuscaler.metrics.sources.prometheus import BUCKETS, PrometheusMetrics

PREFIX = "gpuscaler_metrics"


class SourceFigures(Collector):
    """Metrics of a source; ``discoverer`` and ``prometheus`` are None for a source that scrapes exporters itself."""

    def __init__(
        self,
        answers: AnswerCache,
        counts: Counts,
        *,
        discoverer: Discoverer | None = None,
        prometheus: PrometheusMetrics | None = None,
        objects: Callable[[], int] = int,
    ) -> None:
        self._answers, self._counts, self._discoverer = answers, counts, discoverer
        self._prometheus, self._objects = prometheus, objects

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield _counter(
            "answers",
            "Answers by origin",
            "from",
            {
                "kept": self._answers.kept,
                "evaluated": counts.hits,
                "waited": counts.waits,
                "held": counts.held,
            },
        )
        yield _counter("evaluations", "Evaluations of a metric by scope", "scope", counts.evaluations)
        yield _counter("evaluation_failures", "Evaluations that failed, by metric", "metric", counts.failures)
        dropped = counts.dropped | {"stale": counts.dropped.get("stale", 0) + self._answers.freshness.stale}
        yield _counter("samples_dropped", "Samples that cannot be used for scaling", "reason", dropped)
        yield _gauge("freshness_seconds", "Age of the oldest sample in the last answer", "metric", self._answers.freshness.oldest)
        yield CounterMetricFamily(f"{PREFIX}_lists", "Lists of objects that were requested.", value=self._objects())
        if self._discoverer is not None:
            yield from _discovery_metrics(self._discoverer)
        if self._prometheus is not None:
            yield from _prometheus_metrics(self._prometheus)


def _discovery_metrics(discoverer: Discoverer) -> Iterator[Metric]:
    discovery, rules = discoverer.discovery, discoverer.rules
    yield _gauge("served", "Metrics that are served", "kind", {"custom": len(discovery.custom), "external": len(discovery.external)})
    errors = {
        "refused": len(rules.problems),
        "without series": len(discovery.silent),
        "series not known": len(discoverer.troubles),
    }
    yield _gauge("rules_failing", "Rules without effect, by reason", "why", errors)
    yield CounterMetricFamily(f"{PREFIX}_discovery_failures", "Requests for series that failed.", value=discoverer.failures)


def _prometheus_metrics(metrics: PrometheusMetrics) -> Iterator[Metric]:
    requests = CounterMetricFamily(f"{PREFIX}_prometheus_requests", "Requests to Prometheus.", labels=("path", "server", "outcome"))
    for labels, count in metrics.outcomes.items():
        requests.add_metric(labels, count)
    yield requests
    name = f"{PREFIX}_prometheus_request_duration_seconds"
    seconds = HistogramMetricFamily(name, "Duration of requests to Prometheus.", labels=("path", "server"))
    for of, counts in metrics.buckets.items():
        bounds = [*(format(bound, "g") for bound in BUCKETS), "+Inf"]
        seconds.add_metric(of, list(zip(bounds, accumulate(counts), strict=True)), metrics.seconds[of])
    yield seconds


def _counter(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", f"{text}.", labels=(label,))
    for key, count in sorted(counts.items()):
        family.add_metric((key,), count)
    return family


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", f"{text}.", labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family
