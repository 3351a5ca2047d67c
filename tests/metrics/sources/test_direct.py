"""Values directly from exporters: metrics made from their pages, and the delay."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import structlog
from aiohttp import web
from tests.metrics.building import pod

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS
from gpuscaler.metrics.rules.builtin import builtin_rules
from gpuscaler.metrics.sources.direct import ExporterSource, RunningMean, ScrapeSettings
from gpuscaler.metrics.sources.evaluating import Timing
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.metrics.sources.outages import EXPORTER, NAMED, find_exporter_outages, outage_log
from gpuscaler.metrics.sources.pages import LONGEST_LINE, MOST_FIGURES, MOST_NAMES, PageReader
from gpuscaler.metrics.sources.values import MetricInfo, UnknownMetric, Value
from gpuscaler.model.selector_text import parse_selector
from gpuscaler.serving.logs import Finding

pytestmark = pytest.mark.looptime(False)  # real sockets take real time

APP = parse_selector("app=llm")
EXPORTERS = parse_selector("app.kubernetes.io/component=exporter")
DUTY = "duty_cycle_current"


def page(*lines: str, measured: float | None = None) -> str:
    """A page with a device that was measured ``age`` seconds ago."""
    own = [] if measured is None else [f'gpuscaler_gpu_last_sample_timestamp_seconds{{uuid="a"}} {time.time() - measured:.3f}']
    return "# HELP nvidia_gpu_duty_cycle x.\n# TYPE nvidia_gpu_duty_cycle gauge\n" + "\n".join((*lines, *own)) + "\n"


def duty_line(
    value: float, name: str = "p0", *, uuid: str = "a", node: str = "n0", metric: str = "nvidia_gpu_duty_cycle", more: str = ""
) -> str:
    return f'{metric}{{node_name="{node}",uuid="{uuid}",pod_name="{name}",namespace_name="ml",container_name="c"{more}}} {value}'


@dataclass
class Nodes:
    """The page of each exporter, by address; an answer may be a status, or 0 for no answer. ``later``: seconds that the test skipped."""

    pages: dict[str, str | int] = field(default_factory=dict)
    never: asyncio.Event = field(default_factory=asyncio.Event)
    source: Any = None
    client: Any = None
    port: int = 0
    later: float = 0.0


def exporter(name: str, address: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "exporter"}
    made = on(f"n{int(address.rpartition('.')[2]) - 1}", pod(name, "gpus", **labels))
    made["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "e", "uid": "e", "controller": True}]
    return {**made, "status": {"phase": "Running", "podIP": address}}


def on(node: str, made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "spec": {**made["spec"], "nodeName": node}}


@asynccontextmanager
async def scraped(
    pages: dict[str, str | int], *pods: dict[str, Any], stale: float = 30.0, patience: float = 5.0, namespace: str = "gpus"
) -> AsyncIterator[Nodes]:
    """Exporters at these loopback addresses, on one port."""
    nodes = Nodes(pages)

    async def answer(request: web.Request) -> web.Response:
        page = nodes.pages.get(request.host.partition(":")[0], 404)
        if page == 0:
            await nodes.never.wait()
        return web.Response(status=page) if isinstance(page, int) else web.Response(text=page)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    nodes.port = runner.addresses[0][1]
    api = ApiServer(time.time)
    api.load([*(exporter(f"exporter-{number}", address) for number, address in enumerate(pages)), *pods])
    nodes.client = Client(MemoryTransport(api))
    nodes.source = ExporterSource(
        Objects(nodes.client, clock=time.monotonic, random=Random(1)),
        scraping=ScrapeSettings(namespace=namespace, selector=EXPORTERS, port=nodes.port, interval=0.05, timeout=patience),
        timing=Timing(period=1.0, stale=stale),
        clock=lambda: time.monotonic() + nodes.later,
        wall=lambda: time.time() + nodes.later,
    )
    running = asyncio.create_task(nodes.source.run())
    try:
        await eventually(lambda: nodes.source.trouble == "")
        yield nodes
    finally:
        running.cancel()
        await asyncio.wait([running])
        await runner.cleanup()


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # it is other tasks that change it
            await asyncio.sleep(0.02)


async def told(nodes: Nodes, metric: str = DUTY, **more: Any) -> dict[str, str]:
    asked: dict[str, Any] = {"group_resource": "pods", "namespace": "ml", "label_selector": APP, "metric": metric} | more
    return {value.name: value.quantity for value in await nodes.source.for_selector(**asked)}


async def becomes(nodes: Nodes, wanted: dict[str, str], metric: str = DUTY, **more: Any) -> None:
    async with asyncio.timeout(30):
        while await told(nodes, metric, **more) != wanted:  # noqa: ASYNC110  # it is other tasks that change it
            await asyncio.sleep(0.02)


#: One line for each gauge of the exporter.
PAGE = page(
    duty_line(40),
    *(duty_line(1, metric=f"nvidia_gpu_{name}") for name in ("memory_used_bytes", "memory_total_bytes", "power_usage_milliwatts")),
    *(
        duty_line(1, metric=f"gpuscaler_gpu_{name}")
        for name in ("sm_clock_hertz", "memory_reserved_bytes", "pcie_sent_bytes_per_second", "lost")
    ),
    *(
        duty_line(1, metric=f"gpuscaler_gpu_{name}_{how}", more=f',window="{window}"')
        for name in ("duty_cycle_ratio", "memory_used_bytes", "power_watts")
        for how in ("max", "mean")
        for window in ("15s", "60s")
    ),
    duty_line(1, metric="gpuscaler_gpu_energy_joules_total"),
    duty_line(1, metric="gpuscaler_gpu_process_memory_used_bytes"),
    duty_line(1, metric="gpuscaler_gpu_allocation_info"),
)


def _takes(query: str, labels: dict[str, str]) -> bool:
    """Whether a selector of the built-in rules matches a series."""
    for label, operator, wanted in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', query):
        value = labels.get(label, "")
        if (re.fullmatch(wanted, value) is not None if operator == "=~" else (value == wanted) == (operator == "=")) is False:
            return False
    return True


PODS_ = (on("n0", pod("p0", app="llm")), on("n0", pod("p1", app="llm")), on("n0", pod("other")))
#: The second of two pods, on its own node.
APART = (PODS_[0], on("n1", pod("p1", app="llm")))


async def test_a_pod_has_the_mean_of_its_gpus_rates_and_the_sum_of_their_memory() -> None:
    memory = "nvidia_gpu_memory_used_bytes"
    pages: dict[str, str | int] = {
        "127.0.0.1": page(duty_line(40), duty_line(60, uuid="b"), duty_line(1000, metric=memory), duty_line(500, uuid="b", metric=memory)),
        "127.0.0.2": page(duty_line(90, "p1", uuid="c", node="n1"), duty_line(7, "p1", uuid="c", node="n1", metric=memory)),
    }
    async with scraped(pages, *APART) as nodes:
        await becomes(nodes, {"p0": "50", "p1": "90"})
        await becomes(nodes, {"p0": "1500", "p1": "7"}, "memory_used_bytes_current")
        node = await nodes.source.for_object(group_resource="nodes", namespace="", name="n1", metric=DUTY)
        assert (node.name, node.quantity) == ("n1", "90")
        assert MetricInfo("pods", True, "memory_used_bytes_current") in nodes.source.custom_metrics()


async def test_other_metrics_have_the_names_and_windows_of_the_built_in_rules() -> None:
    name = "gpuscaler_gpu_duty_cycle_ratio_mean"
    power = (duty_line(100.5, metric="gpuscaler_gpu_power_watts_max", uuid=uuid, more=',window="60s"') for uuid in "ab")
    lines = (duty_line(0.25, metric=name, more=',window="15s"'), duty_line(0.75, metric=name, more=',window="60s"'), duty_line(1), *power)
    async with scraped({"127.0.0.1": page(*lines, duty_line(0.5, metric="gpuscaler_gpu_sm_occupancy_ratio"))}, *PODS_) as nodes:
        await becomes(nodes, {"p0": "750m"}, "gpu_duty_cycle_ratio_mean_60s")
        await becomes(nodes, {"p0": "250m"}, "gpu_duty_cycle_ratio_mean_15s")
        await becomes(nodes, {"p0": "201"}, "gpu_power_watts_max_60s")
        await becomes(nodes, {"p0": "500m"}, "gpu_sm_occupancy_ratio")


async def test_a_metric_selector_selects_series_of_gpus() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40), duty_line(60, uuid="b"))}, *PODS_) as nodes:
        await becomes(nodes, {"p0": "60"}, metric_selector=parse_selector("uuid=b"))


async def test_metrics_have_the_names_of_the_built_in_rules() -> None:
    """Checked for every gauge that the simulated exporter has for a pod."""
    shown = [f.metric for f in PageReader().read(PAGE.encode()).figures]
    series = [{"__name__": name, "uuid": "x", "pod_name": "p", "namespace_name": "ml", "node_name": "n"} for name in dict.fromkeys(shown)]
    windowed = [
        labels | {"window": window} for labels in series if labels["__name__"].endswith(("_max", "_mean")) for window in ("15s", "60s")
    ]
    plain = [labels for labels in series if not labels["__name__"].endswith(("_max", "_mean"))]
    rules = builtin_rules()
    series_by_query = {query: [labels for labels in (*plain, *windowed) if _takes(query, labels)] for query in rules.series_queries}
    by_rules = {metric for resource, metric in rules.discover(series_by_query).custom if resource == "pods"}
    async with scraped({"127.0.0.1": PAGE}, *PODS_) as nodes:
        assert {custom_metric.metric for custom_metric in nodes.source.custom_metrics()} == by_rules


async def test_a_new_sample_is_used_after_the_next_scrape() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40))}, *PODS_) as nodes:
        await becomes(nodes, {"p0": "40"})
        nodes.pages["127.0.0.1"] = page(duty_line(80))
        await becomes(nodes, {"p0": "80"})


async def test_new_exporters_are_scraped_and_values_of_removed_exporters_disappear() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40)), "127.0.0.2": page(duty_line(90, "p1"))}, *APART) as nodes:
        await becomes(nodes, {"p0": "40", "p1": "90"})
        await nodes.client.delete(PODS, "exporter-1", namespace="gpus", grace=0)
        await becomes(nodes, {"p0": "40"})


async def test_the_last_values_of_an_exporter_that_stops_answering_are_used_until_they_are_too_old() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40)), "127.0.0.2": page(duty_line(90, "p1"))}, *APART, stale=600.0) as nodes:
        await becomes(nodes, {"p0": "40", "p1": "90"})
        nodes.pages["127.0.0.2"] = 503
        await eventually(lambda: "503" in "".join(exporter.trouble for exporter in nodes.source.exporters.values()))
        nodes.later += 400
        await becomes(nodes, {"p0": "40", "p1": "90"})
        nodes.later += 300
        await becomes(nodes, {"p0": "40"})
        nodes.pages["127.0.0.1"] = 500
        await eventually(lambda: all(exporter.trouble for exporter in nodes.source.exporters.values()))
        nodes.later += 700
        await becomes(nodes, {})


async def test_an_exporter_that_hangs_does_not_delay_others() -> None:
    async with scraped(
        {"127.0.0.1": page(duty_line(40)), "127.0.0.2": page(duty_line(90, "p1"))}, *APART, stale=3600.0, patience=3600.0
    ) as nodes:
        await becomes(nodes, {"p0": "40", "p1": "90"})
        nodes.pages["127.0.0.2"] = 0
        for value in (41, 42, 43):
            nodes.pages["127.0.0.1"] = page(duty_line(value))
            await becomes(nodes, {"p0": str(value), "p1": "90"})
        nodes.pages["127.0.0.2"] = page(duty_line(95, "p1"))
        nodes.never.set()
        await becomes(nodes, {"p0": "43", "p1": "95"})


async def test_unknown_metrics_are_not_found_and_external_ones_need_prometheus() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40))}, *PODS_) as nodes:
        await becomes(nodes, {"p0": "40"})
        with pytest.raises(UnknownMetric):
            await told(nodes, "nothing")
        with pytest.raises(UnknownMetric):
            await told(nodes, group_resource="jobs.batch")
        with pytest.raises(UnknownMetric):
            await told(nodes, label_selector=parse_selector("app=missing"))
        with pytest.raises(UnknownMetric, match="use Prometheus for external metrics"):
            await nodes.source.external(namespace="ml", metric=DUTY)
        with pytest.raises(UnknownMetric, match="no fresh sample"):
            await nodes.source.for_object(group_resource="pods", namespace="ml", name="p1", metric=DUTY)


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-5"])
async def test_negative_or_non_finite_samples_give_no_value(text: str) -> None:
    async with scraped({"127.0.0.1": page(duty_line(40).replace(" 40", f" {text}"), duty_line(9, "p1"))}, *PODS_) as nodes:
        await becomes(nodes, {"p1": "9"})


@pytest.mark.parametrize(("measured", "age"), [(2.0, 2.0), (3600.0, 5.0), (-3.0, 0.0), (-3600.0, 5.0)])
async def test_the_age_of_a_value_is_that_of_its_sample_even_if_the_nodes_clock_is_wrong(measured: float, age: float) -> None:
    async with scraped({"127.0.0.1": page(duty_line(40), measured=measured)}, *PODS_) as nodes:
        await becomes(nodes, {"p0": "40"})
        (exporter_,) = nodes.source.exporters.values()
        assert age - 0.5 <= exporter_.age <= age + 4 * (measured == 2.0)
        value: Value = await nodes.source.for_object(group_resource="pods", namespace="ml", name="p0", metric=DUTY)
        assert value.timestamp <= time.time() - exporter_.age + 0.5


def test_labels_are_unescaped_and_counters_and_lines_without_pod_skipped() -> None:
    reader = PageReader()
    text = "\n".join(
        [
            r'nvidia_gpu_duty_cycle{name="a \"b\" \\ c",pod_name="p"} 5',
            'nvidia_gpu_duty_cycle{uuid="unassigned"} 6',
            'gpuscaler_gpu_energy_joules_total{pod_name="p"} 7',
            'gpuscaler_gpu_allocation_info{pod_name="p"} 1',
            'nvidia_gpu_duty_cycle{pod_name="p"} what',
            "garbage",
        ]
    ).encode()
    page = reader.read(text)
    assert [(figure.metric, dict(figure.labels), figure.value) for figure in page.figures] == [
        ("nvidia_gpu_duty_cycle", {"name": 'a "b" \\ c', "pod_name": "p"}, 5.0)
    ]
    assert reader.read(text).figures[0].labels is page.figures[0].labels


async def is_not_asked(forged: dict[str, Any]) -> None:
    """The pod ``forged`` at 127.0.0.2 must not be treated as an exporter, unlike the other one."""
    async with scraped({"127.0.0.1": page(duty_line(40))}, *APART, forged) as nodes:
        nodes.pages["127.0.0.2"] = page(duty_line(90, "p1"))
        await becomes(nodes, {"p0": "40"})
        nodes.pages["127.0.0.1"] = page(duty_line(41))
        await becomes(nodes, {"p0": "41"})
        assert {exporter.address for exporter in nodes.source.exporters.values()} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("made", "case"),
    [
        (pod("p0", "tenant", **{"app.kubernetes.io/component": "exporter"}), "of another namespace"),
        (pod("p0", "gpus", **{"app.kubernetes.io/component": "exporter"}), "made by no DaemonSet"),
    ],
)
async def test_only_pods_of_a_daemon_set_in_the_named_namespace_are_exporters(made: dict[str, Any], case: str) -> None:
    forged = {**on("n1", made), "status": {"phase": "Running", "podIP": "127.0.0.2"}}
    if case == "of another namespace":
        forged["metadata"]["ownerReferences"] = exporter("x", "127.0.0.2")["metadata"]["ownerReferences"]
    await is_not_asked(forged)


async def test_no_pod_counts_as_an_exporter_if_no_namespace_is_configured() -> None:
    async with scraped({"127.0.0.1": page(duty_line(40))}, *PODS_, namespace="") as nodes:
        assert nodes.source.exporters == {}


async def test_an_exporter_is_trusted_only_about_pods_of_its_own_node() -> None:
    """Not about pods that run elsewhere or not at all, nor about another node's name."""
    pages: dict[str, str | int] = {
        "127.0.0.1": page(duty_line(40)),
        "127.0.0.2": page(duty_line(100), duty_line(100, "ghost"), duty_line(60, "p1", node="n0")),
    }
    async with scraped(pages, *APART) as nodes:
        await becomes(nodes, {"p0": "40", "p1": "60"})
        node = {name: await nodes.source.for_object(group_resource="nodes", namespace="", name=name, metric=DUTY) for name in ("n0", "n1")}
        assert {name: value.quantity for name, value in node.items()} == {"n0": "40", "n1": "60"}


