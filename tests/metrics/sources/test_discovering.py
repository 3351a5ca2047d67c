"""Discovery of metrics: requests for it, and behavior if some of them fail."""

import asyncio

import pytest
from tests.metrics.prometheus_double import EPOCH, PrometheusDouble

from gpuscaler.metrics.rules.reading import read_rules
from gpuscaler.metrics.sources.discovering import Discoverer, RelistTimes, of_name
from gpuscaler.metrics.sources.prometheus import PrometheusAway, QueryRefused

RULES = """
rules:
- seriesQuery: '{__name__=~"^gpu_.*",pod!=""}'
  seriesFilters: [{isNot: _total$}]
  resources: {template: <<.Resource>>}
- seriesQuery: 'http_requests{pod!=""}'
  resources: {template: <<.Resource>>}
externalRules:
- seriesQuery: 'queue_length'
"""


class Picky(PrometheusDouble):
    """Refuses requests that contain ``refused``."""

    refused = ""

    async def series(self, match: str, *, start: float, end: float) -> list[dict[str, str]]:
        if self.refused and self.refused in match:
            raise QueryRefused("too many series")
        return await super().series(match, start=start, end=end)


def filled() -> Picky:
    double = Picky()
    for number in range(50):
        for name in ("gpu_duty", "gpu_errors_total", "http_requests"):
            double.put(name, 1, pod=f"p{number}", namespace="ml")
    double.put("queue_length", 1, queue="a")
    return double


def discoverer(double: PrometheusDouble, **looks: float) -> Discoverer:
    return Discoverer(double, read_rules(RULES), wall=lambda: EPOCH + asyncio.get_running_loop().time(), looks=RelistTimes(**looks))


def names(discoverer: Discoverer) -> set[str]:
    return {metric for resource, metric in discoverer.discovery.custom if resource == "pods"} | set(discoverer.discovery.external)


async def test_metrics_are_found_by_names_of_series_and_labels_only() -> None:
    double = filled()
    lister = discoverer(double)
    await lister.list_series()
    assert lister.has_listed
    assert names(lister) == {"gpu_duty", "http_requests", "queue_length"}
    assert {resource for resource, _ in lister.discovery.custom} == {"pods", "namespaces"}
    # Series that no rule matches cause no further requests.
    assert not any("gpu_errors_total" in asked for asked in double.looked_for)
    assert len(double.looked_for) == 6


async def test_a_failed_discovery_request_keeps_its_previous_result_and_affects_no_others() -> None:
    double = filled()
    lister = discoverer(double)
    await lister.list_series()
    double.refused = "http_requests"
    double.put("gpu_memory", 1, pod="p", namespace="ml")
    await lister.list_series()
    assert names(lister) == {"gpu_duty", "gpu_memory", "http_requests", "queue_length"}
    (trouble,) = lister.troubles.values()
    assert "http_requests" in trouble
    assert "too many series" in trouble
    assert lister.failures == 1
    double.refused = ""
    await lister.list_series()
    assert not lister.troubles


async def test_a_discovery_request_that_always_fails_affects_no_others() -> None:
    double = filled()
    double.refused = "gpu_"
    lister = discoverer(double)
    await lister.list_series()
    assert lister.has_listed
    assert names(lister) == {"http_requests", "queue_length"}


async def test_the_source_knows_no_metric_and_is_not_ready_while_prometheus_is_unavailable() -> None:
    double = filled()
    double.error = PrometheusAway("no")
    lister = discoverer(double)
    await lister.list_series()
    assert not lister.has_listed
    assert len(lister.troubles) == 3


async def test_a_series_that_ended_long_ago_no_longer_counts_as_a_metric() -> None:
    double = filled()
    lister = discoverer(double, interval=60, max_age=600)
    running = asyncio.create_task(lister.run())
    for _ in range(20):
        await asyncio.sleep(60)
        double.put("queue_length", 1, queue="a")
    running.cancel()
    assert names(lister) == {"queue_length"}
    assert len(lister.discovery.silent) == 2


async def test_failed_discovery_requests_are_retried_early() -> None:
    double = filled()
    double.error = PrometheusAway("no")
    lister = discoverer(double, interval=600, max_age=600)
    running = asyncio.create_task(lister.run())
    await asyncio.sleep(25)
    assert not lister.has_listed
    double.error = None
    double.touch()
    await asyncio.sleep(15)
    running.cancel()
    assert names(lister) == {"gpu_duty", "http_requests", "queue_length"}


@pytest.mark.parametrize(
    ("query", "narrowed"),
    [
        ('{__name__=~"^a.*",pod!=""}', '{__name__="a",__name__=~"^a.*",pod!=""}'),
        ('{pod!=""}', '{__name__="a",pod!=""}'),
        ('a{pod!=""}', 'a{pod!=""}'),
        (" a ", "a"),
        ('b{pod!=""}', None),
        ("rate(a[5m])", None),
    ],
)
def test_a_discovery_query_can_be_restricted_to_one_metric_name(query: str, narrowed: str | None) -> None:
    assert of_name(query, "a") == narrowed
