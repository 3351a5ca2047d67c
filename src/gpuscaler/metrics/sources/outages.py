"""Outages of Prometheus or of exporters, and rules that fail, as log lines: one when it begins, one when it is over.

Whoever asks is answered with the reason; whoever reads logs or gets alerts from them sees nothing of answers.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from gpuscaler.metrics.sources.discovering import Discoverer
from gpuscaler.metrics.sources.evaluating import Evaluator
from gpuscaler.metrics.sources.prometheus import PrometheusAway, PrometheusError

_LOG = structlog.get_logger(__name__)
#: What an outage of Prometheus as a whole is about.
PROMETHEUS = "Prometheus"
#: What an outage of most exporters is about.
EXPORTERS = "exporters"
#: More exporters than this that do not answer are counted in one line, not named one by one.
NAMED = 10
#: Seconds between looks.
LOOK = 5.0


class Words(NamedTuple):
    """The events of log lines when an outage begins and when it is over."""

    begins: str
    ends: str


_WHOLE: Mapping[str, Words] = {
    PROMETHEUS: Words("Prometheus does not answer", "Prometheus answers again"),
    EXPORTERS: Words("exporters do not answer", "exporters answer again"),
}
RULE = Words("a rule fails", "a rule fails no more")
EXPORTER = Words("an exporter does not answer", "an exporter answers again")


class Attempt(NamedTuple):
    """What became last of a question: of a metric, or for series."""

    about: str
    error: PrometheusError | None


class Finding(NamedTuple):
    """``wrong`` says why, by what it is about; ``well`` is what was answered."""

    wrong: Mapping[str, str]
    well: frozenset[str]


def evaluations(evaluator: Evaluator) -> list[Attempt]:
    """The last attempts at the metrics that are asked for."""
    states = evaluator.states.values()
    return [Attempt(f"metric {one.question.metric}", one.error) for one in states if one.error is not None or evaluator.usable(one)]


def looks(discoverer: Discoverer) -> list[Attempt]:
    """The last attempts at the series of rules; none before the first."""
    if not discoverer.looked and not discoverer.errors:
        return []
    return [Attempt(f"series {query}", discoverer.errors.get(query)) for query in discoverer.rules.series_queries]


def judged(metrics: Iterable[Attempt], series: Iterable[Attempt]) -> Finding:
    """What is wrong. Where nothing is answered at all, it is Prometheus and no rule.

    Series are looked for rarely, so that they tell of now only where no metric is asked for.
    """
    metrics, series = tuple(metrics), tuple(series)
    decisive = metrics or series
    away = bool(decisive) and all(isinstance(one.error, PrometheusAway) for one in decisive)
    wrong = {PROMETHEUS: str(decisive[0].error)} if away else {}
    well = {PROMETHEUS} if any(one.error is None for one in decisive) else set()
    for about, error in (*metrics, *series):
        if error is None:
            well.add(about)
        elif not (away and isinstance(error, PrometheusAway)):
            wrong.setdefault(about, str(error))
    return Finding(wrong, frozenset(well - wrong.keys()))


def unanswered(scraped: Iterable[tuple[str, str]]) -> Finding:
    """What is wrong with exporters, each with its name and why it did not answer last, empty where it did.

    Many are one outage: a broken network, or an exporter that was installed wrongly.
    """
    exporters = tuple(scraped)
    silent = {name: trouble for name, trouble in exporters if trouble}
    well = {name for name, _ in exporters} - silent.keys()
    if silent and (len(silent) > NAMED or not well):
        why = f"{len(silent)} of {len(exporters)} do not answer, the first: {next(iter(silent.values()))}"
        return Finding({EXPORTERS: why}, frozenset(well))
    return Finding(silent, frozenset(well | {EXPORTERS} if well else well))


@dataclass(slots=True)
class Telling:
    """Logs what ``find`` finds wrong for ``patience`` seconds, for which an evaluation that fails is bridged. ``clock`` is monotonic.

    ``words`` are those for all that is not about a source as a whole.
    """

    find: Callable[[], Finding]
    clock: Callable[[], float]
    patience: float
    words: Words = RULE
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _told: set[str] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    def look(self) -> None:
        now, found = self.clock(), self.find()
        # What nobody asks for any more is neither wrong nor well: it is not mentioned again.
        self._since = {about: self._since.get(about, now) for about in found.wrong}
        for about, why in found.wrong.items():
            if about not in self._told and now - self._since[about] >= self.patience:
                self._told.add(about)
                whole = _WHOLE.get(about)
                if whole is not None:
                    _LOG.warning(whole.begins, problem=why)
                else:
                    _LOG.warning(self.words.begins, about=about, problem=why)
        for about in sorted(self._told & found.well):
            self._told.remove(about)
            whole = _WHOLE.get(about)
            if whole is not None:
                _LOG.info(whole.ends)
            else:
                _LOG.info(self.words.ends, about=about)
