"""Patches of files: a change of an object, as an edit of the lines of its file that keeps everything else as it was written."""

import copy
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from gpuscaler.doctor.manifests.diffs import Change, diff
from gpuscaler.doctor.manifests.reading import Manifest, Path, SourceFile, tree_of
from gpuscaler.doctor.yaml_text import data_of
from gpuscaler.model.reading.document import Entry

#: What goes wrong on a way through data that are of other types than they should be.
_NO_PLACE = (KeyError, IndexError, TypeError, AttributeError)
_LINE_BREAKS = re.compile(r"[\r\n]")


class _CannotEditError(Exception):
    """The change is no simple edit of lines."""


def changed(data: Any, path: Path, value: Any) -> Any:
    """A copy of ``data`` with ``value`` at ``path``; mappings on the way are made. None if something else is in their place."""
    made = copy.deepcopy(data)
    at = made
    try:
        for step in path[:-1]:
            at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
        at[path[-1]] = value
    except _NO_PLACE:
        return None
    return made


def removed(data: Any, path: Path) -> Any:
    """A copy of ``data`` without ``path``; None if there is no such place."""
    made = copy.deepcopy(data)
    at = made
    try:
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]
    except _NO_PLACE:
        return None
    return made


def renamed(data: Any, path: Path, name: str) -> Any:
    """A copy of ``data`` whose last key of ``path`` is ``name``; None if there is no such place."""
    made = copy.deepcopy(data)
    at = made
    try:
        for step in path[:-1]:
            at = at[step]
        items = list(at.items())
    except _NO_PLACE:
        return None
    at.clear()
    at.update((name if key == path[-1] else key, value) for key, value in items)
    return made


def patch_of(manifest: Manifest, new: Any) -> str:
    """The patch that makes the object of ``manifest`` equal to ``new``; empty if no simple edit of lines does."""
    editor = _Editor(manifest.file)
    try:
        editor.rewrite(manifest.root, manifest.data, new)
    except _CannotEditError:
        return ""
    return editor.patch() if _reads_as(editor.text(manifest.first, manifest.last), manifest.prefix, new) else ""


def edited(manifest: Manifest, new: Any) -> str:
    """The lines of the document of ``manifest`` with ``new`` as its object; empty if no simple edit of lines does.

    The caller checks that they are read as ``new``.
    """
    editor = _Editor(manifest.file)
    try:
        editor.rewrite(manifest.root, manifest.data, new)
    except _CannotEditError:
        return ""
    return editor.text(manifest.first, manifest.last)


def patch_of_lines(file: SourceFile, lines: Mapping[int, tuple[str, ...]]) -> str:
    """The patch that replaces each line by those of ``lines``: no line removes it."""
    return diff(file, (Change(number - 1, number, after) for number, after in lines.items()))


def _reads_as(text: str, prefix: Path, new: Any) -> bool:
    root, _ = tree_of(text)
    for step in prefix:
        if root is None:
            return False
        root = root.value[step]
    return root is not None and json.dumps(data_of(root), default=str) == json.dumps(_ordered(data_of(root), new), default=str)


def _ordered(like: Any, value: Any) -> Any:
    """``value`` with its keys in the order of ``like``: the order of keys has no meaning."""
    if isinstance(like, dict) and isinstance(value, dict):
        keys = [*(key for key in like if key in value), *(key for key in value if key not in like)]
        return {key: _ordered(like.get(key), value[key]) for key in keys}
    if isinstance(like, list) and isinstance(value, list) and len(like) == len(value):
        return [_ordered(*pair) for pair in zip(like, value, strict=True)]
    return value


