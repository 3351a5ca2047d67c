"""Evaluations in virtual time: sharing, timing, and age of the numbers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpuscaler.metrics.sources.evaluating import Cell, Combine, Evaluator, ExternalSeries, Question, Table, Timing
from gpuscaler.metrics.sources.prometheus import PrometheusAway, PrometheusError, QueryRefused, Sample

EPOCH = 1_780_000_000.0
DUTY = Question("duty", "sum(duty)", "ages(duty)", namespace_label="namespace", name_label="pod")


@dataclass
class FakePrometheus:
    """Answers ``delay`` seconds late with ``values`` and ``ages`` by query: pairs of labels and number."""

    values: dict[str, list[tuple[dict[str, str], str]]] = field(default_factory=dict)
    ages: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)
    delay: float = 0.0
    error: PrometheusError | None = None
    asked: list[str] = field(default_factory=list)

    @property
    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    async def query(self, promql: str) -> list[Sample]:
        self.asked.append(promql)
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        if promql in self.ages:
            return [Sample(labels, (self.now, repr(self.now - age))) for labels, age in self.ages[promql]]
        return [Sample(labels, (self.now, text)) for labels, text in self.values[promql]]


def pod(name: str, namespace: str = "team") -> dict[str, str]:
    return {"namespace": namespace, "pod": name}


def duties(**numbers: str) -> FakePrometheus:
    return FakePrometheus(
        {"sum(duty)": [(pod(name), text) for name, text in numbers.items()]}, {"ages(duty)": [(pod(name), 5.0) for name in numbers]}
    )


@asynccontextmanager
async def evaluating(prometheus: Any, **timing: float) -> AsyncIterator[Evaluator]:
    evaluator = Evaluator(prometheus, clock=asyncio.get_running_loop().time, timing=Timing(**timing))
    running = asyncio.create_task(evaluator.run())
    try:
        yield evaluator
    finally:
        running.cancel()
        await asyncio.wait([running])


async def answer(evaluator: Evaluator, question: Question = DUTY) -> Table:
    return (await evaluator.table(evaluator.state(question)))[0]


def numbers(table: Table) -> Mapping[str, float]:
    return {name: cell.number for (_, name), cell in table.cells.items()}


async def test_a_thousand_concurrent_requests_share_one_evaluation() -> None:
    prometheus = duties(a="40", b="60.5")
    prometheus.delay = 2
    async with evaluating(prometheus) as evaluator:
        tables = await asyncio.gather(*(answer(evaluator) for _ in range(1000)))
    assert sorted(prometheus.asked) == ["ages(duty)", "sum(duty)"]
    assert all(table is tables[0] for table in tables)
    assert numbers(tables[0]) == {"a": 40, "b": 60.5}


async def test_a_cancelled_request_does_not_cancel_the_evaluation_for_others() -> None:
    prometheus = duties(a="40")
    prometheus.delay = 2
    async with evaluating(prometheus) as evaluator:
        first = asyncio.create_task(answer(evaluator))
        await asyncio.sleep(1)
        second = asyncio.create_task(answer(evaluator))
        await asyncio.sleep(0)
        first.cancel()
        assert numbers(await second) == {"a": 40}
    assert len(prometheus.asked) == 2


async def test_metrics_in_use_are_refreshed_in_advance_so_that_later_requests_do_not_wait() -> None:
    prometheus = duties(a="40")
    prometheus.delay = 2
    loop = asyncio.get_running_loop()
    async with evaluating(prometheus) as evaluator:
        await answer(evaluator)
        for _ in range(20):
            await asyncio.sleep(15)
            began = loop.time()
            table = await answer(evaluator)
            assert loop.time() == began
            assert began - table.at <= 15
        assert evaluator.counts.waits == 1
    # Two queries about every ten seconds, for five minutes.
    assert 50 <= len(prometheus.asked) <= 62


async def test_queries_that_are_no_longer_requested_are_dropped() -> None:
    prometheus = duties(a="40")
    async with evaluating(prometheus) as evaluator:
        await answer(evaluator)
        await asyncio.sleep(140)
        count = len(prometheus.asked)
        await asyncio.sleep(600)
        assert len(prometheus.asked) == count
        assert evaluator.states == {}


async def test_a_value_has_the_time_and_age_of_its_oldest_sample() -> None:
    prometheus = duties(a="40")
    prometheus.ages["ages(duty)"] = [(pod("a"), 5.0), (pod("a"), 70.0)]
    await asyncio.sleep(100)
    async with evaluating(prometheus) as evaluator:
        assert (await answer(evaluator)).cells == {("team", "a"): Cell(40, EPOCH + 30, 70)}


async def test_a_value_without_raw_samples_has_the_time_of_its_evaluation() -> None:
    prometheus = duties(a="40", b="50")
    del prometheus.ages["ages(duty)"][0]
    await asyncio.sleep(100)
    async with evaluating(prometheus) as evaluator:
        assert (await answer(evaluator)).cells == {("team", "a"): Cell(40, EPOCH + 100, 0), ("team", "b"): Cell(50, EPOCH + 95, 5)}
        assert evaluator.counts.dropped == {}


async def test_zero_computed_for_a_missing_series_is_a_value() -> None:
    prometheus = FakePrometheus({"sum(queue) or vector(0)": [({}, "0")]}, {"age": []})
    async with evaluating(prometheus) as evaluator:
        table = await answer(evaluator, Question("queue", "sum(queue) or vector(0)", "age"))
    assert table.series == (ExternalSeries({}, Cell(0, EPOCH, 0)),)


async def test_a_sample_that_disappears_between_value_and_age_queries_is_not_treated_as_fresh() -> None:
    prometheus = duties(a="2")
    prometheus.ages["ages(duty)"] = [(pod("a"), 295.0)]
    async with evaluating(prometheus) as evaluator:
        await answer(evaluator)
        # The number still exists, but the companion query a moment later sees no sample any more.
        prometheus.ages["ages(duty)"] = []
        await asyncio.sleep(12)
        assert numbers(await answer(evaluator)) == {}
        assert evaluator.counts.dropped == {"stale": 1}
        await asyncio.sleep(10)
        assert numbers(await answer(evaluator)) == {"a": 2}


async def test_a_negative_value_of_a_user_defined_rule_is_served() -> None:
    async with evaluating(duties(a="-40", b="50")) as evaluator:
        question = Question("duty", "sum(duty)", "ages(duty)", "", "namespace", "pod", below_zero=True)
        assert numbers(await answer(evaluator, question)) == {"a": -40, "b": 50}
        assert numbers(await answer(evaluator)) == {"b": 50}
        assert evaluator.counts.dropped == {"negative": 1}


@pytest.mark.parametrize(("text", "reason"), [("NaN", "NaN"), ("+Inf", "infinite"), ("-Inf", "infinite"), ("-1", "negative"), ("x", "NaN")])
async def test_negative_or_non_finite_results_give_no_value_and_are_counted(text: str, reason: str) -> None:
    prometheus = duties(a=text, b="50")
    async with evaluating(prometheus) as evaluator:
        assert numbers(await answer(evaluator)) == {"b": 50}
        assert evaluator.counts.dropped == {reason: 1}


@pytest.mark.parametrize(("combine", "number"), [("mean", 50.0), ("sum", 100.0), ("max", 80.0)])
async def test_several_results_for_one_object_are_combined(combine: Combine, number: float) -> None:
    prometheus = duties(a="20")
    prometheus.values["sum(duty)"].append((pod("a"), "80"))
    async with evaluating(prometheus) as evaluator:
        assert numbers(await answer(evaluator, Question("duty", "sum(duty)", "ages(duty)", "", "namespace", "pod", combine))) == {
            "a": number
        }


async def test_a_pod_has_no_value_if_one_of_its_gpus_has_none() -> None:
    prometheus = duties(a="20")
    prometheus.values["sum(duty)"].append((pod("a"), "NaN"))
    async with evaluating(prometheus) as evaluator:
        assert numbers(await answer(evaluator)) == {}


async def test_results_without_a_namespace_label_belong_to_the_requested_namespace() -> None:
    prometheus = duties(a="20")
    async with evaluating(prometheus) as evaluator:
        table = await answer(evaluator, Question("duty", "sum(duty)", "ages(duty)", namespace="ml", name_label="pod"))
    assert list(table.cells) == [("ml", "a")]


async def test_an_external_metric_has_one_value_per_series_with_its_labels() -> None:
    prometheus = FakePrometheus({"queue": [({"queue": "a"}, "3"), ({"queue": "b"}, "NaN")]}, {"age": [({}, 7.0)]})
    async with evaluating(prometheus) as evaluator:
        table = await answer(evaluator, Question("queue", "queue", "age"))
    assert [(series.labels, series.cell.number, series.cell.age) for series in table.series] == [({"queue": "a"}, 3, 7)]


async def test_the_previous_result_is_served_after_one_failed_evaluation() -> None:
    prometheus = duties(a="40")
    async with evaluating(prometheus) as evaluator:
        await answer(evaluator)
        prometheus.error = PrometheusAway("no")
        await asyncio.sleep(14)
        assert numbers(await answer(evaluator)) == {"a": 40}
        prometheus.error = None
        await asyncio.sleep(15)
        assert numbers(await answer(evaluator)) == {"a": 40}
        assert evaluator.counts.failures == {"duty": 1}


async def test_without_prometheus_requests_fail_immediately_and_get_no_value() -> None:
    prometheus = duties(a="40")
    loop = asyncio.get_running_loop()
    async with evaluating(prometheus) as evaluator:
        await answer(evaluator)
        prometheus.error, prometheus.delay = PrometheusAway("prometheus: no answer within 10 s"), 10
        await asyncio.sleep(60)
        for _ in range(20):
            began = loop.time()
            with pytest.raises(PrometheusAway, match="no answer within 10 s"):
                await answer(evaluator)
            assert loop.time() - began <= 10
            await asyncio.sleep(15)
        prometheus.error, prometheus.delay = None, 0
        await asyncio.sleep(15)
        assert numbers(await answer(evaluator)) == {"a": 40}


async def test_an_unavailable_prometheus_is_not_queried_for_every_request() -> None:
    prometheus = duties(a="40")
    prometheus.error = PrometheusAway("no")
    async with evaluating(prometheus) as evaluator:
        for _ in range(500):
            with pytest.raises(PrometheusAway):
                await answer(evaluator)
            await asyncio.sleep(0.1)
    assert len(prometheus.asked) <= 2 * 50 / 5 + 2


async def test_the_last_result_is_kept_only_for_the_configured_time() -> None:
    prometheus = duties(a="40")
    async with evaluating(prometheus, hold=60) as evaluator:
        await answer(evaluator)
        prometheus.error = PrometheusAway("no")
        await asyncio.sleep(50)
        table, held = await evaluator.table(evaluator.state(DUTY))
        assert held
        assert numbers(table) == {"a": 40}
        await asyncio.sleep(30)
        with pytest.raises(PrometheusAway):
            await answer(evaluator)


async def test_a_rejected_query_is_not_answered_with_the_previous_result() -> None:
    prometheus = duties(a="40")
    async with evaluating(prometheus, hold=600) as evaluator:
        await answer(evaluator)
        prometheus.error = QueryRefused("parse error")
        await asyncio.sleep(12)
        with pytest.raises(QueryRefused, match="parse error"):
            await answer(evaluator)


async def test_concurrent_evaluations_are_limited() -> None:
    prometheus = duties(a="40")
    prometheus.delay = 1
    loop = asyncio.get_running_loop()
    evaluator = Evaluator(prometheus, clock=loop.time, at_once=5)
    questions = [Question(f"duty{number}", "sum(duty)", "ages(duty)", "", "namespace", "pod") for number in range(20)]
    await asyncio.gather(*(answer(evaluator, question) for question in questions))
    assert loop.time() == pytest.approx(4, abs=0.01)


async def test_a_request_queued_behind_a_hanging_prometheus_fails_before_its_timeout() -> None:
    prometheus = duties(a="40")
    prometheus.delay = 1_000
    loop = asyncio.get_running_loop()
    evaluator = Evaluator(prometheus, clock=loop.time, timing=Timing(patience=12), at_once=2)
    questions = [Question(f"duty{number}", "sum(duty)", "ages(duty)", "", "namespace", "pod") for number in range(9)]
    outcomes = await asyncio.gather(*(answer(evaluator, question) for question in questions), return_exceptions=True)
    assert loop.time() == pytest.approx(12, abs=0.01)
    assert all(isinstance(outcome, PrometheusAway) and "9 evaluations are running" in str(outcome) for outcome in outcomes)


async def test_requests_fail_if_prometheus_is_slower_than_the_lifetime_of_a_result() -> None:
    prometheus = duties(a="40")
    prometheus.delay = 3
    async with evaluating(prometheus, period=1) as evaluator:
        with pytest.raises(PrometheusAway, match="within 2 s"):
            await answer(evaluator)


async def test_the_least_recently_requested_of_too_many_queries_are_dropped() -> None:
    evaluator = Evaluator(duties(a="40"), clock=asyncio.get_running_loop().time, most_questions=20)
    for number in range(100):
        await answer(evaluator, DUTY)
        await answer(evaluator, Question(f"duty{number}", "sum(duty)", "ages(duty)", "", "namespace", "pod"))
        await asyncio.sleep(0.01)
    assert len(evaluator.states) <= 20
    assert DUTY in evaluator.states


async def test_waiting_queries_are_limited_to_the_number_that_is_stored() -> None:
    prometheus = duties(a="40")
    prometheus.delay = 5
    evaluator = Evaluator(prometheus, clock=asyncio.get_running_loop().time, most_questions=20)
    questions = [Question(f"duty{number}", "sum(duty)", "ages(duty)", "", "namespace", "pod") for number in range(21)]
    outcomes = await asyncio.gather(*(answer(evaluator, question) for question in questions), return_exceptions=True)
    assert [str(outcome)[:36] for outcome in outcomes if isinstance(outcome, PrometheusAway)] == ["Prometheus: saw 20 questions waiting"]


async def test_if_results_are_too_large_in_total_all_but_the_newest_are_dropped() -> None:
    evaluator = Evaluator(duties(a="40", b="50"), clock=asyncio.get_running_loop().time, most_numbers=5)
    for number in range(4):
        await answer(evaluator, Question(f"duty{number}", "sum(duty)", "ages(duty)", "", "namespace", "pod"))
        await asyncio.sleep(0.01)
    assert numbers(await answer(evaluator)) == {"a": 40, "b": 50}
    assert [question.metric for question in evaluator.states] == ["duty3", "duty"]
