"""Lists the existing series every few minutes, and the metrics that the rules make from them.

Only the names of series and of their labels are needed, so only these are requested. The label sets themselves are hundreds of megabytes in
a large cluster, which has made both prometheus-adapter and Prometheus run out of memory.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuscaler.metrics.rules.discovery import NAME, Discovery
from gpuscaler.metrics.rules.reading import RuleSet
from gpuscaler.metrics.sources.prometheus import PrometheusError

#: Most concurrent requests for series.
_AT_ONCE = 4
#: Seconds until the next list after one with errors, and least time until a list caused by requests for unknown metrics.
AGAIN, SOON = 10.0, 30.0


class SeriesLister(Protocol):
    async def series(self, match: str, *, start: float, end: float) -> list[dict[str, str]]: ...

    async def metric_names(self, match: str, *, start: float, end: float) -> list[str]: ...

    async def label_names(self, match: str, *, start: float, end: float) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RelistTimes:
    """How often series are listed, and how far back, both in seconds: ``--metrics-relist-interval`` and ``--metrics-max-age``."""

    interval: float = 600.0
    max_age: float = 600.0


class Discoverer:
    """Keeps :attr:`discovery` current while :meth:`run` runs. ``wall`` returns Unix time.

    A series query that fails does not affect the others, and its previous result stays. ``troubles`` are by series query.
    """

    def __init__(self, prometheus: SeriesLister, rules: RuleSet, *, wall: Callable[[], float], looks: RelistTimes | None = None) -> None:
        self.rules = rules
        self.discovery = Discovery()
        #: Errors by series query.
        self.errors: dict[str, PrometheusError] = {}
        self.failures = 0
        self.has_listed = False
        self._prometheus, self._wall, self._times = prometheus, wall, looks or RelistTimes()
        self._series: dict[str, tuple[Mapping[str, str], ...]] = {}
        self._again = asyncio.Event()
        #: Whether an unknown metric was requested since the last list, and whether the last list is long enough ago to list again for it.
        self._unknown_requested = self._may_relist = False

    @property
    def troubles(self) -> dict[str, str]:
        """Error messages by series query."""
        return {query: f"series {query}: {error}" for query, error in self.errors.items()}

    async def run(self) -> None:
        """List repeatedly until cancelled; sooner after errors or after a request for an unknown metric."""
        while True:
            await self.list_series()
            self._again.clear()
            self._unknown_requested = self._may_relist = False
            pause = min(self._times.interval, AGAIN) if self.errors else self._times.interval
            if await self._wait_for_reason(min(pause, SOON)) or self._unknown_requested or pause <= SOON:
                continue
            self._may_relist = True
            await self._wait_for_reason(pause - SOON)

    def relist_soon(self) -> None:
        """Note a request for an unknown metric: its first series may exist by now."""
        self._unknown_requested = True
        if self._may_relist:
            self._again.set()

    async def _wait_for_reason(self, seconds: float) -> bool:
        """Wait until there is a reason to list immediately, but at most ``seconds``; return whether there is one."""
        try:
            async with asyncio.timeout(seconds):
                await self._again.wait()
        except TimeoutError:
            return False
        return True

    def use_rules(self, rules: RuleSet) -> None:
        """Switch to other rules; their series are listed immediately."""
        self.rules = rules
        self.discovery = rules.discover(self._series)
        self._again.set()

    async def list_series(self) -> None:
        """List the series once."""
        rules, end = self.rules, self._wall()
        limit = asyncio.Semaphore(_AT_ONCE)
        queries = rules.series_queries
        outcomes = await asyncio.gather(*(self._series_of(query, rules, limit, end) for query in queries))
        listed = {query: series for query, series in zip(queries, outcomes, strict=True) if series is not None}
        self._series = {query: listed.get(query, self._series.get(query, ())) for query in queries}
        self.errors = {query: error for query, error in self.errors.items() if query in self._series}
        self.has_listed = self.has_listed or len(self.errors) < len(queries) or not queries
        if rules is self.rules:
            self.discovery = rules.discover(self._series)

    async def _series_of(self, query: str, rules: RuleSet, limit: asyncio.Semaphore, end: float) -> tuple[Mapping[str, str], ...] | None:
        """One label set for each name that a rule matches; None if the request failed."""
        start = end - self._times.max_age
        try:
            async with limit:
                names = await self._prometheus.metric_names(query, start=start, end=end)
            matching_rules = [rule for rule in (*rules.rules, *rules.external) if rule.series_query == query]
            used = [name for name in names if any(rule.accepts(name) and rule.metric(name) for rule in matching_rules)]
            labels = await asyncio.gather(*(self._labels(query, name, limit, (start, end)) for name in used))
        except PrometheusError as error:
            self.failures += 1
            self.errors[query] = error
            return None
        self.errors.pop(query, None)
        return tuple(label_set for label_sets in labels for label_set in label_sets)

    async def _labels(self, query: str, name: str, limit: asyncio.Semaphore, span: tuple[float, float]) -> Sequence[Mapping[str, str]]:
        start, end = span
        async with limit:
            narrowed = of_name(query, name)
            if narrowed is None:
                series = await self._prometheus.series(query, start=start, end=end)
                return list({frozenset(label_set): label_set for label_set in series if label_set.get(NAME) == name}.values())
            labels = await self._prometheus.label_names(narrowed, start=start, end=end)
        return [{**dict.fromkeys(labels, "x"), NAME: name}]


def of_name(query: str, name: str) -> str | None:
    """``query`` restricted to series called ``name``; None for a query that is not a simple selector."""
    text = query.strip()
    if text.startswith("{") and text.endswith("}"):
        return f'{{{NAME}="{name}",{text[1:]}'
    return text if text.partition("{")[0].strip() == name else None
