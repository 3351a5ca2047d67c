"""Reads a file of rules in prometheus-adapter's language.

Source: prometheus-adapter v0.12, ``pkg/config`` and ``docs/config.md``, read for behaviour. An error that keeps prometheus-adapter from
starting is a problem of one rule here, and that rule is left out; only a file that cannot be read at all is rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct

from gpuscaler.metrics.rules.discovery import Discovery, discover
from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.running import Template
from gpuscaler.metrics.rules.labelling import Labelling
from gpuscaler.metrics.rules.patterns import Pattern, PatternError
from gpuscaler.metrics.rules.resources import Resource, ResourceError, Resources, custom_resource
from gpuscaler.metrics.rules.rule import Filter, Rule
from gpuscaler.model.reading.cursor import Cursor, Report, TooMuchError
from gpuscaler.model.reading.document import read_document
from gpuscaler.model.reading.errors import Problem, SettingsError

_KEYS = ("rules", "externalRules", "resourceRules")
_RULE_KEYS = ("seriesQuery", "seriesFilters", "resources", "name", "metricsQuery")
_RESOURCE_KEYS = ("template", "overrides", "namespaced")
#: Query of a rule without a metricsQuery, for which prometheus-adapter sends an empty query. :mod:`.combining` decides how several samples
#: of an object are combined.
DEFAULT_QUERY = "<<.Series>>{<<.LabelMatchers>>}"

T = TypeVar("T")


class RuleSet(Struct, frozen=True):
    """The valid rules of a file.

    ``problems`` are errors of the other rules, ``notes`` are about things that are probably unintended or not served; each names its rule.
    """

    rules: tuple[Rule, ...] = ()
    external: tuple[Rule, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()

    @property
    def series_queries(self) -> tuple[str, ...]:
        """The series queries to send to Prometheus, each once."""
        return tuple(dict.fromkeys(rule.series_query for rule in (*self.rules, *self.external)))

    def discover(self, series_by_query: Mapping[str, Sequence[Mapping[str, str]]]) -> Discovery:
        """The metrics that these rules make from ``series_by_query``, label sets by series query."""
        return discover(self.rules, self.external, series_by_query)


def read_rules(text: str, *, source: str = "rules", resources: Resources | None = None) -> RuleSet:
    """Read the rules of a file.

    Raises :class:`~gpuscaler.model.reading.errors.SettingsError` if it is not a YAML mapping, or has only keys that no file of rules has.
    """
    root, problems = read_document(text, expected="a YAML mapping with the keys rules and externalRules", needs="rules need six")
    if problems:
        raise SettingsError(source, tuple(problems))
    if root is None or root.value is None:
        return RuleSet()
    report = Report()
    whole = Cursor("", root, report)
    if whole.members() is None:
        raise SettingsError(source, report.problems)
    reader = _Reader(resources or Resources())
    fields = whole.mapping(_KEYS)
    if len(report) and not any(whole.has(key) for key in _KEYS):
        # Another kind of file, such as a run file: without this, nothing would be served and only a warning would say so.
        message = f"saw none of {', '.join(_KEYS)}, expected rules in the format of prometheus-adapter; give a file of rules"
        raise SettingsError(source, (Problem("", None, message), *report.problems))
    try:
        rules = reader.rules(fields.get("rules"))
        external = reader.rules(fields.get("externalRules"))
    except TooMuchError:
        raise SettingsError(source, (Problem("", None, "expands to millions of values, expected a file of rules"),)) from None
    if "resourceRules" in fields:
        reader.notes.append(Problem("resourceRules", fields["resourceRules"].entry.line, "not used: metrics-server serves metrics.k8s.io"))
    return RuleSet(rules, external, report.problems + tuple(reader.problems), tuple(reader.notes))


@dataclass(frozen=True, slots=True)
class _Naming:
    pattern: Pattern
    template: str
    filters: tuple[Filter, ...]


class _Reader:
    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []

    def rules(self, at: Cursor | None) -> tuple[Rule, ...]:
        rules = (self._rule(item) for item in (at.items() if at else ()))
        return tuple(rule for rule in rules if rule is not None)

    def _rule(self, at: Cursor) -> Rule | None:
        """The rule, or None if it has any error: part of a rule would serve something else than intended."""
        report = Report()
        at = Cursor(at.path, at.entry, report)
        fields = at.mapping(_RULE_KEYS)
        series_query = _text(fields.get("seriesQuery"))
        if not series_query and not len(report):
            at.add_problem("saw no seriesQuery, expected a selector of series; add seriesQuery: '{__name__=~\"…\"}'")
        filters = [self._filter(item) for item in fields["seriesFilters"].items()] if "seriesFilters" in fields else []
        naming = self._naming(fields.get("name"), at)
        labelling, namespaced = self._labelling(fields.get("resources"), at)
        template = _attempt(fields.get("metricsQuery") or at, lambda: Template(_text(fields.get("metricsQuery")) or DEFAULT_QUERY))
        if len(report) or naming is None or labelling is None or template is None:
            self.problems.extend(report.problems)
            return None
        filters.extend(naming.filters)
        valid = tuple(filter_ for filter_ in filters if filter_ is not None)
        return Rule(at.path, series_query, valid, naming.pattern, naming.template, labelling, template, namespaced)

    def _filter(self, at: Cursor) -> Filter | None:
        fields = at.mapping(("is", "isNot"))
        texts = {key: text for key, cursor in fields.items() if (text := _text(cursor))}
        if len(texts) != 1:
            at.wrong("one of is and isNot, each a regular expression", seen="both" if texts else "neither is nor isNot")
            return None
        key, text = texts.popitem()
        pattern = _attempt(fields[key], lambda: Pattern(text))
        return None if pattern is None else Filter(pattern, key == "is")

    def _naming(self, at: Cursor | None, rule: Cursor) -> _Naming | None:
        fields = at.mapping(("matches", "as")) if at else {}
        matches, template = _text(fields.get("matches")), _text(fields.get("as"))
        pattern = _attempt(fields.get("matches") or rule, lambda: Pattern(matches or ".*"))
        if pattern is None:
            return None
        if not template:
            if pattern.groups > 1:
                (at or rule).add_problem(f"saw {pattern.groups} groups in matches, expected as: with the name of the metric; add as: $1")
                return None
            template = f"${pattern.groups}"
        for name in pattern.unknown(template):
            self._note_group(fields.get("as", rule), name)
        return _Naming(pattern, template, (Filter(pattern),) if matches else ())

    def _note_group(self, at: Cursor, name: str) -> None:
        digits = name[: len(name) - len(name.lstrip("0123456789"))]
        suggestion = f"; for group {digits} before {name[len(digits) :]} write ${{{digits}}}{name[len(digits) :]}" if digits else ""
        message = f"${name} is the group named {name}, which matches does not have: it is empty{suggestion}"
        self.notes.append(Problem(at.path, at.entry.line, message))

    def _labelling(self, at: Cursor | None, rule: Cursor) -> tuple[Labelling | None, bool]:
        fields = at.mapping(_RESOURCE_KEYS) if at else {}
        namespaced = fields["namespaced"].boolean() if "namespaced" in fields else True
        overrides: dict[str, Resource] = {}
        for label, cursor in (fields["overrides"].members() or {}).items() if "overrides" in fields else ():
            resource = self._resource(cursor)
            if resource is not None:
                overrides[label] = resource
        self._note_duplicates(fields.get("overrides"), overrides)
        template = _text(fields.get("template"))
        labelling = _attempt(fields.get("template") or at or rule, lambda: Labelling(overrides, template, self.resources))
        return labelling, namespaced is not False

    def _resource(self, at: Cursor) -> Resource | None:
        fields = at.mapping(("group", "resource"))
        name = _text(fields.get("resource"))
        if not name:
            at.add_problem("saw no resource, expected one; add resource: pod")
            return None
        group = _text(fields.get("group"))
        try:
            return self.resources.find(name, group)
        except ResourceError as error:
            if "." not in group:
                fields["resource"].add_problem(str(error))
                return None
        resource = custom_resource(name, group)
        message = (
            f"{resource.text} is not a built-in resource: treated as a namespaced custom resource with the singular {resource.singular}"
        )
        self.notes.append(Problem(at.path, at.entry.line, message))
        return resource

    def _note_duplicates(self, at: Cursor | None, overrides: Mapping[str, Resource]) -> None:
        labels: dict[str, list[str]] = {}
        for label, resource in overrides.items():
            labels.setdefault(resource.text, []).append(label)
        for text, several in labels.items():
            if at and len(several) > 1:
                message = f"{' and '.join(several)} are both {text}: queries use {several[-1]}; prometheus-adapter picks one at random"
                self.notes.append(Problem(at.path, at.entry.line, message))


def _text(at: Cursor | None) -> str:
    """A scalar as it was written, before YAML interprets it; empty if there is none."""
    if at is None or at.entry.value is None:
        return ""
    value = at.entry.value
    if isinstance(value, list | dict):
        at.wrong("text")
        return ""
    return value if isinstance(value, str) else at.entry.raw


def _attempt(at: Cursor, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except (PatternError, TemplateError, ResourceError) as error:
        at.add_problem(str(error))
        return None
