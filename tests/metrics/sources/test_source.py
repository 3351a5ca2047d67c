"""The whole source: rules, Prometheus and pods, with the calls of the API."""

import asyncio
from typing import Any

import pytest
from tests.metrics.building import RULES, Serving, pod, serving
from tests.metrics.prometheus_double import EPOCH, PrometheusDouble

from gpuscaler.kube.resources import PODS
from gpuscaler.metrics.rules.builtin import builtin_rules
from gpuscaler.metrics.rules.reading import read_rules
from gpuscaler.metrics.sources.prometheus import PrometheusAway
from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, Rejected, Unavailable, UnknownMetric, Value
from gpuscaler.model.selector_text import parse_selector

APP = parse_selector("app=llm")
DUTY = "duty_cycle_current"


def loaded(pods: int = 3, gpus: int = 2, namespace: str = "ml") -> PrometheusDouble:
    """Pods p0, p1, … with the given number of GPUs each, with 10, 20, … percent and 1 kB, 2 kB, …"""
    double = PrometheusDouble()
    for number in range(pods):
        for gpu in range(gpus):
            labels: dict[str, Any] = {
                "uuid": f"GPU-{number}-{gpu}",
                "node_name": f"n{number}",
                "pod_name": f"p{number}",
                "namespace_name": namespace,
            }
            double.put("nvidia_gpu_duty_cycle", 10.0 * (gpu + 1), **labels)
            double.put("nvidia_gpu_memory_used_bytes", 1000.0 * (gpu + 1), **labels)
    return double


def pods(count: int = 3) -> list[dict[str, Any]]:
    return [pod(f"p{number}", app="llm") for number in range(count)]


async def ask(here: Serving, metric: str = DUTY, **more: Any) -> tuple[Value, ...]:
    asked: dict[str, Any] = {"group_resource": "pods", "namespace": "ml", "label_selector": APP, "metric": metric} | more
    return tuple(await here.source.for_selector(**asked))


def told(values: tuple[Value, ...]) -> dict[str, str]:
    return {value.name: value.quantity for value in values}


async def test_the_source_is_ready_and_lists_metrics_once_pods_and_series_are_known() -> None:
    async with serving(*pods(), prometheus=loaded()) as here:
        assert here.source.trouble
        await asyncio.sleep(5)
        assert here.source.trouble == ""
        assert here.source.custom_metrics() == (
            MetricInfo("namespaces", False, DUTY),
            MetricInfo("namespaces", False, "memory_used_bytes_current"),
            MetricInfo("nodes", False, DUTY),
            MetricInfo("nodes", False, "memory_used_bytes_current"),
            MetricInfo("pods", True, DUTY),
            MetricInfo("pods", True, "memory_used_bytes_current"),
        )
        assert here.source.external_metrics() == ()


