"""Logs outages of Prometheus or of exporters, and failing rules: one line at the start and one at the end.

Clients get the reason in their answers, but people who read logs or get alerts from them do not see the answers.
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
#: Subject of an outage of Prometheus as a whole.
PROMETHEUS = "Prometheus"
#: Subject of an outage of most exporters.
EXPORTERS = "exporters"
#: If more exporters than this do not answer, one line has their number instead of one line each.
NAMED = 10
#: Seconds between checks.
CHECK_SECONDS = 5.0


class Words(NamedTuple):
    """The messages of log lines at the start and at the end of an outage."""

    begins: str
    ends: str


_WHOLE: Mapping[str, Words] = {
    PROMETHEUS: Words("Prometheus does not answer", "Prometheus answers again"),
    EXPORTERS: Words("exporters do not answer", "exporters answer again"),
}
RULE = Words("rule fails", "rule works again")
EXPORTER = Words("exporter does not answer", "exporter answers again")


class Attempt(NamedTuple):
    """The last result of a request: for a metric, or for series."""

    about: str
    error: PrometheusError | None


class Finding(NamedTuple):
    """Problems by subject in ``failing``, and the subjects that work in ``working``."""

    failing: Mapping[str, str]
    working: frozenset[str]


def evaluations(evaluator: Evaluator) -> list[Attempt]:
    """The last attempts for the metrics in use."""
    states = evaluator.states.values()
    return [
        Attempt(f"metric {state.question.metric}", state.error) for state in states if state.error is not None or evaluator.usable(state)
    ]


def listings(discoverer: Discoverer) -> list[Attempt]:
    """The last attempts for the series of rules; none before the first."""
    if not discoverer.has_listed and not discoverer.errors:
        return []
    return [Attempt(f"series {query}", discoverer.errors.get(query)) for query in discoverer.rules.series_queries]


def find_outages(metrics: Iterable[Attempt], series: Iterable[Attempt]) -> Finding:
    """Find what fails. If nothing is answered at all, Prometheus fails, not a rule.

    Series are listed rarely, so they show the current state only if no metric is in use.
    """
    metrics, series = tuple(metrics), tuple(series)
    decisive = metrics or series
    is_away = bool(decisive) and all(isinstance(attempt.error, PrometheusAway) for attempt in decisive)
    failing = {PROMETHEUS: str(decisive[0].error)} if is_away else {}
    working = {PROMETHEUS} if any(attempt.error is None for attempt in decisive) else set()
    for about, error in (*metrics, *series):
        if error is None:
            working.add(about)
        elif not (is_away and isinstance(error, PrometheusAway)):
            failing.setdefault(about, str(error))
    return Finding(failing, frozenset(working - failing.keys()))


def find_exporter_outages(scraped: Iterable[tuple[str, str]]) -> Finding:
    """Find the exporters that fail. Each is given with its name and its last error, empty if it answered.

    Many failing exporters are one outage: a broken network, or exporters that were installed wrongly.
    """
    exporters = tuple(scraped)
    silent = {name: trouble for name, trouble in exporters if trouble}
    working = {name for name, _ in exporters} - silent.keys()
    if silent and (len(silent) > NAMED or not working):
        why = f"{len(silent)} of {len(exporters)} do not answer, the first: {next(iter(silent.values()))}"
        return Finding({EXPORTERS: why}, frozenset(working))
    return Finding(silent, frozenset(working | {EXPORTERS} if working else working))


@dataclass(slots=True)
class OutageLog:
    """Logs what ``find`` reports as failing for ``patience`` seconds; shorter failures are bridged. ``clock`` is monotonic.

    ``words`` are the messages for everything that does not concern a source as a whole.
    """

    find: Callable[[], Finding]
    clock: Callable[[], float]
    patience: float
    words: Words = RULE
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _logged: set[str] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_SECONDS)

    def check(self) -> None:
        now, finding = self.clock(), self.find()
        # A metric that is no longer in use neither fails nor works, so the end of its outage is not logged.
        self._since = {about: self._since.get(about, now) for about in finding.failing}
        for about, why in finding.failing.items():
            if about not in self._logged and now - self._since[about] >= self.patience:
                self._logged.add(about)
                whole = _WHOLE.get(about)
                if whole is not None:
                    _LOG.warning(whole.begins, problem=why)
                else:
                    _LOG.warning(self.words.begins, about=about, problem=why)
        for about in sorted(self._logged & finding.working):
            self._logged.remove(about)
            whole = _WHOLE.get(about)
            if whole is not None:
                _LOG.info(whole.ends)
            else:
                _LOG.info(self.words.ends, about=about)
