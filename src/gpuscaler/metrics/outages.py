"""Outages of Prometheus and rules that fail, as log lines: one when it begins, one when it is over.

Whoever asks is answered with the reason; whoever reads logs or gets alerts from them sees nothing of answers.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from gpuscaler.metrics.discovering import Discoverer
from gpuscaler.metrics.evaluating import Evaluator
from gpuscaler.metrics.prometheus import PrometheusAway, PrometheusError

_LOG = structlog.get_logger(__name__)
#: What an outage of Prometheus as a whole is about.
PROMETHEUS = "Prometheus"
#: Seconds between looks.
LOOK = 5.0


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


@dataclass(slots=True)
class Telling:
    """Logs what ``find`` finds wrong for ``patience`` seconds, for which an evaluation that fails is bridged. ``clock`` is monotonic."""

    find: Callable[[], Finding]
    clock: Callable[[], float]
    patience: float
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
                if about == PROMETHEUS:
                    _LOG.warning("Prometheus does not answer", problem=why)
                else:
                    _LOG.warning("a rule fails", about=about, problem=why)
        for about in sorted(self._told & found.well):
            self._told.remove(about)
            if about == PROMETHEUS:
                _LOG.info("Prometheus answers again")
            else:
                _LOG.info("a rule fails no more", about=about)