@pytest.mark.parametrize(
    "text",
    [
        b'nvidia_gpu_duty_cycle{pod_name="x",' + b"a" * 2_000_000 + b"} 1",
        b'nvidia_gpu_duty_cycle{pod_name="' + b"\\\\" * 1_000_000 + b"} 1",
        b"nvidia_gpu_" + b"a" * 2_000_000,
        b"nvidia_gpu_duty_cycle{" + b"} 1" * 700_000,
        (b'nvidia_gpu_duty_cycle{pod_name="x",' + b"a" * 3_900 + b"} 1\n") * 1_000,
        (b'nvidia_gpu_duty_cycle{pod_name="' + b"a=" * 1_900 + b"} 1\n") * 1_000,
    ],
)
def test_an_exporters_page_is_parsed_in_linear_time(text: bytes) -> None:
    began = time.process_time()
    figures = PageReader().read(text).figures
    assert time.process_time() - began < 2
    assert not any(figure.labels for figure in figures)


def test_numbers_of_names_and_values_and_the_length_of_lines_are_limited_per_page() -> None:
    names = "\n".join(duty_line(1, metric=f"nvidia_gpu_made_up_{number}") for number in range(5_000))
    assert len({figure.metric for figure in PageReader().read(names.encode()).figures}) == MOST_NAMES
    many = "\n".join(duty_line(number) for number in range(30_000))
    assert len(PageReader().read(many.encode()).figures) == MOST_FIGURES
    long = duty_line(1, more=f',model="{"x" * LONGEST_LINE}"')
    assert PageReader().read(f"{long}\n{duty_line(2)}\n".encode()).figures[0].value == 2


