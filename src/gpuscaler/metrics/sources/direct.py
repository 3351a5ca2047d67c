"""Values directly from our exporters, without Prometheus: all exporters are scraped every second.

Metrics are named and combined as by the built-in rules: ``nvidia_gpu_*`` without that prefix and with the suffix ``_current`` or
``_over_time`` (mean of three minutes), ``gpuscaler_gpu_*`` without ``gpuscaler_`` and with their window as a suffix.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from gpuscaler.kube.resources import NAMESPACES, NODES, PODS
from gpuscaler.metrics.sources.answers import AnswerCache
from gpuscaler.metrics.sources.evaluating import Cell, Combine, Counts, Question, State, Table, Timing, combine, describe_unusable
from gpuscaler.metrics.sources.objects import Key, ObjectDescription, Objects
from gpuscaler.metrics.sources.outages import find_exporter_outages
from gpuscaler.metrics.sources.pages import Figure, Page, PageReader
from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, UnknownMetric, Value
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.serving.logs import Finding

_SIX = "nvidia_gpu_"
#: Seconds that ``_over_time`` covers, and the length of one step of it.
OVER, STEP = 180.0, 5.0
#: Greatest age of an exporter's figures with the default interval, in seconds.
EXPIRY = 5.0
#: Seconds after which a question that was not repeated is forgotten.
WANTED = 120.0
#: Limits of stored questions, and of numbers in all of them: new selectors on series make new questions.
_MOST, _MOST_NUMBERS = 1_000, 500_000
#: Most metrics in all pages together; ours has about forty. Largest page that is parsed in the event loop, in bytes.
_MOST_METRICS, _SHORT = 500, 65_536
#: Labels that hold the namespace and the name of an object, by resource.
_NAMED = {"pods": ("namespace_name", "pod_name"), "nodes": ("", "node_name"), "namespaces": ("", "namespace_name")}
_RESOURCES = {"pods": PODS, "nodes": NODES, "namespaces": NAMESPACES}
_OURS = "gpuscaler_"
#: Metrics that are summed over the GPUs of an object; all others are averaged.
_ADDS_UP = re.compile(r"(_bytes|_watts|_milliwatts|_per_second)(_max|_mean)?(_current|_over_time|_15s|_60s)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSettings:
    """Which pods of DaemonSets are exporters, their port, and the scrape interval in seconds. Without a namespace there are none.

    ``share`` is the share of a core that scraping may take; if many exporters would take more, they are scraped less often.
    """

    namespace: str = ""
    selector: LabelSelector = EVERYTHING
    port: int = 9400
    interval: float = 1.0
    timeout: float = 1.0
    share: float = 0.5
    most_bytes: int = 4 * 2**20


@dataclass(slots=True)
class ScrapedExporter:
    """One exporter, on ``node``. ``at`` is when its page was requested (monotonic); ``age`` is the age of its figures then, in seconds."""

    address: str
    node: str
    reader: PageReader = field(default_factory=PageReader)
    page: Page = field(default_factory=lambda: Page((), None))
    at: float = float("-inf")
    age: float = 0.0
    trouble: str = ""
    task: "asyncio.Task[None] | None" = None
    means: "dict[tuple[str, str], RunningMean]" = field(default_factory=dict)


class RunningMean:
    """The mean over the last three minutes, from sums over five seconds each."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int]] = deque()

    def add(self, at: float, value: float) -> None:
        """Add a value. Times are seconds and only grow."""
        step = at - at % STEP
        if self._steps and self._steps[-1][0] == step:
            _, total, count = self._steps.pop()
            self._steps.append((step, total + value, count + 1))
        else:
            self._steps.append((step, value, 1))
        while self._steps[0][0] <= at - OVER:
            self._steps.popleft()

    @property
    def mean(self) -> float:
        return sum(total for _, total, _ in self._steps) / sum(count for _, _, count in self._steps)


