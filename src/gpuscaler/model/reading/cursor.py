"""Reading of a tree of entries: each method returns a checked value, or reports the mistake and returns None.

Mistakes raise no exceptions, so one pass over a file finds all of them.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterable

from gpuscaler.model.durations import parse_duration
from gpuscaler.model.labels import is_label_value
from gpuscaler.model.reading.document import Entry, describe
from gpuscaler.model.reading.errors import Problem

#: Maximum number of values in a file after its anchors are expanded. 5 MB without anchors hold a million; a dozen nested anchors expand
#: without limit.
MAX_VALUES = 3_000_000


class TooMuchError(Exception):
    """The file expands to more than :data:`MAX_VALUES`."""


class Report:
    """The problems found so far. Duplicates are kept once, because a mistake in a pool shows in each of its zones."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self._problems = dict.fromkeys(problems)
        self._values = 0

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, problem: Problem) -> None:
        self._problems[problem] = None

    def count(self, values: int) -> None:
        """Count ``values`` that were read; raise :class:`TooMuchError` above :data:`MAX_VALUES`."""
        self._values += values
        if self._values > MAX_VALUES:
            raise TooMuchError

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems in the order of the file."""
        return tuple(sorted(self._problems, key=lambda problem: problem.line or 0))


class Cursor:
    """An entry of the file, with its path for messages."""

    __slots__ = ("entry", "path", "report")

    def __init__(self, path: str, entry: Entry, report: Report) -> None:
        self.path = path
        self.entry = entry
        self.report = report

    def wrong(self, expected: str, *, seen: str | None = None) -> None:
        """Report that something other than ``expected`` was seen here. ``expected`` can include advice."""
        self.add_problem(f"saw {seen or describe(self.entry)}, expected {expected}")

    def add_problem(self, message: str) -> None:
        self.report.add(Problem(self.path, self.entry.line, message))

    def mapping(self, keys: Collection[str], *, required: Collection[str] = ()) -> dict[str, "Cursor"]:
        """Return the members that are present; other keys than ``keys`` are reported. A key without a value counts as absent."""
        members = self.members()
        if members is None:
            return {}
        for key, member in members.items():
            if key not in keys:
                member.add_problem(f"unknown key; {did_you_mean(key, keys)}")
        cursors = {key: member for key, member in members.items() if key in keys and member.entry.value is not None}
        for key in required:
            if key not in cursors:
                self.add_problem(f"saw no {key}, expected one; add {key}: …")
        return cursors

    def has(self, key: str) -> bool:
        """Whether this is a mapping with a value under ``key``."""
        value = self.entry.value
        return isinstance(value, dict) and key in value and value[key].value is not None

    def descend(self, *keys: str) -> "Cursor":
        """Return the entry at these nested keys of mappings that are known to have them."""
        at = self
        for key in keys:
            at = (at.members() or {})[key]
        return at

    def members(self) -> dict[str, "Cursor"] | None:
        """Return all members of a mapping with arbitrary keys."""
        value = self.entry.value
        if not isinstance(value, dict):
            self.wrong("a mapping (key: value)")
            return None
        self.report.count(len(value))
        prefix = f"{self.path}." if self.path else ""
        return {key: Cursor(_path_step(prefix, key), entry, self.report) for key, entry in value.items()}

    def items(self) -> list["Cursor"]:
        value = self.entry.value
        if not isinstance(value, list):
            self.wrong("a list; write it with dashes or in [ ]")
            return []
        self.report.count(len(value))
        return [Cursor(f"{self.path}[{index}]", entry, self.report) for index, entry in enumerate(value)]

    def text(self, expected: str = "text") -> str | None:
        value = self.entry.value
        if isinstance(value, str) and value:
            return value
        if isinstance(value, bool | int | float):
            self.wrong(f'{expected}; quote it: "{self.entry.raw}"')
        else:
            self.wrong(expected)
        return None

    def label_value(self, expected: str) -> str | None:
        """Return text that is valid as the value of a Kubernetes label."""
        text = self.text(expected)
        if text is None or is_label_value(text):
            return text
        self.wrong(f"{expected}: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends")
        return None

    def names(self, expected: str) -> list["Cursor"]:
        """Return the items of a list of distinct, non-empty texts; other items are reported and dropped."""
        items = self.items()
        if not items and isinstance(self.entry.value, list):
            self.wrong(f"at least one {expected}; remove the key to leave it open", seen="an empty list")
        distinct: dict[str, Cursor] = {}
        for item in items:
            text = item.label_value(expected)
            if text is None:
                continue
            if text in distinct:
                item.add_problem(f'saw "{text}" a second time, expected each {expected} once; remove one')
            else:
                distinct[text] = item
        return list(distinct.values())

    def choice(self, options: Collection[str]) -> str | None:
        value = self.entry.value
        if value is False and "off" in options:
            # YAML reads the bare word as a boolean, and Helm writes it back as one.
            return "off"
        if isinstance(value, str) and value in options:
            return value
        hint = difflib.get_close_matches(value, options, 1) if isinstance(value, str) else []
        self.wrong(f"one of {', '.join(options)}" + (f"; did you mean {hint[0]}?" if hint else ""))
        return None

    def boolean(self) -> bool | None:
        if isinstance(self.entry.value, bool):
            return self.entry.value
        self.wrong("true or false")
        return None

    def integer(self, *, minimum: int, expected: str, maximum: int = 2**31 - 1) -> int | None:
        value = self.entry.value
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
            self.wrong(f"{expected}; remove the quotes")
        else:
            self.wrong(expected)
        return None

    def number(self, *, expected: str, positive: bool = False) -> float | None:
        """Return a finite number of at least 0, or above 0 if ``positive``."""
        value = self.entry.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number) and (number > 0 or (number == 0 and not positive)):
                return number
        self.wrong(expected)
        return None

    def duration(self, *, positive: bool = False) -> float | None:
        """Return a duration in seconds. A bare 0 is accepted, as in Go."""
        raw = self.entry.raw
        expected = "a duration with its unit, such as 90s, 10m or 1h30m"
        if isinstance(self.entry.value, str) or raw == "0":
            try:
                seconds = parse_duration(raw)
            except ValueError:
                pass
            else:
                if seconds > 0 or (seconds == 0 and not positive):
                    return seconds
                expected += ", above 0" if positive else ", not negative"
        self.wrong(expected)
        return None


def did_you_mean(word: str, options: Collection[str]) -> str:
    """Return a hint such as ``did you mean price?``, or the list of options if none is similar."""
    near = difflib.get_close_matches(word, options, 1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(options)}"


def _path_step(prefix: str, key: str) -> str:
    """Format a key with dots or slashes as ``labels["example.com/team"]``: it would be unreadable in a dotted path."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", key):
        return f"{prefix}{key}"
    return f'{prefix.removesuffix(".")}["{key}"]'
