"""One rule: which series it matches, how it names them, and its queries to Prometheus."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.formatting import quote
from gpuscaler.metrics.rules.gotemplate.running import Template
from gpuscaler.metrics.rules.gotemplate.syntax import Value
from gpuscaler.metrics.rules.labelling import Labelling
from gpuscaler.metrics.rules.matchers import QueryError, name_matcher, requirement_matcher
from gpuscaler.metrics.rules.patterns import Pattern
from gpuscaler.metrics.rules.resources import Resource, ResourceError
from gpuscaler.model.selectors import Requirement

NAMESPACES = Resource("namespaces", "namespace", namespaced=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter on names of series: the name must match, or must not match."""

    pattern: Pattern
    positive: bool = True

    def accepts(self, name: str) -> bool:
        return self.pattern.matches(name) == self.positive


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of ``rules`` or ``externalRules``; ``place`` is its position (``rules[2]``).

    ``namespaced`` is whether the query of an external metric has a matcher for the namespace; queries for objects always do. ``below_zero``
    is whether negative numbers are served: those of a person's own rule are assumed to be intended, while those about GPUs are errors.
    """

    place: str
    series_query: str
    filters: tuple[Filter, ...]
    pattern: Pattern
    name_as: str
    labelling: Labelling
    template: Template
    namespaced: bool = True
    below_zero: bool = True

    def accepts(self, series: str) -> bool:
        """Whether this rule's filters accept series of this name."""
        return all(filter_.accepts(series) for filter_ in self.filters)

    def metric(self, series: str) -> str:
        """The name of the metric for series of this name; empty if the rule has none."""
        return self.pattern.expand(self.name_as, series) or ""

    def label(self, resource: Resource) -> str:
        """The label that holds the object's name in the answer. Raises :class:`QueryError`."""
        try:
            return self.labelling.label(resource)
        except ResourceError as error:
            raise QueryError(f"{self.place}: {error}") from error

    def query(
        self,
        series: str,
        *,
        resource: Resource,
        names: Sequence[str],
        namespace: str = "",
        selector: Iterable[Requirement] = (),
        extra: Sequence[str] = (),
    ) -> str:
        """The query for the named objects, as prometheus-adapter sends it; ``extra`` are additional labels to group by.

        Raises :class:`QueryError`.
        """
        parts = _Parts.of(selector)
        if namespace:
            parts.add(self.label(NAMESPACES), (namespace,))
        parts.add(self.label(resource), names)
        return self._render(series, parts, (self.label(resource), *extra))

    def wide_query(
        self,
        series: str,
        *,
        resource: Resource,
        namespace: str = "",
        selector: Iterable[Requirement] = (),
        extra: Sequence[str] = (),
        anything: str = "",
    ) -> str:
        """The query for all objects, in ``namespace`` or in all namespaces. :mod:`.separating` proves when its answers are equivalent.

        The samples in the answer have the object's name in the :meth:`label` of the resource. For a namespaced resource without a given
        ``namespace``, they have the namespace in the :meth:`label` of :data:`NAMESPACES`. Matchers accept any value except ``anything``.
        Raises :class:`QueryError`.
        """
        name_label = self.label(resource)
        groups = [name_label]
        parts = _Parts.of(selector)
        if namespace:
            parts.add(self.label(NAMESPACES), (namespace,))
        elif resource.namespaced:
            groups.append(self.label(NAMESPACES))
            parts.add_not_equal(groups[-1], anything)
        parts.add_not_equal(name_label, anything)
        return self._render(series, parts, (*dict.fromkeys((*groups, *extra)),))

    def external_query(self, series: str, *, namespace: str = "", selector: Iterable[Requirement] = ()) -> str:
        """The query for an external metric. Raises :class:`QueryError`."""
        parts = _Parts.of(selector)
        if namespace and self.namespaced:
            parts.add(self.label(NAMESPACES), (namespace,))
        return self._render(series, parts, ())

    def _render(self, series: str, parts: "_Parts", groups: Sequence[str]) -> str:
        values: Mapping[str, Value] = {
            "Series": series,
            "LabelMatchers": ",".join(parts.matchers),
            "LabelValuesByName": parts.values,
            "GroupBy": ",".join(groups),
            "GroupBySlice": list(groups),
        }
        try:
            text = self.template.render(values)
        except TemplateError as error:
            raise QueryError(f"{self.place}: metricsQuery: {error}") from error
        if not text:
            raise QueryError(f"{self.place}: metricsQuery: saw an empty query for {series}, expected one")
        return text


@dataclass(slots=True)
class _Parts:
    """The labels for a query's template: matchers in order, and values by label."""

    matchers: list[str]
    values: dict[str, str]

    @classmethod
    def of(cls, selector: Iterable[Requirement]) -> "_Parts":
        parts = cls([], {})
        for requirement in selector:
            parts.matchers.append(requirement_matcher(requirement))
            parts.values[requirement.key] = "|".join(requirement.values)
        return parts

    def add(self, label: str, names: Sequence[str]) -> None:
        self.matchers.append(name_matcher(label, names))
        self.values[label] = "|".join(names)

    def add_not_equal(self, label: str, value: str) -> None:
        self.matchers.append(f"{label}!={quote(value)}")
        self.values[label] = ".+"
