"""A Prometheus in memory for selectors, timestamp() and one aggregation around them, in virtual time; it counts requests."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from gpuscaler.metrics.sources.prometheus import PrometheusError, QueryRefused, Sample

EPOCH = 1_780_000_000.0
#: How far Prometheus looks back for the last sample of a series, in seconds.
LOOKBACK = 300.0
_SELECTOR = re.compile(r"(\w*)(?:\{(.*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_AFTER = re.compile(r"(sum|avg|min|max)\((.*)\) by \(([\w,]*)\)")
_BEFORE = re.compile(r"(sum|avg|min|max) by \(([\w,]*)\) ?\((.*)\)")
_COMBINE: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max, "avg": fmean}


@dataclass(slots=True)
class Series:
    """A series: labels with ``__name__``, the last value and its time, in seconds of the loop's clock."""

    labels: dict[str, str]
    value: float
    at: float


@dataclass
class PrometheusDouble:
    """The double. ``delay`` is the delay of answers in seconds; ``error`` is raised instead of an answer."""

    stored: list[Series] = field(default_factory=list)
    delay: float = 0.0
    error: PrometheusError | None = None
    asked: list[str] = field(default_factory=list)
    looked_for: list[str] = field(default_factory=list)

    def put(self, name: str, value: float, *, age: float = 0.0, **labels: str) -> Series:
        """Take a sample, as if it had been scraped ``age`` seconds ago."""
        wanted = {"__name__": name, **labels}
        at = asyncio.get_running_loop().time() - age
        for series in self.stored:
            if series.labels == wanted:
                series.value, series.at = value, at
                return series
        self.stored.append(Series(wanted, value, at))
        return self.stored[-1]

    def touch(self) -> None:
        """Scrape everything again: the same values, with the current time."""
        for series in self.stored:
            series.at = asyncio.get_running_loop().time()

    async def query(self, promql: str) -> list[Sample]:
        await self._late(self.asked, promql)
        now = EPOCH + asyncio.get_running_loop().time()
        return [Sample(labels, (now, repr(value))) for labels, value in self._evaluated(promql)]

    async def series(self, match: str, *, start: float, end: float) -> list[dict[str, str]]:
        await self._late(self.looked_for, match)
        return [series.labels for series in self._selected(match, end - start)]

    async def metric_names(self, match: str, *, start: float, end: float) -> list[str]:
        return sorted({labels["__name__"] for labels in await self.series(match, start=start, end=end)})

    async def label_names(self, match: str, *, start: float, end: float) -> list[str]:
        return sorted({label for labels in await self.series(match, start=start, end=end) for label in labels})

    async def _late(self, asked: list[str], what: str) -> None:
        asked.append(what)
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error

    def _evaluated(self, promql: str) -> Iterable[tuple[dict[str, str], float]]:
        before, after = _BEFORE.fullmatch(promql), _AFTER.fullmatch(promql)
        if before or after:
            how, labels, inner = before.groups() if before else (after[1], after[3], after[2]) if after else ("", "", "")
            groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
            for series_labels, value in self._evaluated(inner):
                key = tuple((label, series_labels[label]) for label in labels.split(",") if label in series_labels)
                groups.setdefault(key, []).append(value)
            return [(dict(key), _COMBINE[how](values)) for key, values in groups.items()]
        if promql.startswith("timestamp("):
            selected = self._selected(promql.removeprefix("timestamp(").removesuffix(")"), LOOKBACK)
            return [(_nameless(series.labels), EPOCH + series.at) for series in selected]
        return [(dict(series.labels), series.value) for series in self._selected(promql, LOOKBACK)]

    def _selected(self, text: str, lookback: float) -> list[Series]:
        match = _SELECTOR.fullmatch(text)
        if match is None:
            raise QueryRefused(f"parse error: {text}")
        matchers = [("__name__", "=", match[1])] if match[1] else []
        matchers += _MATCHER.findall(match[2] or "")
        now = asyncio.get_running_loop().time()
        fresh = (series for series in self.stored if now - series.at <= lookback)
        return [series for series in fresh if all(_holds(series.labels, *matcher) for matcher in matchers)]


def _nameless(labels: Mapping[str, str]) -> dict[str, str]:
    return {label: value for label, value in labels.items() if label != "__name__"}


def _holds(labels: Mapping[str, str], label: str, operator: str, wanted: str) -> bool:
    value = labels.get(label, "")
    equal = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
    return equal != operator.startswith("!")
