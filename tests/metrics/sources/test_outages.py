"""Log lines of `gpuscaler metrics` about failing Prometheus and rules: one at the start and one at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from tests.metrics.building import Serving, pod, serving
from tests.metrics.prometheus_double import PrometheusDouble

from gpuscaler.metrics.command.rules import RulesFile
from gpuscaler.metrics.sources.outages import outage_log
from gpuscaler.metrics.sources.prometheus import PrometheusAway, PrometheusError, QueryRefused
from gpuscaler.metrics.sources.values import SourceError

AWAY = PrometheusAway("http://prometheus: /api/v1/query: no answer within 10 s")
DUTY, ODD = "duty_cycle_current", "odd"


def loaded() -> PrometheusDouble:
    double = PrometheusDouble()
    double.put("nvidia_gpu_duty_cycle", 40.0, uuid="GPU-0", pod_name="p0", namespace_name="ml", node_name="n0")
    double.put("odd", 7.0, pod="p0", namespace="ml")
    return double


@asynccontextmanager
async def telling(double: PrometheusDouble) -> AsyncIterator[Serving]:
    async with serving(pod("p0"), prometheus=double, relist=30.0) as here:
        running = asyncio.create_task(outage_log(here.source.outages, asyncio.get_running_loop().time, 10.0).run())
        try:
            await asyncio.sleep(5)
            yield here
        finally:
            running.cancel()
            await asyncio.wait([running])


async def asked(here: Serving, seconds: float, *metrics: str) -> None:
    """Request a metric every 15 s, as autoscalers do."""
    for _ in range(int(seconds / 15)):
        for series in here.prometheus.stored:
            series.at = asyncio.get_running_loop().time()
        for metric in metrics:
            try:
                await here.source.for_selector(group_resource="pods", namespace="ml", metric=metric)
            except SourceError:
                continue
        await asyncio.sleep(15)


async def test_one_line_is_logged_at_the_start_of_a_prometheus_outage_and_one_at_its_end() -> None:
    double = loaded()
    with structlog.testing.capture_logs() as logs:
        async with telling(double) as here:
            await asked(here, 60, DUTY, ODD)
            for _ in range(2):
                double.error = AWAY
                await asked(here, 600, DUTY, ODD)
                double.error = None
                await asked(here, 60, DUTY, ODD)
    away = {"event": "Prometheus does not answer", "problem": str(AWAY), "log_level": "warning"}
    assert logs == [away, {"event": "Prometheus answers again", "log_level": "info"}] * 2


async def test_a_missing_prometheus_is_logged_even_without_requests() -> None:
    double = loaded()
    double.error = AWAY
    with structlog.testing.capture_logs() as logs:
        async with telling(double):
            await asyncio.sleep(300)
            double.error = None
            await asyncio.sleep(60)
    assert [log["event"] for log in logs] == ["Prometheus does not answer", "Prometheus answers again"]


async def test_one_failed_evaluation_is_not_logged_while_the_previous_result_is_served() -> None:
    double = loaded()
    with structlog.testing.capture_logs() as logs:
        async with telling(double) as here:
            await asked(here, 30, DUTY)
            double.error = AWAY
            await asyncio.sleep(6)
            double.error = None
            await asked(here, 60, DUTY)
    assert logs == []


@pytest.mark.parametrize("error", [QueryRefused("422: many-to-many matching; correct the rule"), AWAY], ids=["refused", "too slow"])
async def test_a_failing_rule_is_logged_once_and_its_recovery_is_logged(error: PrometheusError, monkeypatch: pytest.MonkeyPatch) -> None:
    double = loaded()
    whole = double.query
    broken = True

    async def query(promql: str) -> object:
        if broken and "odd" in promql:
            raise error
        return await whole(promql)

    monkeypatch.setattr(double, "query", query)
    with structlog.testing.capture_logs() as logs:
        async with telling(double) as here:
            await asked(here, 300, DUTY, ODD)
            broken = False
            await asked(here, 60, DUTY, ODD)
    assert logs == [
        {"event": "rule fails", "about": "metric odd", "problem": str(error), "log_level": "warning"},
        {"event": "rule works again", "about": "metric odd", "log_level": "info"},
    ]


async def test_a_failing_rule_that_is_no_longer_used_is_not_logged_as_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    double = loaded()
    whole = double.query

    async def query(promql: str) -> object:
        if "odd" in promql:
            raise QueryRefused("parse error; correct the rule")
        return await whole(promql)

    monkeypatch.setattr(double, "query", query)
    with structlog.testing.capture_logs() as logs:
        async with telling(double) as here:
            await asked(here, 60, DUTY, ODD)
            await asked(here, 600, DUTY)
    assert [log["event"] for log in logs] == ["rule fails"]


def test_errors_in_rules_are_logged_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n- seriesQuery: a\n  ressources: {}\n- {seriesQuery: b, name: {matches: '^(b)$', as: $1_total}}\n")
    with structlog.testing.capture_logs() as logs:
        RulesFile(path)
    left, odd = logs
    assert left["event"] == "rule left out"
    assert left["problem"] == f"{path}:3: rules[0].ressources: unknown key; did you mean resources?"
    assert odd["event"] == "unusual rule"
    assert odd["note"].startswith(f"{path}:4: rules[1].name.as: $1_total is the group named 1_total")
