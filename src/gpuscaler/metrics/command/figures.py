"""What the metrics API tells of itself on ``/metrics``: where its numbers come from, how old they are, what went wrong."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuscaler.metrics.sources.answers import Answers
from gpuscaler.metrics.sources.discovering import Discoverer
from gpuscaler.metrics.sources.evaluating import Counts
from gpuscaler.metrics.sources.prometheus import BUCKETS, PrometheusMetrics

PREFIX = "gpuscaler_metrics"


class SourceFigures(Collector):
    """Of a source; ``rules`` and ``prometheus`` are None for one that scrapes by itself."""

    def __init__(
        self,
        answers: Answers,
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
            "Answers by where they came from",
            "from",
            {
                "kept": self._answers.kept,
                "evaluated": counts.hits,
                "waited": counts.waits,
                "held": counts.held,
            },
        )
        yield _counter("evaluations", "Evaluations of a metric by what one asks for", "scope", counts.evaluations)
        yield _counter("evaluation_failures", "Evaluations that failed, by metric", "metric", counts.failures)
        dropped = counts.dropped | {"stale": counts.dropped.get("stale", 0) + self._answers.freshness.stale}
        yield _counter("samples_dropped", "Samples that are no numbers to scale by", "reason", dropped)
        yield _gauge("freshness_seconds", "Age of the oldest sample in the last answer", "metric", self._answers.freshness.oldest)
        yield CounterMetricFamily(f"{PREFIX}_lists", "Lists of objects that were asked for.", value=self._objects())
        if self._discoverer is not None:
            yield from _of_rules(self._discoverer)
        if self._prometheus is not None:
            yield from _of_prometheus(self._prometheus)


def _of_rules(discoverer: Discoverer) -> Iterator[Metric]:
    found, rules = discoverer.found, discoverer.rules
    yield _gauge("served", "Metrics that can be asked for", "kind", {"custom": len(found.custom), "external": len(found.external)})
    errors = {
        "refused": len(rules.problems),
        "without series": len(found.silent),
        "series not known": len(discoverer.troubles),
    }
    yield _gauge("rules_failing", "Rules that bring nothing, by why", "why", errors)
    yield CounterMetricFamily(f"{PREFIX}_discovery_failures", "Questions for series that failed.", value=discoverer.failures)


def _of_prometheus(metrics: PrometheusMetrics) -> Iterator[Metric]:
    requests = CounterMetricFamily(f"{PREFIX}_prometheus_requests", "Requests to Prometheus.", labels=("path", "server", "outcome"))
    for labels, count in metrics.outcomes.items():
        requests.add_metric(labels, count)
    yield requests
    name = f"{PREFIX}_prometheus_request_duration_seconds"
    seconds = HistogramMetricFamily(name, "How long Prometheus took to answer.", labels=("path", "server"))
    for of, counts in metrics.buckets.items():
        bounds = [*(format(bound, "g") for bound in BUCKETS), "+Inf"]
        seconds.add_metric(of, list(zip(bounds, accumulate(counts), strict=True)), metrics.seconds[of])
    yield seconds


def _counter(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    found = CounterMetricFamily(f"{PREFIX}_{name}", f"{text}.", labels=(label,))
    for key, count in sorted(counts.items()):
        found.add_metric((key,), count)
    return found


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    found = GaugeMetricFamily(f"{PREFIX}_{name}", f"{text}.", labels=(label,))
    for key, value in sorted(values.items()):
        found.add_metric((key,), value)
    return found
