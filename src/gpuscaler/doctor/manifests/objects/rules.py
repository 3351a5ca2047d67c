"""Rules of prometheus-adapter in ConfigMaps, in files of their own, and in values of its chart and of gpuscaler's."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import yaml

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix
from gpuscaler.doctor.manifests.editing import patch_of_lines
from gpuscaler.doctor.manifests.linting import Lint, path_text
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path, tree_of
from gpuscaler.model.reading.document import Entry
from gpuscaler.model.similar import Similar

_REFUSED = "prometheus-adapter does not start, and gpuscaler metrics leaves the rule out"
_NO_QUERY = "every request for its metrics fails, and autoscalers see <unknown>"
_NEVER = "the rule makes no metric, and autoscalers see <unknown>"
_LISTS: Final = ("rules", "externalRules")
_KEYS: Final = (*_LISTS, "resourceRules")
#: What a query may contain.
_FIELDS: Final = ("Series", "LabelMatchers", "LabelValuesByName", "GroupBy", "GroupBySlice")
_FIELD = re.compile(r"(?<![\w$)])\.([A-Za-z]\w*)")
_FIRST = re.compile(r"^(rules|externalRules)\[0\]")
#: The end of the line of a key whose text has the lines that follow.
_BLOCK = re.compile(r":\s+\|[-+0-9]{0,2}\s*(#.*)?$")
#: The most unknown fields of a query that are named.
_MOST_FIELDS = 20
#: The longest patterns and names that are tried, and the most repetitions in a pattern: Python tries all ways to divide a name among them.
_LONGEST, _REPETITIONS = 200, 3
#: A repetition, without the ? of a group such as (?:…); and the repetition of a group, whose ways may double with each letter.
_REPEATS, _GROUP_REPEATS = re.compile(r"(?<!\()[*+?{]"), re.compile(r"\)[*+{]")
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{|$)")


class _Rules(NamedTuple):
    """Rules at ``path`` of ``manifest``, as YAML that begins at the line ``first`` of the file.

    ``first`` is 0 if the lines of ``text`` are none of the file. ``is_one``: ``text`` is a list with the only rule that is at ``path``.
    """

    manifest: Manifest
    path: Path
    first: int
    text: str
    is_one: bool = False

    def field(self, inner: str) -> str:
        """The field of the object for the field ``inner`` of the text."""
        if not self.path:
            return inner
        outer = path_text(self.path)
        return f"{outer}{_FIRST.sub('', inner)}" if self.is_one else f"{outer}: {inner}"

    def line(self, inner: str, number: int) -> int:
        """The line of the file for the line ``number`` of the text, or for the field ``inner``, which is there."""
        if self.first:
            return min(self.first + number - 1, self.manifest.last)
        return self.manifest.line(self.manifest.path_of(self.field(inner).partition(": ")[0]))


def find_bad_rules(manifests: Manifests) -> Iterable[Finding]:
    """L17: rules that prometheus-adapter refuses, that cannot be asked, or that never make a metric."""
    similar = Similar()
    for manifest in manifests.items:
        for rules in _texts(manifest):
            for problem in manifests.read_rules(rules.text):
                seen, _, expected = problem.message.partition(", expected ")
                yield _finding(
                    rules,
                    (problem.line or 1, problem.path or "the whole text"),
                    seen=seen.removeprefix("saw ") if expected else problem.message.partition(";")[0],
                    expected=expected or "a rule in the language of prometheus-adapter",
                    effect=_REFUSED,
                )
            root, _ = tree_of(rules.text)
            for path, rule in _rules_in(root):
                yield from _unknown_fields(rules, path, rule, similar)
                yield from _never(rules, path, rule)


def has_rules(manifest: Manifest) -> bool:
    """Whether the object has rules of prometheus-adapter."""
    return next(_texts(manifest), None) is not None


def _finding(rules: _Rules, place: tuple[int, str], *, seen: str, expected: str, effect: str, patch: str = "") -> Finding:
    number, path = place
    fix = Fix(advice="" if patch else "correct the rule", patch=patch)
    severity = WARNING if effect == _NEVER else CRITICAL
    at = f"{rules.manifest.file.name}:{rules.line(path, number)}"
    return Finding("L17", severity, rules.manifest.title, rules.field(path), seen, expected, effect, fix, at)


def _texts(manifest: Manifest) -> Iterator[_Rules]:
    document = manifest.document
    if document.kind == "ConfigMap":
        for key, text in document.pairs("data").items():
            entry = manifest.entry(("data", key))
            if entry is not None and "seriesQuery" in text and text.lstrip().startswith(_KEYS):
                is_block = _BLOCK.search(manifest.file.lines[entry.line - 1]) is not None
                yield _Rules(manifest, ("data", key), entry.line + 1 if is_block else 0, text)
    elif not document.kind and document.data and all(name in _KEYS for name in document.data):
        yield _Rules(manifest, (), manifest.first, manifest.file.part(manifest.first, manifest.last))
    elif not document.kind and (document.has("prometheus") or document.has("metrics", "rules")):
        yield from _of_chart(manifest)


def _of_chart(manifest: Manifest) -> Iterator[_Rules]:
    """The rules among the values of the chart, or of gpuscaler's chart, each as a text of its own."""
    of_adapter = ((("rules", "custom"), "rules"), (("rules", "external"), "externalRules"))
    for names, key in (*of_adapter, *((("metrics", "rules", name), name) for name in _LISTS)):
        for index, rule in enumerate(manifest.document.parts(*names)):
            path: Path = (*names, index)
            yield _Rules(manifest, path, 0, yaml.dump({key: [dict(rule.data)]}, sort_keys=False), is_one=True)