async def test_rates_of_several_gpus_are_averaged_and_bytes_summed() -> None:
    async with serving(*pods(), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        assert told(await ask(here)) == {"p0": "15", "p1": "15", "p2": "15"}
        assert told(await ask(here, "memory_used_bytes_current")) == {"p0": "3k", "p1": "3k", "p2": "3k"}


async def test_a_value_has_its_object_and_the_time_of_its_oldest_sample() -> None:
    double = loaded(1, 1)
    async with serving(*pods(1), prometheus=double) as here:
        await asyncio.sleep(30)
        assert await ask(here) == (Value(DUTY, "10", EPOCH, "pods", "ml", "p0"),)


async def test_pods_are_selected_by_labels_that_prometheus_does_not_know() -> None:
    async with serving(*pods(2), pod("p2", app="other"), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        assert list(told(await ask(here))) == ["p0", "p1"]
        assert list(told(await ask(here, label_selector=EVERYTHING))) == ["p0", "p1", "p2"]
        assert list(told(await ask(here, label_selector=parse_selector("app in (other,x)")))) == ["p2"]


async def test_one_cluster_wide_query_serves_every_namespace_and_selector() -> None:
    double = PrometheusDouble()
    objects = []
    for number in range(20):
        for name in ("a", "b"):
            objects.append(pod(name, f"team{number}", app="llm"))
            double.put("nvidia_gpu_duty_cycle", number, uuid="x", pod_name=name, namespace_name=f"team{number}", node_name="n")
    async with serving(*objects, prometheus=double) as here:
        await asyncio.sleep(5)
        for number in range(20):
            values = await ask(here, namespace=f"team{number}")
            assert told(values) == {"a": str(number), "b": str(number)}
            assert told(await ask(here, namespace=f"team{number}", label_selector=EVERYTHING)) == {"a": str(number), "b": str(number)}
        assert len(double.asked) == 2
        assert here.source.objects.lists == 1
        assert here.source.evaluator.counts.evaluations == {"cluster": 1}


async def test_a_selector_that_matches_1500_pods_does_not_make_the_query_longer() -> None:
    async with serving(*pods(1500), prometheus=loaded(1500, 1)) as here:
        await asyncio.sleep(5)
        assert len(await ask(here)) == 1500
        assert max(map(len, here.prometheus.asked)) < 200


async def test_a_rule_that_needs_object_names_is_evaluated_for_the_requested_ones_and_counted() -> None:
    double = PrometheusDouble()
    for name in ("p0", "p1", "other"):
        double.put("odd", 7, pod=name, namespace="ml")
    async with serving(*pods(2), prometheus=double) as here:
        await asyncio.sleep(5)
        assert told(await ask(here, "odd")) == {"p0": "7", "p1": "7"}
        assert 'sum(odd{pod=~"p0|p1"}) by (pod)' in double.asked
        assert here.source.evaluator.counts.evaluations == {"names": 1}


async def test_a_name_that_would_inject_into_the_query_is_rejected() -> None:
    double = PrometheusDouble()
    double.put("odd", 7, pod="p0", namespace="ml")
    double.put("queue_length", 7, namespace="ml")
    async with serving(*pods(1), prometheus=double) as here:
        await asyncio.sleep(5)
        before = list(double.asked)
        wrong = 'p0"}) by (pod) or sum(secret{pod!="'
        with pytest.raises(Rejected, match="saw the name"):
            await here.source.for_object(group_resource="pods", namespace="ml", name=wrong, metric="odd")
        with pytest.raises(Rejected, match="saw the name"):
            await here.source.for_object(group_resource="pods", namespace=wrong, name="p0", metric="odd")
        with pytest.raises(Rejected, match="saw the name"):
            await here.source.external(namespace=wrong, metric="queue_length")
        assert double.asked == before


async def test_caches_of_values_and_selections_have_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscaler.metrics.sources.answers._MOST_VALUES", 20)
    monkeypatch.setattr("gpuscaler.metrics.sources.objects._MOST_NAMES", 20)
    async with serving(*pods(), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        for number in range(50):
            assert len(await ask(here, label_selector=parse_selector(f"other!=x{number}"))) == 3
            assert len(await ask(here)) == 3
        assert here.source.answers.size <= 20
        assert here.source.objects.pods.selected <= 20 + 3


async def test_the_same_values_object_is_returned_while_nothing_changes() -> None:
    async with serving(*pods(), prometheus=loaded(), period=20) as here:
        await asyncio.sleep(5)
        first = await here.source.for_selector(group_resource="pods", namespace="ml", label_selector=APP, metric=DUTY)
        await asyncio.sleep(5)
        assert await here.source.for_selector(group_resource="pods", namespace="ml", label_selector=APP, metric=DUTY) is first
        assert here.source.answers.kept == 1
        # Other pods give another answer from the same evaluation.
        await here.client.create(PODS, pod("p9", app="llm"), namespace="ml")
        here.prometheus.put("nvidia_gpu_duty_cycle", 5, uuid="u", pod_name="p9", namespace_name="ml", node_name="n")
        await asyncio.sleep(1)
        second = await here.source.for_selector(group_resource="pods", namespace="ml", label_selector=APP, metric=DUTY)
        assert second is not first
        assert len(here.prometheus.asked) == 2
        await asyncio.sleep(25)
        assert "p9" in told(await ask(here))


async def test_a_sample_that_is_too_old_is_omitted_and_the_others_are_served() -> None:
    double = loaded(2, 1)
    async with serving(*pods(2), prometheus=double, stale=120) as here:
        await asyncio.sleep(5)
        for _ in range(30):
            await asyncio.sleep(10)
            double.put("nvidia_gpu_duty_cycle", 50, uuid="GPU-1-0", node_name="n1", pod_name="p1", namespace_name="ml")
            values = told(await ask(here))
            assert ("p0" in values) == (asyncio.get_running_loop().time() <= 120)
            assert "p1" in values
        assert here.source.answers.freshness.oldest[DUTY] <= 120


async def test_if_every_sample_is_too_old_the_list_is_empty_and_a_single_object_is_an_error() -> None:
    async with serving(*pods(1), prometheus=loaded(1, 1), stale=60) as here:
        await asyncio.sleep(100)
        assert await ask(here) == ()
        with pytest.raises(UnknownMetric, match=r"its last sample is 100 s old, expected one from the last 60 s"):
            await here.source.for_object(group_resource="pods", namespace="ml", name="p0", metric=DUTY)


async def test_values_of_kinds_other_than_pods_are_requested_by_name() -> None:
    async with serving(*pods(1), prometheus=loaded(2, 1)) as here:
        await asyncio.sleep(5)
        node = await here.source.for_object(group_resource="nodes", namespace="", name="n1", metric=DUTY)
        assert node == Value(DUTY, "10", EPOCH, "nodes", "", "n1")
        space = await here.source.for_object(group_resource="namespaces", namespace="", name="ml", metric="memory_used_bytes_current")
        assert space == Value("memory_used_bytes_current", "2k", EPOCH, "namespaces", "", "ml")


async def test_a_metric_selector_is_added_only_to_queries_of_requests_that_have_one() -> None:
    async with serving(*pods(1), prometheus=loaded(1, 2)) as here:
        await asyncio.sleep(5)
        assert told(await ask(here, metric_selector=parse_selector("uuid=GPU-0-1"))) == {"p0": "20"}
        assert told(await ask(here)) == {"p0": "15"}


async def test_a_metric_selector_that_promql_cannot_express_is_rejected() -> None:
    async with serving(*pods(1), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        with pytest.raises(Rejected, match="uuid Gt 5"):
            await ask(here, metric_selector=parse_selector("uuid>5"))


async def test_an_unknown_metric_is_not_found() -> None:
    async with serving(*pods(1), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        with pytest.raises(UnknownMetric):
            await ask(here, "nothing_current")
        with pytest.raises(UnknownMetric):
            await ask(here, group_resource="jobs.batch")
        with pytest.raises(UnknownMetric, match="no object matches"):
            await ask(here, label_selector=parse_selector("app=missing"))
        with pytest.raises(UnknownMetric, match="no fresh sample"):
            await here.source.for_object(group_resource="pods", namespace="ml", name="gone", metric=DUTY)
        with pytest.raises(UnknownMetric):
            await here.source.external(namespace="ml", metric="nothing")


async def test_an_external_metric_has_its_namespace_and_labels() -> None:
    double = PrometheusDouble()
    double.put("queue_length", 7, namespace="ml", queue="a")
    double.put("queue_length", 2.5, namespace="ml", queue="b")
    double.put("queue_length", 9, namespace="other", queue="a")
    async with serving(prometheus=double) as here:
        await asyncio.sleep(5)
        assert here.source.external_metrics() == ("queue_length",)
        values = await here.source.external(namespace="ml", metric="queue_length")
        assert [(value.labels["queue"], value.quantity, value.group_resource) for value in values] == [("a", "7", ""), ("b", "2500m", "")]
        (only,) = await here.source.external(namespace="ml", metric="queue_length", metric_selector=parse_selector("queue=b"))
        assert only.quantity == "2500m"


async def test_the_source_reports_why_it_is_unavailable_without_prometheus() -> None:
    async with serving(*pods(), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        await ask(here)
        here.prometheus.error = PrometheusAway("prometheus:9090: /api/v1/query: cannot connect")
        await asyncio.sleep(30)
        with pytest.raises(Unavailable, match="prometheus:9090: /api/v1/query: cannot connect"):
            await ask(here)
        here.prometheus.error = None
        here.prometheus.touch()
        await asyncio.sleep(15)
        assert told(await ask(here)) == {"p0": "15", "p1": "15", "p2": "15"}


async def test_the_last_value_is_served_during_outages_if_configured() -> None:
    async with serving(*pods(), prometheus=loaded(), hold=300, stale=20) as here:
        await asyncio.sleep(5)
        await ask(here)
        here.prometheus.error = PrometheusAway("no")
        await asyncio.sleep(200)
        assert told(await ask(here)) == {"p0": "15", "p1": "15", "p2": "15"}
        await asyncio.sleep(150)
        with pytest.raises(Unavailable):
            await ask(here)


async def test_a_thousand_autoscalers_cause_two_queries_in_ten_seconds() -> None:
    double = loaded(100, 1)
    async with serving(*pods(100), prometheus=double) as here:
        await asyncio.sleep(5)
        began = len(double.asked)
        for _ in range(20):
            double.touch()
            answers = await asyncio.gather(*(ask(here, label_selector=parse_selector(f"app=llm,x!={number}")) for number in range(50)))
            assert all(len(values) == 100 for values in answers)
            await asyncio.sleep(15)
        assert (len(double.asked) - began) / 300 <= 0.25


async def test_new_rules_are_used_immediately_and_results_of_previous_rules_are_dropped() -> None:
    async with serving(*pods(), prometheus=loaded()) as here:
        await asyncio.sleep(5)
        await ask(here)
        here.source.discoverer.use_rules(read_rules(RULES.replace("${1}_current", "gpu_${1}")))
        await asyncio.sleep(1)
        assert told(await ask(here, "gpu_duty_cycle")) == {"p0": "15", "p1": "15", "p2": "15"}
        with pytest.raises(UnknownMetric):
            await ask(here)


async def test_a_metric_with_new_series_is_discovered_on_request_without_frequent_polling() -> None:
    double = loaded()
    async with serving(*pods(), prometheus=double, relist=600.0) as here:
        await asyncio.sleep(5)
        looks = len(double.looked_for)
        for _ in range(40):
            with pytest.raises(UnknownMetric):
                await ask(here, "http_requests")
            await asyncio.sleep(15)
            double.touch()
        # Every half minute: one request for each of four series queries, and for the labels of existing series.
        assert len(double.looked_for) - looks <= 21 * looks
        double.put("http_requests", 7, pod="p0", namespace="ml")
        with pytest.raises(UnknownMetric):
            await ask(here, "http_requests")
        await asyncio.sleep(31)
        assert told(await ask(here, "http_requests")) == {"p0": "7"}


NEGATIVE = "!gpuscaler.io/autoscale"


async def test_negative_values_are_served_for_user_defined_rules_but_not_for_gpus() -> None:
    double = loaded(1, 1)
    double.put("nvidia_gpu_duty_cycle", -10.0, uuid="GPU-0-0", node_name="n0", pod_name="p0", namespace_name="ml")
    for rules, expected in ((RULES, {"p0": "-10"}), (builtin_rules(), {})):
        async with serving(*pods(1), rules=rules, prometheus=double) as here:
            await asyncio.sleep(5)
            assert told(await ask(here)) == expected


async def test_autoscalers_from_annotations_get_no_negative_values() -> None:
    double = loaded(2, 1)
    double.put("nvidia_gpu_duty_cycle", -10.0, uuid="GPU-0-0", node_name="n0", pod_name="p0", namespace_name="ml")
    double.put("queue_length", -3.0, namespace="ml")
    selector = parse_selector(NEGATIVE)
    async with serving(*pods(2), prometheus=double) as here:
        await asyncio.sleep(5)
        assert told(await ask(here)) == {"p0": "-10", "p1": "10"}
        assert told(await ask(here, metric_selector=selector)) == {"p1": "10"}
        assert [value.quantity for value in await here.source.external(namespace="ml", metric="queue_length")] == ["-3"]
        assert await here.source.external(namespace="ml", metric="queue_length", metric_selector=selector) == ()
        assert not any("gpuscaler.io" in query for query in double.asked)