def test_the_windowed_duty_cycle_is_the_mean_of_three_minutes() -> None:
    trail = RunningMean()
    for second in range(400):
        trail.add(float(second), 100.0 if second < 200 else 0.0)
    assert trail.mean == 0.0
    for second in range(400, 490):
        trail.add(float(second), 60.0)
    assert trail.mean == pytest.approx(30, abs=1)


@asynccontextmanager
async def telling(nodes: Nodes) -> AsyncIterator[None]:
    """A source that checks for outages all the time and logs them immediately."""
    logging = outage_log(nodes.source.outages, time.monotonic, 0.0, EXPORTER)

    async def look() -> None:
        while True:
            logging.check()
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def test_one_line_is_logged_when_an_exporter_stops_answering_and_one_when_it_answers_again() -> None:
    first, second = "127.0.0.1", "127.0.0.2"
    with structlog.testing.capture_logs() as logs:
        async with scraped({first: page(), second: page()}) as nodes, telling(nodes):
            for _ in range(2):
                before = len(logs)
                nodes.pages[second] = 500
                await eventually(lambda before=before: len(logs) > before)
                nodes.pages[second] = page()
                await eventually(lambda before=before: len(logs) > before + 1)
    about = f"exporter {second} on node n1"
    problem = logs[0].pop("problem")
    assert problem.endswith("/metrics: ClientPayloadError: saw status 500, expected 200")
    begun = {"event": "exporter does not answer", "about": about, "log_level": "warning"}
    over = {"event": "exporter answers again", "about": about, "log_level": "info"}
    assert logs == [begun, over, {**begun, "problem": problem}, over]


