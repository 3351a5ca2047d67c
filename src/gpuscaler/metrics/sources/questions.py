"""The queries to Prometheus for a metric of the rules: one query for the whole cluster if that is equivalent."""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gpuscaler.metrics.rules.combining import is_summed
from gpuscaler.metrics.rules.discovery import Origin
from gpuscaler.metrics.rules.matchers import QueryError
from gpuscaler.metrics.rules.promql import PromqlError
from gpuscaler.metrics.rules.resources import Resource
from gpuscaler.metrics.rules.rule import NAMESPACES
from gpuscaler.metrics.rules.separating import is_scalar, prove, selectors
from gpuscaler.metrics.sources.evaluating import Question
from gpuscaler.metrics.sources.objects import Key
from gpuscaler.metrics.sources.values import NOT_BELOW_ZERO, Rejected
from gpuscaler.model.selectors import LabelSelector

#: Valid names of objects. A request may contain any name, and a template may put names anywhere in a query.
_NAME = re.compile(r"[A-Za-z0-9._:-]+")


def object_question(metric: str, origin: Origin, *, namespace: str, selection: Sequence[Key], selector: LabelSelector) -> Question:
    """The question for ``metric`` of the objects ``selection`` in ``namespace`` (empty: in all).

    If a rule provably treats each object separately, the question covers all objects of the cluster, regardless of the selection.
    Raises :class:`Rejected` for requests that cannot be expressed in PromQL.
    """
    rule, resource = origin.rule, origin.resource
    assert resource is not None
    selector, below_zero = _split_selector(origin, selector)
    try:
        breadth = prove(rule, origin.series, resource).breadth
        if breadth == "names":
            question = _narrow(metric, origin, resource, namespace=namespace, selection=selection, selector=selector)
        else:
            question = _wide(metric, origin, resource, namespace="" if breadth == "cluster" else namespace, selector=selector)
        return replace(question, below_zero=below_zero)
    except QueryError as error:
        raise Rejected(str(error)) from error


def series_question(metric: str, origin: Origin, *, namespace: str, selector: LabelSelector) -> Question:
    """The question for the external ``metric``. Raises :class:`Rejected`."""
    query_namespace = namespace if origin.rule.namespaced else ""
    selector, below_zero = _split_selector(origin, selector)
    try:
        _check_names((query_namespace,) if query_namespace else ())
        promql = origin.rule.external_query(origin.series, namespace=query_namespace, selector=selector.requirements)
    except QueryError as error:
        raise Rejected(str(error)) from error
    ages = _ages(promql, origin)
    if _is_number(promql):
        # As in prometheus-adapter, a number without labels is a value, too.
        promql = f"vector({promql})"
    return Question(
        metric, promql, ages, namespace=query_namespace, scope="namespace" if query_namespace else "cluster", below_zero=below_zero
    )


def _split_selector(origin: Origin, selector: LabelSelector) -> tuple[LabelSelector, bool]:
    """The part of ``selector`` that concerns series, and whether numbers below zero are served."""
    series = tuple(requirement for requirement in selector.requirements if requirement != NOT_BELOW_ZERO)
    if len(series) == len(selector.requirements):
        return selector, origin.rule.below_zero
    return LabelSelector(series), False


def _is_number(promql: str) -> bool:
    try:
        return is_scalar(promql)
    except PromqlError:
        return False


def _wide(metric: str, origin: Origin, resource: Resource, *, namespace: str, selector: LabelSelector) -> Question:
    promql = origin.rule.wide_query(origin.series, resource=resource, namespace=namespace, selector=selector.requirements)
    namespace_label = origin.rule.label(NAMESPACES) if resource.namespaced and not namespace else ""
    return _question(metric, origin, promql, namespace=namespace, labels=(namespace_label, origin.rule.label(resource)))


def _narrow(
    metric: str, origin: Origin, resource: Resource, *, namespace: str, selection: Sequence[Key], selector: LabelSelector
) -> Question:
    names = tuple(dict.fromkeys(name for _, name in selection))
    _check_names((*names, namespace) if namespace else names)
    # The same query as prometheus-adapter's; for several namespaces at once the answer must contain the namespace.
    namespace_label = origin.rule.label(NAMESPACES) if resource.namespaced and not namespace else ""
    promql = origin.rule.query(
        origin.series,
        resource=resource,
        names=names,
        namespace=namespace,
        selector=selector.requirements,
        extra=(namespace_label,) if namespace_label else (),
    )
    return _question(metric, origin, promql, namespace=namespace, labels=(namespace_label, origin.rule.label(resource)), scope="names")


def _check_names(names: Iterable[str]) -> None:
    invalid = next((name for name in names if not _NAME.fullmatch(name)), None)
    if invalid is not None:
        raise QueryError(f"saw the name {invalid[:80]!r}, expected letters, digits, '-', '.', '_' and ':'")


def _question(metric: str, origin: Origin, promql: str, *, namespace: str, labels: tuple[str, str], scope: str = "") -> Question:
    return Question(
        metric,
        promql,
        _ages(promql, origin, *filter(None, labels)),
        namespace=namespace,
        namespace_label=labels[0],
        name_label=labels[1],
        combine="sum" if is_summed(metric) else "mean",
        scope=scope or ("namespace" if namespace else "cluster"),
    )


def _ages(promql: str, origin: Origin, *groups: str) -> str:
    """The query for the times of the raw samples that ``promql`` sees, the oldest for each combination of ``groups``.

    If all series of a combination have ended, a range may still see their last samples: then it is the time of the newest one.
    """
    try:
        reaches = selectors(promql)
    except PromqlError:
        reaches = {}
    # Two series may differ only in their names, which timestamp() removes: each gets a label with the number of its selector.
    by = f"by ({','.join(groups)})"
    now = _union(f"timestamp({selector})" for selector in reaches or (origin.series,))
    before = _union(f"max_over_time(timestamp({selector})[{reach:g}s:])" for selector, reach in reaches.items() if reach)
    return f"min {by} ({now}){f' or max {by} ({before})' if before else ''}"


def _union(vectors: Iterable[str]) -> str:
    return " or ".join(
        f'label_replace({vector},"gpuscaler_selector","{place}","","")' if place else vector for place, vector in enumerate(vectors)
    )
