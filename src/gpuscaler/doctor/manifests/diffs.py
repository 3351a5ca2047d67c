"""Unified diffs: of the changes that mend one mistake, and of those of all mistakes of a file.

Source: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/diff.html
"""

import re
from collections.abc import Container, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from gpuscaler.doctor.manifests.credentials import shows_credential
from gpuscaler.doctor.manifests.reading import STANDARD_INPUT, SourceFile

#: Lines around a change.
_AROUND = 3
_NO_END = "\\ No newline at end of file"
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? ")
#: Names that patch reads otherwise: as text of C, or as the end of the line. An empty name is none.
_ODD_NAME = re.compile(r'^$|^"|\\')


class Change(NamedTuple):
    """The lines of a file from index ``start`` until before ``end`` become ``lines``."""

    start: int
    end: int
    lines: tuple[str, ...]


class _Line(NamedTuple):
    """A line of a changed file, and its index in the original, None if it is new."""

    text: str
    origin: int | None


class Draft:
    """A file while it is changed."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._lines = [_Line(text, index) for index, text in enumerate(file.lines)]

    @property
    def file(self) -> SourceFile:
        """The file as it is now."""
        text = "".join(f"{line.text}\n" for line in self._lines)
        return SourceFile.of(self._file.name, self._file.mark + (text if self._file.ends else text.removesuffix("\n")))

    def apply(self, changes: Iterable[Change]) -> None:
        """Make ``changes``, which are apart from each other; all count the lines as they are now."""
        for change in sorted(changes, reverse=True):
            old = {line.text: line for line in self._lines[change.start : change.end]}
            self._lines[change.start : change.end] = [old.pop(text, _Line(text, None)) for text in change.lines]

    def diff(self) -> str:
        """The patch that makes the file as it is now; empty if there is none that patch would apply, or that no output may show."""
        return _diff(self._file, self._lines, 0, len(self._file.lines))


def diff(file: SourceFile, changes: Iterable[Change]) -> str:
    """The patch that makes ``changes``; empty if there is none that patch would apply, or that no output may show."""
    ordered = sorted(changes)
    if not ordered:
        return ""
    first, last = max(0, ordered[0].start - _AROUND - 1), min(len(file.lines), ordered[-1].end + _AROUND + 1)
    lines: list[_Line] = []
    end = "\r" if file.lines[0].endswith("\r") else ""
    at = first
    for change in ordered:
        lines += [_Line(file.lines[index], index) for index in range(at, change.start)]
        old = {file.lines[index]: index for index in range(change.start, change.end)}
        lines += [_Line(text, old.pop(text, None)) for text in (f"{text.removesuffix(end)}{end}" for text in change.lines)]
        at = change.end
    lines += [_Line(file.lines[index], index) for index in range(at, last)]
    return _diff(file, lines, first, last)


def changes_of(patch: str) -> tuple[Change, ...]:
    """The changes that a patch of :func:`diff` makes."""
    changes: list[Change] = []
    added: list[str] = []
    at, start, inside = 0, -1, False
    for line in (*patch.split("\n")[2:], " "):
        if line[:1] in "-+" and line:
            if not inside:
                start, added, inside = at, [], True
            if line[0] == "-":
                at += 1
            else:
                added.append(line[1:])
        elif not line.startswith("\\"):
            if inside:
                changes.append(Change(start, at, tuple(added)))
                inside = False
            if match := _HUNK.match(line):
                # A hunk that only adds, without lines around, names the line before it.
                at = int(match[1]) - (match[2] != "0")
            else:
                at += 1
    return tuple(changes)


class Apart:
    """Changes of a file that can be made together, because none touches another."""

    def __init__(self) -> None:
        self.changes: set[Change] = set()
        self._touched: set[int] = set()

    def add(self, changes: tuple[Change, ...]) -> bool:
        """Add ``changes`` and return True, unless one of them touches another change than itself."""
        new = [change for change in changes if change not in self.changes]
        if any(not self._touched.isdisjoint(_places(change)) for change in new):
            return False
        self.changes.update(new)
        self._touched.update(place for change in new for place in _places(change))
        return True


def _places(change: Change) -> range:
    """What ``change`` touches: odd numbers are lines, even ones the places between them, where others may add lines."""
    inside = len(change.lines) == change.end - change.start
    return range(2 * change.start + inside, 2 * change.end + 1 - inside)


def _diff(file: SourceFile, lines: list[_Line], first: int, last: int) -> str:
    if not _is_plain_name(file.name):
        return ""
    rows = list(_rows(file, lines, first, last))
    changed = [index for index, (sign, _, _) in enumerate(rows) if sign != " "]
    if not changed or any(not _is_plain(rows[index][1]) for index in changed) or _shows(file, rows, changed):
        return ""
    # Lines around a change may be credentials, which no output shows, or contain what a terminal would obey.
    odd = any(not _is_plain(text) for sign, text, _ in rows if sign == " ")
    around = 0 if odd or file.guarded else _AROUND
    # patch takes the name up to the first white space, unless a tab ends it.
    name = f"{file.name}\t" if " " in file.name else file.name
    text = [f"--- {name}", f"+++ {name}"]
    unended = _unended(file, rows, last)
    for start, end in _hunks(changed, around, len(rows)):
        text += _hunk(rows, start, end, unended=unended)
    return "\n".join(text) + "\n"


#: A row of a diff: its sign, its text, and the indexes of the lines before and after the change that come next.
_Row = tuple[str, str, tuple[int, int]]


def _rows(file: SourceFile, lines: list[_Line], first: int, last: int) -> Iterator[_Row]:
    at, new = first, first
    # A last line without a line end gets one if lines follow it.
    final = len(file.lines) - 1
    moved_end = not file.ends and last > final and bool(lines) and lines[-1].origin != final
    for line in (*lines, None):
        origin = last if line is None else line.origin
        if moved_end and origin == final and line is not None:
            origin = None
        if origin is not None:
            for index in range(at, origin):
                yield "-", (file.mark if index == 0 else "") + file.lines[index], (index, new)
            at = origin
        if line is not None:
            mark = file.mark if new == 0 else ""
            yield " " if origin is not None else "+", mark + line.text, (at, new)
            at += origin is not None
            new += 1


def _hunks(changed: list[int], around: int, size: int) -> Iterator[tuple[int, int]]:
    start = changed[0]
    for index, following in pairwise([*changed, size + 2 * around + 2]):
        if following - index > 2 * around + 1:
            yield max(0, start - around), min(size, index + around + 1)
            start = following


def _hunk(rows: list[_Row], start: int, end: int, *, unended: Container[int]) -> Iterator[str]:
    part = rows[start:end]
    old, new = sum(sign != "+" for sign, _, _ in part), sum(sign != "-" for sign, _, _ in part)
    before, after = part[0][2]
    yield f"@@ -{before + (old > 0)},{old} +{after + (new > 0)},{new} @@"
    added: list[str] = []
    for index, (sign, text, _) in enumerate(part, start):
        marked = (f"{sign}{text}", *([_NO_END] if index in unended else []))
        if sign == "+":
            # Those that are removed come before those that take their place.
            added += marked
        elif sign == "-":
            yield from marked
        else:
            yield from (*added, *marked)
            added = []
    yield from added


def _unended(file: SourceFile, rows: list[_Row], last: int) -> set[int]:
    """The rows of the last lines of the file, before and after the change, if these have no line end."""
    if file.ends or last < len(file.lines):
        return set()
    kinds = ([index for index, row in enumerate(rows) if row[0] != sign] for sign in "+-")
    return {indexes[-1] for indexes in kinds if indexes}


def _shows(file: SourceFile, rows: list[_Row], changed: list[int]) -> bool:
    """Whether a changed line shows a credential, whose name may be on the line before or after it."""
    for index in changed:
        sign, text, (before, _) = rows[index]
        beside = file.lines[max(0, before - 1) : before + 2]
        if shows_credential(text, beside) or (sign == "-" and file.in_secret(before + 1)):
            return True
    return False


def _is_plain_name(name: str) -> bool:
    return name != STANDARD_INPUT and name.isprintable() and _ODD_NAME.search(name) is None


def _is_plain(text: str) -> bool:
    """Whether ``text`` is printed as it is: a tab, and a carriage return at the end, are no harm to a terminal."""
    return text.replace("\t", " ").removesuffix("\r").isprintable()
