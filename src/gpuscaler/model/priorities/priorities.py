"""Priorities of pools in the format of Cluster Autoscaler's priority expander: numbers, each with name patterns.

Source: Cluster Autoscaler, ``expander/priority`` and its readme. Of the suitable pools, the one with the highest number is used first. A
pattern may match anywhere in a name. A pool without a match is used only if no other pool is suitable, so it comes after all matched ones.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.pools import Policy
from gpuscaler.model.reading.cursor import Cursor, Report, TooMuchError
from gpuscaler.model.reading.document import read_document
from gpuscaler.model.reading.errors import Problem, SettingsError

#: Limits for patterns and numbers; larger ones are treated as mistakes.
MAX_PATTERN, MAX_PRIORITY = 500, 2**31
_NUMBER = re.compile(r"[-+]?[0-9]{1,10}")


class Priorities(Struct, frozen=True, gc=False):
    """Priorities of pools. ``tiers`` are (number, patterns), the highest number first."""

    tiers: tuple[tuple[int, tuple[str, ...]], ...]

    def of(self, pool: str) -> int | None:
        """Return the highest number with a pattern that matches the name; None if no pattern matches."""
        return next((number for number, patterns in self.tiers if any(matches(pattern, pool) for pattern in patterns)), None)


def matches(pattern: str, pool: str) -> bool:
    """Whether ``pattern`` matches anywhere in the name of a pool."""
    return re.search(pattern, pool) is not None


def parse_priorities(text: str, source: str) -> Priorities:
    """Parse ``text``, YAML such as ``{10: [.*spot.*]}``. Raises :class:`SettingsError`, with ``source`` as its name."""
    expected = "a mapping from priorities to lists of patterns, such as 10: [.*]"
    root, problems = read_document(text, expected=expected, needs="it needs two", numbers=True)
    report = Report(problems)
    tiers: dict[int, tuple[str, ...]] = {}
    if root is None or root.value is None:
        if not problems:
            report.add(Problem("", None, f"is empty, expected {expected}"))
    else:
        try:
            for name, member in (Cursor("", root, report).members() or {}).items():
                number = _number(name, member)
                if number is not None:
                    tiers[number] = tuple(pattern for item in member.items() if (pattern := _pattern(item)) is not None)
        except TooMuchError:
            report.add(Problem("", None, "expands to too many patterns; use fewer anchors"))
    if report.problems:
        raise SettingsError(source, report.problems)
    return Priorities(tuple(sorted(tiers.items(), reverse=True)))


def _number(name: str, member: Cursor) -> int | None:
    if _NUMBER.fullmatch(name) is None or abs(int(name)) > MAX_PRIORITY:
        member.add_problem(f"saw the priority {name[:50]!r}, expected a whole number; the highest is used first")
        return None
    return int(name)


def _pattern(item: Cursor) -> str | None:
    text = item.text("a regular expression for names of pools")
    if text is None:
        return None
    if len(text) > MAX_PATTERN:
        item.wrong(f"a regular expression of at most {MAX_PATTERN} letters")
        return None
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        item.wrong(f"a regular expression ({error})")
        return None
    return text


def apply_priorities(policy: Policy, priorities: Priorities) -> tuple[Policy, str]:
    """Return ``policy`` with these priorities instead of those in the file, and a warning (empty if all is well).

    If no pattern matches any pool, the pools keep the priorities of the file.
    """
    number_of = {pool.name: priorities.of(pool.name) for pool in policy.pools}
    numbers = [number for number in number_of.values() if number is not None]
    if not numbers:
        names = ", ".join(sorted(number_of)[:3]) or "there are none"
        return (
            policy,
            f"saw no pattern that matches a pool ({names}), expected one; the priorities in the file apply" if number_of else "",
        )
    last = min(numbers) - 1
    pools = tuple(replace(pool, priority=last if (number := number_of[pool.name]) is None else number) for pool in policy.pools)
    return replace(policy, pools=pools), ""
