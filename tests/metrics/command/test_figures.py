"""The metrics on ``/metrics``, parsed as by Prometheus."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from tests.exporter.scraping import Scrape, scrape
from tests.metrics.building import Serving, pod, serving
from tests.metrics.prometheus_double import PrometheusDouble

from gpuscaler.metrics.command.figures import SourceFigures
from gpuscaler.metrics.sources.prometheus import PrometheusAway, PrometheusMetrics
from gpuscaler.metrics.sources.values import Unavailable


def figures(here: Serving, asked: PrometheusMetrics | None = None) -> Scrape:
    registry, source = CollectorRegistry(), here.source
    counts, lists = source.evaluator.counts, source.objects
    registry.register(SourceFigures(source.answers, counts, discoverer=source.discoverer, prometheus=asked, objects=lambda: lists.lists))
    return scrape(generate_latest(registry))


def of_metric(scrape: Scrape, name: str) -> float:
    """The figure about the only metric in use."""
    ((labels, value),) = scrape.samples[name]
    assert labels == {"metric": "duty_cycle_current"}
    return value


async def test_metrics_count_responses_evaluations_sample_ages_and_failures() -> None:
    double = PrometheusDouble()
    for name, value in (("p0", 40.0), ("p1", float("nan"))):
        double.put("nvidia_gpu_duty_cycle", value, uuid=name, pod_name=name, namespace_name="ml", node_name="n")
    async with serving(pod("p0"), pod("p1"), prometheus=double) as here:
        await asyncio.sleep(5)
        for _ in range(3):
            await here.source.for_selector(group_resource="pods", namespace="ml", metric="duty_cycle_current")
        scrape = figures(here)
        assert scrape.value("gpuscaler_metrics_answers_total", **{"from": "waited"}) == 1
        assert scrape.value("gpuscaler_metrics_answers_total", **{"from": "kept"}) == 2
        assert scrape.value("gpuscaler_metrics_evaluations_total", scope="cluster") == 1
        assert scrape.value("gpuscaler_metrics_samples_dropped_total", reason="NaN") == 1
        assert of_metric(scrape, "gpuscaler_metrics_freshness_seconds") == pytest.approx(5)
        assert scrape.value("gpuscaler_metrics_served", kind="custom") == 3
        assert scrape.value("gpuscaler_metrics_rules_failing", why="without series") == 3
        assert scrape.value("gpuscaler_metrics_lists_total") == 1
        double.error = PrometheusAway("no")
        await asyncio.sleep(60)
        with pytest.raises(Unavailable):
            await here.source.for_selector(group_resource="pods", namespace="ml", metric="duty_cycle_current")
        scrape = figures(here)
        assert of_metric(scrape, "gpuscaler_metrics_evaluation_failures_total") >= 5
        assert scrape.value("gpuscaler_metrics_rules_failing", why="series not known") == 4


async def test_durations_of_prometheus_requests_are_a_histogram() -> None:
    asked = PrometheusMetrics()
    for seconds in (0.004, 0.2, 30.0):
        asked.add("/api/v1/query", "p:9090", "ok", seconds)
    async with serving() as here:
        scrape = figures(here, asked)
    name = "gpuscaler_metrics_prometheus_request_duration_seconds"
    assert scrape.value(f"{name}_count") == 3
    assert scrape.value(f"{name}_bucket", le="0.25") == 2
    assert scrape.value(f"{name}_sum") == pytest.approx(30.204)
    assert scrape.value("gpuscaler_metrics_prometheus_requests_total", outcome="ok", server="p:9090") == 3
