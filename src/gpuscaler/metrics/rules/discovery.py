"""Finds the metrics that rules make from the existing series."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gpuscaler.metrics.rules.resources import Resource
from gpuscaler.metrics.rules.rule import Rule

NAME = "__name__"


class Origin(Struct, frozen=True):
    """The origin of a metric: the rule, and the name of the series in its query."""

    rule: Rule
    series: str
    resource: Resource | None = None


class Discovery(Struct, frozen=True):
    """The metrics that are served: custom ones by resource (``pods``, ``jobs.batch``) and name, external ones by name.

    ``silent`` are rules that match none of the series in the answer to their series query: check these first if a metric is missing.
    """

    custom: Mapping[tuple[str, str], Origin] = {}
    external: Mapping[str, Origin] = {}
    silent: tuple[Rule, ...] = ()


def discover(rules: Iterable[Rule], external: Iterable[Rule], series_by_query: Mapping[str, Sequence[Mapping[str, str]]]) -> Discovery:
    """Apply ``rules`` and ``external`` rules to ``series_by_query``: label sets (with ``__name__``) by series query.

    A rule whose query is not among them makes no metric. If two rules make the same metric of the same resource, the later one is used.
    """
    kinds = {query: _kinds(series) for query, series in series_by_query.items()}
    custom: dict[tuple[str, str], Origin] = {}
    externals: dict[str, Origin] = {}
    silent: list[Rule] = []
    for rule in rules:
        is_used = False
        for name, labels in kinds.get(rule.series_query, ()):
            metric = rule.metric(name) if rule.accepts(name) else ""
            for resource in rule.labelling.resources(labels) if metric else ():
                custom[resource.text, metric] = Origin(rule, name, resource)
                is_used = True
        if not is_used:
            silent.append(rule)
    for rule in external:
        named = {rule.metric(name): name for name, _ in kinds.get(rule.series_query, ()) if rule.accepts(name)}
        named.pop("", None)
        externals |= {metric: Origin(rule, name) for metric, name in named.items()}
        if not named:
            silent.append(rule)
    return Discovery(custom, externals, tuple(silent))


def _kinds(series: Iterable[Mapping[str, str]]) -> list[tuple[str, frozenset[str]]]:
    """Each combination of a name and label names once, in order of appearance. There are few, even for many series."""
    return list(dict.fromkeys((labels.get(NAME, ""), frozenset(labels) - {NAME}) for labels in series))
