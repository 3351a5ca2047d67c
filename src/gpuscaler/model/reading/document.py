"""YAML as a tree of entries with line numbers. Stricter than YAML: no duplicate keys, no tags, keys are text.

The tree is built from PyYAML's events and not by its constructors, because those keep neither lines nor duplicate keys, read ``1:30``
as ninety and ``1e3`` as text, and recurse without a limit on hostile files.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from gpuscaler.model.reading.errors import Problem

#: None, bool, int, float or str; a list of entries; a dictionary of entries.
Value = Any

MAX_DEPTH = 50

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = re.compile(r"~|null|Null|NULL|")
# All booleans of YAML 1.1: a bare ``on`` is a boolean for kubectl too, and an error message is better than a guess.
_TRUE = re.compile(r"true|True|TRUE|yes|Yes|YES|on|On|ON")
_FALSE = re.compile(r"false|False|FALSE|no|No|NO|off|Off|OFF")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "nan": math.nan}
#: Longer integers are read as floats: Python refuses to convert thousands of digits.
_MAX_DIGITS = 30
#: How messages about a key that a mapping has twice begin.
DUPLICATE = "saw this key a second time"


class Entry(Struct, frozen=True):
    """A value of the file, with the line of its key or, without a key, of its start. ``raw`` is a scalar's text as written."""

    value: Value
    line: int
    raw: str = ""


class _Frame:
    """A mapping or list that is being read."""

    def __init__(self, line: int, anchor: str | None, *, mapping: bool) -> None:
        self.line = line
        self.anchor = anchor
        self.items: list[Entry] = []
        self.members: dict[str, Entry] | None = {} if mapping else None
        self.merged: dict[str, Entry] = {}
        self.key: str | None = None
        self.key_line = 0

    @property
    def place(self) -> str:
        """This frame's step of the path, for the child that is being read."""
        if self.members is None:
            return f"[{len(self.items)}]"
        return "" if self.key is None else f".{self.key}"


def read_document(
    text: str,
    *,
    expected: str = "a YAML mapping with the key pools",
    needs: str = "a pools file needs eight",
    numbers: bool = False,
    first: int = 1,
) -> tuple[Entry | None, list[Problem]]:
    """Return the single document of the file (None if it is empty or not YAML), and its mistakes as YAML.

    In messages, ``expected`` describes a valid file, and ``needs`` states how deeply it is nested. With ``numbers``, keys are whole numbers
    as written. ``first`` is the line of the file at which ``text`` begins.
    """
    builder = _Builder(numbers=numbers, first=first)
    try:
        for event in _events(text):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + first if mark else None
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        return None, [Problem("", line, f"not YAML: {what}; expected {expected}")]
    except yaml.YAMLError as error:
        return None, [Problem("", None, f"not YAML: {' '.join(str(error).split())}; remove characters that are not printable")]
    except UnicodeEncodeError:
        return None, [Problem("", None, "not YAML: saw half of a surrogate pair, expected Unicode text; save the file as UTF-8")]
    except _TooDeepError as error:
        return None, [Problem("", error.line, f"nested more than {MAX_DEPTH} deep; {needs}")]
    return builder.root, builder.problems


def _events(text: str) -> Iterator[Any]:
    return yaml.parse(text, Loader=_LOADER)


class _TooDeepError(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Builder:
    """Builds entries from events."""

    def __init__(self, *, numbers: bool, first: int) -> None:
        self._numbers = numbers
        self._first = first
        self.root: Entry | None = None
        self.problems: list[Problem] = []
        self._documents = 0
        self._stack: list[_Frame] = []
        self._anchors: dict[str, Entry] = {}

    def feed(self, event: Any) -> None:
        line = event.start_mark.line + self._first
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close()
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents == 2:
                self.problems.append(Problem("", line, "saw a second document (---), expected one; split the file"))

    def _report(self, line: int, message: str) -> None:
        path = "".join(frame.place for frame in self._stack)
        self.problems.append(Problem(path.removeprefix("."), line, message))

    def _open(self, event: Any, line: int) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise _TooDeepError(line)
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            self._report(line, f"saw the tag {event.tag}, expected plain YAML; remove the tag")
        self._stack.append(_Frame(line, event.anchor, mapping=mapping))

    def _close(self) -> None:
        frame = self._stack.pop()
        # Merged keys are added last: explicit keys take precedence.
        value: Value = frame.items if frame.members is None else {**frame.members, **_missing(frame.merged, frame.members)}
        self._place(Entry(value, frame.line), frame.anchor)

    def _scalar(self, event: Any, line: int) -> None:
        text = event.value
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self._report(line, f"saw the tag {event.tag}, expected plain YAML; remove the tag")
        plain = not event.style and event.tag is None  # libyaml has "" where PyYAML has None
        self._place(Entry(_resolve(text) if plain else text, line, text), event.anchor)

    def _alias(self, anchor: Any, line: int) -> None:
        entry = self._anchors.get(anchor)
        if entry is None:
            inside = any(frame.anchor == anchor for frame in self._stack)
            self._report(line, f"*{anchor} " + ("is inside the value that it refers to" if inside else "refers to no anchor above it"))
            entry = Entry(None, line)
        self._place(Entry(entry.value, line, entry.raw), None)

    def _place(self, entry: Entry, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = entry
        if not self._stack:
            if self._documents == 1:
                self.root = entry
            return
        frame = self._stack[-1]
        if frame.members is None:
            frame.items.append(entry)
        elif frame.key is None:
            frame.key, frame.key_line = self._key(entry), entry.line
        else:
            self._member(frame, frame.key, entry)
            frame.key = None

    def _key(self, entry: Entry) -> str:
        if isinstance(entry.value, str):
            return entry.value
        if self._numbers and type(entry.value) is int:
            return entry.raw
        shown = entry.raw or ("nothing" if entry.value is None else "a list or mapping")
        self._report(entry.line, f"saw the key {shown}, expected {'a whole number' if self._numbers else 'text; quote it'}")
        return entry.raw

    def _member(self, frame: _Frame, key: str, entry: Entry) -> None:
        assert frame.members is not None
        if key == "<<":
            self._merge(frame, entry)
        elif key in frame.members:
            first = frame.members[key].line
            self._report(frame.key_line, f"{DUPLICATE} (first on line {first}), expected it once; remove one")
        else:
            frame.members[key] = Entry(entry.value, frame.key_line, entry.raw)

    def _merge(self, frame: _Frame, entry: Entry) -> None:
        for part in entry.value if isinstance(entry.value, list) else [entry]:
            if not isinstance(part.value, dict):
                self._report(entry.line, f"saw {describe(part)} merged with <<, expected a mapping; point it at an anchored mapping")
                continue
            frame.merged |= _missing(part.value, frame.merged)


def _missing(members: dict[str, Entry], present: dict[str, Entry]) -> dict[str, Entry]:
    return {key: entry for key, entry in members.items() if key not in present}


def _resolve(text: str) -> Value:
    """Return the value of a plain scalar: numbers as in YAML 1.2, booleans as in YAML 1.1, anything else as text."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INT.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _SPECIAL.get(text.lower().replace(".", "", 1)) if "." in text[:2] else None
    return text if special is None else special


def describe(entry: Entry) -> str:
    """Describe an entry in a message."""
    value = entry.value
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = entry.raw if len(entry.raw) <= 60 else entry.raw[:57] + "…"
    if isinstance(value, str):
        return f'"{text}"'
    return f"the {'boolean' if isinstance(value, bool) else 'number'} {text}"
