"""Metrics of the server's own requests on ``/metrics``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpuscaler.metrics.api.answering import Reply
from gpuscaler.metrics.api.identity import Headers

#: Upper bounds of the histogram of requests, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True, eq=False)
class RequestFigures(Collector):
    """Requests by API group (empty for paths without a metric) and code, and their durations."""

    codes: dict[tuple[str, int], int] = field(default_factory=dict)
    buckets: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def count(self, group: str, code: int, seconds: float) -> None:
        """Count a request."""
        self.codes[group, code] = self.codes.get((group, code), 0) + 1
        counts = self.buckets.get(group)
        if counts is None:
            counts = self.buckets[group] = [0] * (len(BUCKETS) + 1)
            self.seconds[group] = 0.0
        place = 0
        while place < len(BUCKETS) and seconds > BUCKETS[place]:
            place += 1
        counts[place] += 1
        self.seconds[group] += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("gpuscaler_metrics_requests", "Requests by API group and code.", labels=("group", "code"))
        for (group, code), count in sorted(self.codes.items()):
            requests.add_metric((group, str(code)), count)
        yield requests
        took = HistogramMetricFamily("gpuscaler_metrics_request_duration_seconds", "Duration of requests.", labels=("group",))
        for group, counts in sorted(self.buckets.items()):
            bounds = [*(format(bound, "g") for bound in BUCKETS), "+Inf"]
            took.add_metric((group,), list(zip(bounds, accumulate(counts), strict=True)), self.seconds[group])
        yield took


def metrics_page(registry: CollectorRegistry) -> Callable[[Headers], Reply]:
    """The page ``/metrics``, in the format that the client requests."""

    def metrics(headers: Headers) -> Reply:
        encode, content = choose_encoder(headers.get("Accept") or "")
        return Reply(encode(registry), headers={"Content-Type": content})

    return metrics