def _rules_in(root: Entry | None) -> Iterator[tuple[str, Mapping[str, Entry]]]:
    members: Any = root.value if root is not None else None
    for name in _LISTS if isinstance(members, dict) else ():
        listed = members[name].value if name in members else None
        for index, rule in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(rule.value, dict):
                yield f"{name}[{index}]", rule.value


def _text(rule: Mapping[str, Entry], *path: str) -> str:
    value: Any = rule
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
        value = value.value if value is not None else None
    return value if isinstance(value, str) else ""


def _actions(query: str) -> Iterator[str]:
    """The texts between << and >>."""
    for part in query.split(">>")[:-1]:
        yield part.partition("<<")[2]


def _unknown_fields(rules: _Rules, path: str, rule: Mapping[str, Entry], similar: Similar) -> Iterator[Finding]:
    fields = dict.fromkeys(field for action in _actions(_text(rule, "metricsQuery")) for field in _FIELD.findall(action))
    for name in islice((name for name in fields if name not in _FIELDS), _MOST_FIELDS):
        meant = next(iter(similar.to(name, _FIELDS)), "")
        number, field = rule["metricsQuery"].line, f"{path}.metricsQuery"
        line = rules.line(field, number)
        written = rules.manifest.file.lines[line - 1]
        corrected = re.sub(rf"\.{name}\b", f".{meant}", written)
        patch = patch_of_lines(rules.manifest.file, {line: (corrected,)}) if meant and corrected != written else ""
        expected = f".{meant} (did you mean that?)" if meant else f"one of .{', .'.join(_FIELDS)}"
        yield _finding(rules, (number, field), seen=f".{name}", expected=expected, effect=_NO_QUERY, patch=patch)


def _may_take_long(pattern: str) -> bool:
    """Whether ``pattern`` may take Python very long, unlike the programs that use it."""
    repetitions = sum(1 for _ in islice(_REPEATS.finditer(pattern), _REPETITIONS + 1))
    return len(pattern) > _LONGEST or repetitions > _REPETITIONS or _GROUP_REPEATS.search(pattern) is not None


def _never(rules: _Rules, path: str, rule: Mapping[str, Entry]) -> Iterator[Finding]:
    """Rules for one series whose pattern of names does not match that series."""
    name, pattern = _NAME.match(_text(rule, "seriesQuery")), _text(rule, "name", "matches")
    if name is None or not pattern or len(name[1]) > _LONGEST or _may_take_long(pattern):
        return
    try:
        found = re.search(pattern, name[1])
    except (re.error, RecursionError, OverflowError):
        return  # A pattern of Go that Python does not have: read_rules knows it.
    if found is None:
        line = rule["name"].value["matches"].line
        yield _finding(rules, (line, f"{path}.name.matches"), seen=pattern, expected=f"a pattern that matches {name[1]}", effect=_NEVER)


LINTS = (Lint("L17", "rules of prometheus-adapter", find_bad_rules),)
