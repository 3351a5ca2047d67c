"""The whole chain: simulated GPUs, the real exporter, a real Prometheus, rules, values of pods."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import TypeVar

import pytest
import yaml
from tests.metrics.building import pod
from tests.metrics.real_exporter import exporter
from tests.metrics.real_prometheus import PATIENCE, RealPrometheus, binary, real_prometheus

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.metrics.rules.builtin import builtin_rules
from gpuscaler.metrics.rules.reading import RuleSet, read_rules
from gpuscaler.metrics.sources.discovering import Discoverer, RelistTimes
from gpuscaler.metrics.sources.evaluating import Evaluator, Timing
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.metrics.sources.prometheus import Prometheus, QueryRefused, access_of, server_of
from gpuscaler.metrics.sources.source import PrometheusSource
from gpuscaler.metrics.sources.values import Unavailable, UnknownMetric, Value
from gpuscaler.model.quantities import parse_milli
from gpuscaler.model.selector_text import parse_selector

pytestmark = pytest.mark.looptime(False)  # real processes take real time

APP = parse_selector("app=llm")
#: Seconds between lists of series, and between evaluations.
PERIOD = 0.3
T = TypeVar("T")


#: Usual queries for scaling from zero by a queue whose exporter may disappear with it: metrics and their queries.
FROM_ZERO = {
    "queue_or_zero": "sum(<<.Series>>) or vector(0)",
    "rate_or_zero": "sum(rate(<<.Series>>[5s])) or vector(0)",
    "number": "scalar(sum(<<.Series>>) or vector(7))",
    "gone": "absent(<<.Series>>)",
    "below": "sum(<<.Series>>) - 10",
    "nothing": "sum(<<.Series>>) * NaN",
}


def rules() -> RuleSet:
    external = [
        {"seriesQuery": "queue_length", "resources": {"namespaced": False}, "name": {"as": name}, "metricsQuery": query}
        for name, query in FROM_ZERO.items()
    ]
    return read_rules(yaml.safe_dump({"externalRules": external}))


@asynccontextmanager
async def serving(url: str, rules: RuleSet | None = None, stale: float = 120.0) -> AsyncIterator[PrometheusSource]:
    api = ApiServer(time.time)
    api.load([pod("training-0", app="llm"), pod("inference-0", app="llm"), pod("idle-0", app="llm")])
    prometheus = Prometheus([server_of(access_of(url))], clock=time.monotonic, timeout=5.0)
    source = PrometheusSource(
        Discoverer(prometheus, rules or builtin_rules(), wall=time.time, looks=RelistTimes(interval=PERIOD, max_age=600)),
        Evaluator(prometheus, clock=time.monotonic, timing=Timing(period=PERIOD, stale=stale)),
        Objects(Client(MemoryTransport(api)), clock=time.monotonic, random=Random(1)),
        clock=time.monotonic,
    )
    running = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        running.cancel()
        await asyncio.wait([running])
        await prometheus.close()


async def until(fetch: Callable[[], Awaitable[T]], wanted: Callable[[T], bool]) -> T:
    async with asyncio.timeout(PATIENCE):
        while not wanted(value := await fetch()):  # noqa: ASYNC110  # it is other processes that change it
            await asyncio.sleep(0.1)
    return value


@dataclass
class Queue:
    """An exporter of a queue, until it is stopped."""

    server: ThreadingHTTPServer = field(default_factory=lambda: ThreadingHTTPServer(("127.0.0.1", 0), QueuePage))

    def start(self) -> str:
        """Return HOST:PORT."""
        Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return f"127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class QueuePage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"queue_length 4\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@dataclass(frozen=True)
class Exporters:
    """Exporters, each with a Prometheus of its own: two of GPUs, one of a queue. Each test stops what it uses."""

    gpus: "tuple[tuple[subprocess.Popen[bytes], RealPrometheus], ...]"
    queue: tuple[Queue, RealPrometheus]


@pytest.fixture(scope="module")
def exporters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporters]:
    """All start at the same time, because a Prometheus starts to scrape only after five seconds."""
    program = binary()
    with ExitStack() as stack:

        def launched(folder: Path, target: str) -> RealPrometheus:
            prometheus = RealPrometheus(program, folder, [target])
            stack.callback(prometheus.terminate)
            prometheus.launch()
            return prometheus

        gpus = []
        for _ in range(2):
            folder = tmp_path_factory.mktemp("gpus")
            target, process = stack.enter_context(exporter(folder))
            gpus.append((process, launched(folder, target)))
        queue = Queue()
        target = queue.start()
        stack.callback(queue.stop)
        yield Exporters(tuple(gpus), (queue, launched(tmp_path_factory.mktemp("queue"), target)))


@dataclass(frozen=True)
class MonitoredCluster:
    gpus: "subprocess.Popen[bytes]"
    prometheus: RealPrometheus
    source: PrometheusSource

    async def ask(self, metric: str = "duty_cycle_current") -> dict[str, Value] | Exception:
        """Values by pod, or the reason why there are none."""
        try:
            values = await self.source.for_selector(group_resource="pods", namespace="ml", label_selector=APP, metric=metric)
        except (UnknownMetric, Unavailable) as error:
            return error
        return {value.name: value for value in values}

    async def of(self, resource: str, name: str, metric: str) -> int:
        """The metric of one object, in thousandths."""
        namespace = "" if resource == "nodes" else "ml"

        async def ask() -> int | None:
            try:
                value = await self.source.for_object(group_resource=resource, namespace=namespace, name=name, metric=metric)
            except Unavailable:
                return None
            return parse_milli(value.quantity)

        number = await until(ask, lambda number: number is not None)
        assert number is not None
        return number


@asynccontextmanager
async def monitored_cluster(exporters: Exporters, number: int) -> AsyncIterator[MonitoredCluster]:
    gpus, prometheus = exporters.gpus[number]
    await prometheus.answers()
    async with serving(prometheus.url) as source:
        yield MonitoredCluster(gpus, prometheus, source)


def has_both_pods(values: dict[str, Value] | Exception) -> bool:
    return isinstance(values, dict) and len(values) == 2


async def test_gpu_samples_become_pod_values_and_disappear_with_their_exporter(exporters: Exporters) -> None:
    async with monitored_cluster(exporters, 0) as here:
        duty = await until(here.ask, has_both_pods)
        assert isinstance(duty, dict)
        # The third pod has no GPU: it is absent, not 0.
        assert list(duty) == ["inference-0", "training-0"]
        assert 90_000 <= parse_milli(duty["training-0"].quantity) <= 100_000
        assert abs(time.time() - duty["training-0"].timestamp) < PATIENCE
        await until(lambda: here.ask("memory_total_bytes_current"), has_both_pods)
        memory = await here.of("pods", "inference-0", "memory_total_bytes_current")
        assert await here.of("pods", "training-0", "memory_total_bytes_current") == 2 * memory > 0
        assert 30_000 <= await here.of("nodes", "n1", "temperature_celsius_current") <= 70_000

        # Prometheus marks the series of a missing target as stale, so their last values are not used any more.
        here.gpus.terminate()
        assert await until(here.ask, lambda values: values == {}) == {}

        await here.prometheus.stop()
        error = await until(here.ask, lambda values: isinstance(values, Unavailable))
        assert "cannot connect" in str(error)


async def test_values_return_after_a_prometheus_outage_without_a_restart_of_gpuscaler(exporters: Exporters) -> None:
    async with monitored_cluster(exporters, 1) as here:
        await until(here.ask, has_both_pods)
        await here.prometheus.stop()
        await until(here.ask, lambda values: isinstance(values, Unavailable))
        await here.prometheus.start()
        await until(here.ask, has_both_pods)
        assert here.source.objects.lists == 1


async def test_common_scale_from_zero_queries_have_values_with_and_without_samples(exporters: Exporters) -> None:
    queue, prometheus = exporters.queue
    await prometheus.answers()
    async with serving(prometheus.url, rules(), stale=8.0) as source:
        values: dict[str, Sequence[Value]] = {}

        async def ask() -> dict[str, list[str]]:
            if len(source.external_metrics()) < len(FROM_ZERO):
                return {}
            try:
                values.update({name: await source.external(namespace="ml", metric=name) for name in FROM_ZERO})
            except Unavailable:
                return {}
            return {name: [value.quantity for value in several] for name, several in values.items()}

        there = {"queue_or_zero": ["4"], "rate_or_zero": ["0"], "number": ["4"], "gone": [], "below": ["-6"], "nothing": []}
        assert await until(ask, lambda quantities: quantities == there) == there
        queue.stop()
        empty = {"queue_or_zero": ["0"], "rate_or_zero": ["0"], "number": ["7"], "gone": ["1"], "below": [], "nothing": []}
        assert await until(ask, lambda quantities: quantities == empty) == empty
        assert abs(time.time() - values["queue_or_zero"][0].timestamp) < PATIENCE


async def test_an_invalid_query_of_a_rule_is_reported_with_prometheus_own_text(tmp_path: Path) -> None:
    async with real_prometheus(binary(), tmp_path) as running:
        prometheus = Prometheus([server_of(access_of(running.url))], clock=time.monotonic)
        with pytest.raises(QueryRefused, match=r"400 bad_data: .*parse error.*; correct the rule"):
            await prometheus.query("sum(up) by (")
        assert [sample.number for sample in await prometheus.query("vector(3)")] == [3]
        await prometheus.close()