class _Lines(dict[int, list[str]]):
    """The lines that were looked at to be changed, by index: for each of the file, those that take its place."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__()
        self._file_lines = lines

    def __missing__(self, index: int) -> list[str]:
        self[index] = [self._file_lines[index]]
        return self[index]


class _Editor:
    """The lines of a file while they are edited: for each line of the file, those that take its place."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._lines = _Lines(file.lines)

    def text(self, first: int, last: int) -> str:
        """The lines from ``first`` to ``last`` of the file, as they are now."""
        lines = (self._lines.get(index, [self._file.lines[index]]) for index in range(first - 1, last))
        return "\n".join(line for changed_lines in lines for line in changed_lines) + "\n"

    def patch(self) -> str:
        changes = (Change(index, index + 1, tuple(after)) for index, after in self._lines.items())
        return diff(self._file, (change for change in changes if change.lines != (self._file.lines[change.start],)))

    def rewrite(self, entry: Entry, old: Any, new: Any, key: str = "") -> None:
        if isinstance(old, dict) and old and new == {} and key:
            self._empty(entry, key)
        elif isinstance(old, dict) and isinstance(new, dict):
            self._rewrite_mapping(entry, old, new)
        elif isinstance(old, list) and isinstance(new, list):
            self._rewrite_list(entry, old, new, key)
        elif type(old) is not type(new) or old != new:
            if isinstance(new, dict | list) or isinstance(old, dict | list):
                raise _CannotEditError
            self._replace_scalar(entry, key, new)

    def _rewrite_mapping(self, entry: Entry, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        gone, added = [key for key in old if key not in new], [key for key in new if key not in old]
        for key in tuple(gone):
            heir = next((name for name in added if new[name] == old[key]), None)
            if heir is not None:
                self._rename(entry.value[key], key, heir)
                gone.remove(key)
                added.remove(heir)
        kept = [key for key in old if key in new]
        if gone and not kept and not added:
            raise _CannotEditError
        for key in kept:
            self.rewrite(entry.value[key], old[key], new[key], key)
        before = [key for key in old if key not in gone]
        # What is added goes after the last key, which may be gone by then.
        for key in gone:
            self._delete(entry.value[key], key, first=not before)
        for key in added:
            self._insert(entry, old, key, new[key])

    def _rewrite_list(self, entry: Entry, old: list[Any], new: list[Any], key: str) -> None:
        if len(old) == len(new):
            for item, before, after in zip(entry.value, old, new, strict=True):
                self.rewrite(item, before, after)
            return
        if self._replace_flow(entry, key, new):
            return
        matcher = difflib.SequenceMatcher(
            None, [json.dumps(item, default=str) for item in old], [json.dumps(item, default=str) for item in new]
        )
        for tag, first, last, start, end in matcher.get_opcodes():
            if tag == "delete" and last - first < len(old):
                for item in entry.value[first:last]:
                    begin = self._item_line(item)
                    self._cut(begin, self._end(begin, _indent(self._file.lines[begin - 1]), is_list=False))
            elif tag == "insert" and old:
                self._add_items(entry, new[start:end])
            elif tag != "equal":
                raise _CannotEditError

    def _replace_flow(self, entry: Entry, key: str, new: list[Any]) -> bool:
        """Write a list of plain values in brackets again, if it is on the line of its key."""
        line = self._lines[entry.line - 1]
        if not key or len(line) != 1 or any(isinstance(item, dict | list) for item in new):
            return False
        matches = list(re.finditer(rf"(?:^|[\s,{{]){re.escape(key)}\s*:\s*(?P<list>\[[^\[\]]*\])", line[0]))
        if len(matches) != 1:
            return False
        text = ", ".join(_scalar(item, "") for item in new)
        line[0] = f"{line[0][: matches[0].start('list')]}[{text}]{line[0][matches[0].end('list') :]}"
        return True

    def _add_items(self, entry: Entry, items: Iterable[Any]) -> None:
        begin = self._item_line(entry.value[-1])
        indent = _indent(self._file.lines[begin - 1])
        end = self._end(begin, indent, is_list=False)
        for item in items:
            self._lines[end - 1] += [" " * indent + line for line in _dumped([item])]

    def _item_line(self, item: Entry) -> int:
        """The line of an item of a list in block style."""
        line = item.line
        if isinstance(item.value, dict) and item.value:
            line = min(line, *(member.line for member in item.value.values()))
        if not self._file.lines[line - 1].lstrip().startswith("- "):
            raise _CannotEditError
        return line

    def _key_match(self, line: int, key: str) -> re.Match[str]:
        """Where ``key`` begins a block on a line of the file, as it was written."""
        match = re.match(rf"^(?P<before>\s*(?:- +)*)(?P<key>(['\"]?){re.escape(key)}\3)(?P<after>\s*:(?:\s|$))", self._file.lines[line - 1])
        if match is None:
            raise _CannotEditError
        return match

    def _rename(self, entry: Entry, old: str, new: str) -> None:
        number = entry.line - 1
        if len(self._lines[number]) != 1:
            raise _CannotEditError
        pattern = re.compile(rf"(?P<before>(?:^|[\s,{{])(['\"]?)){re.escape(old)}(?P<after>\2\s*:)")
        matches = list(pattern.finditer(self._lines[number][0]))
        if len(matches) != 1:
            raise _CannotEditError
        self._lines[number][0] = pattern.sub(lambda match: f"{match['before']}{new}{match['after']}", self._lines[number][0])

    def _replace_scalar(self, entry: Entry, key: str, new: Any) -> None:
        number = entry.line - 1
        if len(self._lines[number]) != 1:
            raise _CannotEditError
        line = self._lines[number][0]
        lead = rf"(['\"]?){re.escape(key)}\2\s*:\s*" if key else r"(?:-\s+|[\[,]\s*)()"
        pattern = re.compile(rf"(?P<before>(?:^|[\s,{{])?{lead})(?P<value>(['\"]?){re.escape(entry.raw)}\4)(?=\s*(?:[,}}\]]|\s#|$))")
        matches = list(pattern.finditer(line))
        if len(matches) != 1 or (entry.raw == "" and entry.value is None):
            raise _CannotEditError
        match = matches[0]
        quote = match["value"][:1] if match["value"][:1] in "'\"" and isinstance(new, str) else ""
        text = _scalar(new, quote)
        self._lines[number][0] = line[: match.start("value")] + text + line[match.end("value") :]

    def _insert(self, entry: Entry, old: Mapping[str, Any], key: str, value: Any) -> None:
        """Add a key after the last key of a mapping in block style; before ``template``, where readers expect a selector."""
        if not old:
            raise _CannotEditError
        place = "template" if key == "selector" and "template" in old else next(reversed(list(old)))
        match = self._key_match(entry.value[place].line, place)
        column = match.end("before")
        lines = [" " * column + line for line in _dumped({key: value})]
        if place == "template" and "-" not in match["before"]:
            self._lines[entry.value[place].line - 1][:0] = lines
            return
        end = self._end(entry.value[place].line, column, is_list=isinstance(old[place], list))
        self._lines[end - 1] += lines

    def _delete(self, entry: Entry, key: str, *, first: bool) -> None:
        match = self._key_match(entry.line, key)
        if "-" in match["before"] or first:
            raise _CannotEditError
        self._cut(entry.line, self._end(entry.line, match.end("before"), is_list=isinstance(entry.value, list)))

    def _empty(self, entry: Entry, key: str) -> None:
        """Leave nothing in a mapping in block style."""
        match = self._key_match(entry.line, key)
        line = self._file.lines[entry.line - 1]
        if line[match.end() :].strip():
            raise _CannotEditError
        self._cut(entry.line + 1, self._end(entry.line, match.end("before"), is_list=False))
        self._lines[entry.line - 1] = [f"{line.rstrip()} {{}}"]

    def _cut(self, first: int, last: int) -> None:
        for number in range(first - 1, last):
            self._lines[number] = []

    def _end(self, first: int, column: int, *, is_list: bool) -> int:
        """The last line of the block that begins at line ``first`` and ``column``."""
        last = first
        for number in range(first, len(self._file.lines)):
            line = self._file.lines[number]
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            indent = _indent(line)
            if indent < column or (indent == column and not (is_list and line.lstrip().startswith("-") and not line.startswith("---"))):
                break
            last = number + 1
        return last


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _scalar(value: Any, quote: str) -> str:
    if isinstance(value, str):
        if _LINE_BREAKS.search(value):
            raise _CannotEditError
        if quote:
            return f"'{value.replace(chr(39), chr(39) * 2)}'" if quote == "'" else json.dumps(value, ensure_ascii=False)
        return next(iter(_dumped([value])))[2:]
    return json.dumps(value)


def _dumped(value: Any) -> Iterator[str]:
    return iter(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=200).splitlines())


class _Dumper(yaml.SafeDumper):
    """Quotes text that others would read as a number or a boolean with double quotes."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        doubtful = re.fullmatch(r"[yYnN~]|[-+.]?[0-9].*|(?i:true|false|yes|no|on|off|null)|", data) is not None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if doubtful else "|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)
_Dumper.add_multi_representer(int, _Dumper.represent_int)
_Dumper.add_multi_representer(float, _Dumper.represent_float)