async def test_if_no_exporter_answers_one_log_line_has_the_number_of_exporters() -> None:
    addresses = [f"127.0.0.{number}" for number in range(1, 4)]
    with structlog.testing.capture_logs() as logs:
        async with scraped(dict.fromkeys(addresses, page())) as nodes, telling(nodes):
            await eventually(lambda: all(exporter.at > 0 for exporter in nodes.source.exporters.values()))
            # They stop one after the other in any order, unless there is no check in between.
            nodes.source.scraping = replace(nodes.source.scraping, port=1)
            await eventually(lambda: any(log["event"] == "exporters do not answer" for log in logs))
            nodes.source.scraping = replace(nodes.source.scraping, port=nodes.port)
            await eventually(lambda: any(log["event"] == "exporters answer again" for log in logs))
    whole = [log for log in logs if log["event"].startswith("exporters")]
    assert [log["event"] for log in whole] == ["exporters do not answer", "exporters answer again"]
    assert whole[0]["problem"].startswith("3 of 3 do not answer, the first: http://127.0.0.")


def test_many_exporters_that_do_not_answer_are_logged_as_a_number() -> None:
    silent = [(f"exporter {number}", "TimeoutError") for number in range(NAMED + 1)]

    counted = {"exporters": "11 of 12 do not answer, the first: TimeoutError"}
    assert find_exporter_outages([*silent, ("fine", "")]) == Finding(counted, frozenset({"fine"}))
    assert find_exporter_outages([*silent[1:], ("fine", "")]).failing.keys() == {name for name, _ in silent[1:]}
    assert find_exporter_outages([]) == Finding({}, frozenset())