class ExporterSource:
    """A :class:`~gpuscaler.metrics.sources.values.Source`, ready once :attr:`trouble` is empty; :meth:`run` scrapes and watches objects.

    ``clock`` is monotonic and ``wall`` Unix time, both in seconds.
    """

    def __init__(
        self, objects: Objects, *, scraping: ScrapeSettings, timing: Timing, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self.objects, self.scraping = objects, scraping
        self.counts = Counts()
        self.answers = AnswerCache(timing, clock)
        self.exporters: dict[Key, ScrapedExporter] = {}
        self._clock, self._wall = clock, wall
        self._metrics: dict[str, list[tuple[ScrapedExporter, Figure]]] = {}
        self._states: dict[tuple[str, str, LabelSelector], State] = {}
        self._round_at: float | None = None
        #: Seconds spent on parsing pages in this round.
        self._parsing_seconds = 0.0
        self._custom: tuple[MetricInfo, ...] = ()

    @property
    def trouble(self) -> str:
        """Why nothing can be answered yet; empty once answers are possible."""
        if not self.objects.synced:
            return "; ".join(self.objects.troubles) or "pods have not been listed yet"
        return "exporters have not been scraped yet" if self._round_at is None else ""

    def outages(self) -> Finding:
        """The exporters that do not answer, and those that do; one that has not been scraped yet is in neither group."""
        scraped = (exporter for exporter in self.exporters.values() if exporter.trouble or exporter.at > float("-inf"))
        return find_exporter_outages((f"exporter {exporter.address} on node {exporter.node}", exporter.trouble) for exporter in scraped)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
            tasks.create_task(self.objects.run(), name="watch objects")
            try:
                while True:
                    began, self._parsing_seconds = self._clock(), 0.0
                    if self.objects.synced:
                        await self.scrape_round(session)
                    took = self._clock() - began
                    await asyncio.sleep(max(self.scraping.interval - took, self._parsing_seconds / self.scraping.share - took, 0.0))
            finally:
                _cancel(self.exporters.values())

    async def scrape_round(self, session: aiohttp.ClientSession) -> None:
        """Scrape all exporters once, concurrently, without waiting for those that take longer than a round."""
        pods, exporters = self._running_exporters(), self.exporters
        self.exporters = {
            key: existing
            if (existing := exporters.get(key)) is not None and (existing.address, existing.node) == (pod.address, pod.node)
            else _exporter(pod)
            for key, pod in pods.items()
        }
        current = set(map(id, self.exporters.values()))
        _cancel(exporter for exporter in exporters.values() if id(exporter) not in current)
        for exporter in self.exporters.values():
            if exporter.task is None or exporter.task.done():
                exporter.task = asyncio.create_task(self._scrape(session, exporter), name=f"scrape {exporter.address}")
        scrapes = [exporter.task for exporter in self.exporters.values() if exporter.task is not None]
        if scrapes:
            await asyncio.wait(scrapes, timeout=self.scraping.interval)
        began = self._clock()
        self._group_figures()
        self._parsing_seconds += self._clock() - began

    async def for_object(
        self, *, group_resource: str, namespace: str, name: str, metric: str, metric_selector: LabelSelector = EVERYTHING
    ) -> Value:
        state, table = self._table(group_resource, metric, metric_selector)
        request = ("object", group_resource, namespace, name, metric, metric_selector)
        values = self.answers.cached(request)
        if values is None:
            selection = ((namespace, name),)
            values = self.answers.make(request, state, table, is_held=False, group_resource=group_resource, selection=selection)
        if not values:
            raise UnknownMetric(self.answers.missing(table, (namespace, name)))
        return values[0]

    async def for_selector(
        self,
        *,
        group_resource: str,
        namespace: str,
        label_selector: LabelSelector = EVERYTHING,
        metric: str,
        metric_selector: LabelSelector = EVERYTHING,
    ) -> Sequence[Value]:
        state, table = self._table(group_resource, metric, metric_selector)
        request = (group_resource, namespace, label_selector, metric, metric_selector)
        values = self.answers.cached(request, namespace, label_selector)
        if values is None:
            index = await self.objects.index(_RESOURCES[group_resource])
            selection = index.select(namespace, label_selector)
            if not selection:
                raise UnknownMetric("no object matches the selector")
            values = self.answers.make(
                request, state, table, is_held=False, group_resource=group_resource, selection=selection, index=index
            )
        return values

    async def external(self, *, namespace: str, metric: str, metric_selector: LabelSelector = EVERYTHING) -> Sequence[Value]:  # noqa: ARG002
        raise UnknownMetric("exporters only have metrics of GPUs; use Prometheus for external metrics")

    def custom_metrics(self) -> Sequence[MetricInfo]:
        return self._custom

    def external_metrics(self) -> Sequence[str]:
        return ()

    def _running_exporters(self) -> dict[Key, ObjectDescription]:
        """The running exporters. Only pods of DaemonSets count, since other pods can have any labels."""
        namespace, selector = self.scraping.namespace, self.scraping.selector
        keys = self.objects.pods.select(namespace, selector) if namespace else ()
        pods = ((key, self.objects.pods.described(key)) for key in keys)
        return {key: pod for key, pod in pods if pod is not None and pod.address and pod.daemon and pod.node}

    async def _scrape(self, session: aiohttp.ClientSession, exporter: ScrapedExporter) -> None:
        host = f"[{exporter.address}]" if ":" in exporter.address else exporter.address
        url, began = f"http://{host}:{self.scraping.port}/metrics", self._clock()
        try:
            async with asyncio.timeout(self.scraping.timeout), session.get(url, allow_redirects=False) as answer:
                text = await self._read_page(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.counts.add(self.counts.failures, "exporter")
            exporter.trouble = f"{url}: {type(error).__name__}: {error}"
            return
        self.counts.add(self.counts.evaluations, "exporter")
        read = self._clock()
        # Large pages are parsed in another thread.
        page = exporter.reader.read(text) if len(text) <= _SHORT else await asyncio.to_thread(exporter.reader.read, text)
        # The figures of a page are at most five seconds old (the exporter ensures that); a node's clock may be off by more.
        page_age = self._wall() - page.measured if page.measured is not None else 0.0
        exporter.page, exporter.at, exporter.trouble = self._verified(page, exporter.node), began, ""
        exporter.age = page_age if 0 <= page_age <= EXPIRY else 0.0 if -EXPIRY <= page_age < 0 else EXPIRY
        self._update_means(exporter)
        self._parsing_seconds += self._clock() - read

    async def _read_page(self, answer: aiohttp.ClientResponse) -> bytes:
        text = bytearray()
        async for piece in answer.content.iter_any():
            text += piece
            if len(text) > self.scraping.most_bytes:
                raise aiohttp.ClientPayloadError(f"saw more than {self.scraping.most_bytes} bytes, expected a page of metrics")
        if answer.status != 200:
            raise aiohttp.ClientPayloadError(f"saw status {answer.status}, expected 200")
        return bytes(text)

    def _verified(self, page: Page, node: str) -> Page:
        """Keep only the figures of pods that are on the node according to the API server, and set the node's own name."""
        on_node: dict[int, Mapping[str, str] | None] = {}
        figures = []
        for figure in page.figures:
            place = id(figure.labels)
            if place not in on_node:
                pod = self.objects.pods.described((figure.labels.get("namespace_name", ""), figure.labels.get("pod_name", "")))
                is_on_node = pod is not None and pod.node == node
                on_node[place] = {**figure.labels, "node_name": node} if is_on_node else None
            labels = on_node[place]
            if labels is not None:
                figures.append(Figure(figure.metric, labels, figure.value))
        return Page(tuple(figures), page.measured)

    def _update_means(self, exporter: ScrapedExporter) -> None:
        """Update the three-minute means."""
        previous, exporter.means = exporter.means, {}
        for figure in exporter.page.figures:
            if figure.metric.startswith(_SIX):
                key = (figure.metric, _identity(figure))
                trail = exporter.means[key] = previous.get(key) or RunningMean()
                trail.add(exporter.at, figure.value)

    def _group_figures(self) -> None:
        """Group the figures of all pages by metric. Tables are made again when they are requested."""
        by_metric: dict[str, list[tuple[ScrapedExporter, Figure]]] = {}
        for exporter in self.exporters.values():
            for figure in exporter.page.figures:
                for metric, value in _metrics_of(exporter, figure):
                    if metric in by_metric or len(by_metric) < _MOST_METRICS:
                        by_metric.setdefault(metric, []).append((exporter, Figure(metric, figure.labels, value)))
        if by_metric.keys() != self._metrics.keys():
            self._custom = tuple(sorted(MetricInfo(resource, resource == "pods", metric) for metric in by_metric for resource in _NAMED))
            self.answers.forget()
        self._metrics, self._round_at = by_metric, self._clock()
        self._forget(self._round_at - WANTED)

    def _table(self, group_resource: str, metric: str, selector: LabelSelector) -> tuple[State, Table]:
        if metric not in self._metrics or group_resource not in _NAMED:
            raise UnknownMetric("; ".join(exporter.trouble for exporter in self.exporters.values() if exporter.trouble))
        now = self._clock()
        request = (group_resource, metric, selector)
        state = self._states.get(request)
        if state is None:
            if len(self._states) >= _MOST or sum(len(state.table.cells) for state in self._states.values() if state.table) > _MOST_NUMBERS:
                self._forget(now)
            state = self._states[request] = State(Question(metric, "", ""), now)
        state.asked_at = now
        if state.table is None or state.tried_at != self._round_at:
            state.table, state.tried_at = self._make_table(group_resource, metric, selector), self._round_at or now
        return state, state.table

    def _forget(self, since: float) -> None:
        """Forget questions that were not asked since then. Cached answers refer to a state, so its table is removed, too."""
        for request, state in list(self._states.items()):
            if state.asked_at <= since:
                state.table = None
                del self._states[request]

    def _make_table(self, group_resource: str, metric: str, selector: LabelSelector) -> Table:
        now = self._clock()
        namespace_label, name_label = _NAMED[group_resource]
        numbers: dict[Key, list[float]] = {}
        ages: dict[Key, float] = {}
        for exporter, figure in self._metrics[metric]:
            labels = figure.labels
            if not selector.matches(labels):
                continue
            key = (labels.get(namespace_label, ""), labels.get(name_label, ""))
            numbers.setdefault(key, []).append(figure.value)
            ages[key] = max(ages.get(key, 0.0), now - exporter.at + exporter.age)
        how: Combine = "sum" if _ADDS_UP.search(metric) else "mean"
        cells = {}
        for key, values in numbers.items():
            reason = next(filter(None, map(describe_unusable, values)), "")
            if reason:
                self.counts.add(self.counts.dropped, reason)
            else:
                cells[key] = Cell(combine(how, values), self._wall() - ages[key], ages[key])
        return Table(now, cells)


def _exporter(pod: ObjectDescription) -> ScrapedExporter:
    return ScrapedExporter(pod.address, pod.node)


def _cancel(exporters: Iterable[ScrapedExporter]) -> None:
    """Cancel the scrapes of ``exporters``."""
    for exporter in exporters:
        if exporter.task is not None:
            exporter.task.cancel()


def _metrics_of(exporter: ScrapedExporter, figure: Figure) -> Iterable[tuple[str, float]]:
    """The metrics made from a figure, and their values."""
    if not figure.metric.startswith(_SIX):
        window = figure.labels.get("window")
        return ((f"{figure.metric.removeprefix(_OURS)}{f'_{window}' if window else ''}", figure.value),)
    name = figure.metric.removeprefix(_SIX)
    trail = exporter.means.get((figure.metric, _identity(figure)))
    return ((f"{name}_current", figure.value), *(((f"{name}_over_time", trail.mean),) if trail else ()))


def _identity(figure: Figure) -> str:
    labels = figure.labels
    return "/".join(labels.get(label, "") for label in ("uuid", "namespace_name", "pod_name", "container_name"))
