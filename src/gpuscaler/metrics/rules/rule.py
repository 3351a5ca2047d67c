"""One rule: which series it takes, what it calls them, what it asks Prometheus for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.formatting import quote
from gpuscaler.metrics.rules.gotemplate.running import Template
from gpuscaler.metrics.rules.gotemplate.syntax import Value
from gpuscaler.metrics.rules.labelling import Labelling
from gpuscaler.metrics.rules.matchers import QueryError, named, required
from gpuscaler.metrics.rules.patterns import Pattern
from gpuscaler.metrics.rules.resources import Resource, ResourceError
from gpuscaler.model.selectors import Requirement

NAMESPACES = Resource("namespaces", "namespace", namespaced=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """A series' name must match, or must not."""

    pattern: Pattern
    positive: bool = True

    def takes(self, name: str) -> bool:
        return self.pattern.matches(name) == self.positive


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of ``rules`` or ``externalRules``; ``place`` says which (``rules[2]``).

    ``namespaced`` is whether an external metric's query has the namespace's matcher: queries of objects always do. ``below_zero`` is
    whether a negative number is served as it is: what a person's rule makes is what was meant, while no GPU is used by less than nothing.
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

    def takes(self, series: str) -> bool:
        """Whether series of this name are this rule's, as far as its filters say."""
        return all(one.takes(series) for one in self.filters)

    def metric(self, series: str) -> str:
        """What the series of this name is called in the API; empty where the rule has no name for it."""
        return self.pattern.expand(self.name_as, series) or ""

    def label(self, resource: Resource) -> str:
        """The label whose value is the object's name in the answer. Raises :class:`QueryError`."""
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
        """The query for the named objects, as prometheus-adapter asks it; ``extra`` are more labels to group by.

        Raises :class:`QueryError`.
        """
        parts = _Parts.of(selector)
        if namespace:
            parts.add(self.label(NAMESPACES), (namespace,))
        parts.add(self.label(resource), names)
        return self._filled(series, parts, (self.label(resource), *extra))

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
        """The query for every object there is, in ``namespace`` or in all of them: :mod:`.separating` says where that asks for the same.

        The answer's samples have the object's name under :meth:`label` of the resource, and, of a resource in namespaces where none was
        given, the namespace under :meth:`label` of :data:`NAMESPACES`. A label's value is any but ``anything``. Raises :class:`QueryError`.
        """
        own = self.label(resource)
        groups = [own]
        parts = _Parts.of(selector)
        if namespace:
            parts.add(self.label(NAMESPACES), (namespace,))
        elif resource.namespaced:
            groups.append(self.label(NAMESPACES))
            parts.other(groups[-1], anything)
        parts.other(own, anything)
        return self._filled(series, parts, (*dict.fromkeys((*groups, *extra)),))

    def external_query(self, series: str, *, namespace: str = "", selector: Iterable[Requirement] = ()) -> str:
        """The query for an external metric. Raises :class:`QueryError`."""
        parts = _Parts.of(selector)
        if namespace and self.namespaced:
            parts.add(self.label(NAMESPACES), (namespace,))
        return self._filled(series, parts, ())

    def _filled(self, series: str, parts: "_Parts", groups: Sequence[str]) -> str:
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
    """What a query's template is given of labels: matchers in their order, and values by label."""

    matchers: list[str]
    values: dict[str, str]

    @classmethod
    def of(cls, selector: Iterable[Requirement]) -> "_Parts":
        parts = cls([], {})
        for one in selector:
            parts.matchers.append(required(one))
            parts.values[one.key] = "|".join(one.values)
        return parts

    def add(self, label: str, names: Sequence[str]) -> None:
        self.matchers.append(named(label, names))
        self.values[label] = "|".join(names)

    def other(self, label: str, value: str) -> None:
        self.matchers.append(f"{label}!={quote(value)}")
        self.values[label] = ".+"
