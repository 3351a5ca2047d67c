"""Finds outages of Prometheus or of exporters, and failing rules, for the log: one line at the start and one at the end.

Clients get the reason in their answers, but people who read logs or get alerts from them do not see the answers.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpuscaler.metrics.sources.discovering import Discoverer
from gpuscaler.metrics.sources.evaluating import Evaluator
from gpuscaler.metrics.sources.prometheus import PrometheusAway, PrometheusError
from gpuscaler.serving.logs import Finding, OutageLog, Words

#: Subject of an outage of Prometheus as a whole.
PROMETHEUS = "Prometheus"
#: Subject of an outage of most exporters.
EXPORTERS = "exporters"
#: If more exporters than this do not answer, one line has their number instead of one line each.
NAMED = 10


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


def outage_log(find: Callable[[], Finding], clock: Callable[[], float], patience: float, words: Words = RULE) -> OutageLog:
    """The log of a source. ``words`` are the messages for everything that does not concern a source as a whole."""
    return OutageLog(find, clock, patience, words, _WHOLE)
