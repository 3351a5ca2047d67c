"""Priorities of pools as Cluster Autoscaler's priority expander has them: numbers, each with patterns of names.

Source: Cluster Autoscaler, ``expander/priority`` and its readme. The highest number among the pools that would do is used first. A pattern
may match anywhere in a name. A pool that none matches is used where no other can be, so it comes after all that are matched.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.pools import Policy
from gpuscaler.settings.cursor import Cursor, Report, TooMuchError
from gpuscaler.settings.document import read_document
from gpuscaler.settings.errors import Problem, SettingsError

#: Patterns longer than this are nothing that anybody means, and numbers beyond that.
MAX_PATTERN, MAX_PRIORITY = 500, 2**31
_NUMBER = re.compile(r"[-+]?[0-9]{1,10}")


class Priorities(Struct, frozen=True, gc=False):
    """``tiers`` are (number, patterns), the highest number first."""

    tiers: tuple[tuple[int, tuple[str, ...]], ...]

    def of(self, pool: str) -> int | None:
        """The highest number of which a pattern matches the name; None where none does."""
        return next((number for number, patterns in self.tiers if any(matches(one, pool) for one in patterns)), None)


def matches(pattern: str, pool: str) -> bool:
    """Whether ``pattern`` matches anywhere in the name of a pool."""
    return re.search(pattern, pool) is not None


def parse_priorities(text: str, source: str) -> Priorities:
    """What ``text`` says, YAML such as ``{10: [.*spot.*]}``; raises :class:`SettingsError`, in which ``source`` names it."""
    wanted = "a mapping from priorities to lists of patterns, such as 10: [.*]"
    root, problems = read_document(text, expected=wanted, needs="it needs two", numbers=True)
    report = Report(problems)
    tiers: dict[int, tuple[str, ...]] = {}
    if root is None or root.value is None:
        if not problems:
            report.add(Problem("", None, f"is empty, expected {wanted}"))
    else:
        try:
            for name, member in (Cursor("", root, report).members() or {}).items():
                number = _number(name, member)
                if number is not None:
                    tiers[number] = tuple(one for item in member.items() if (one := _pattern(item)) is not None)
        except TooMuchError:
            report.add(Problem("", None, "unfolds to more patterns than anybody means; use fewer anchors"))
    if report.problems:
        raise SettingsError(source, report.problems)
    return Priorities(tuple(sorted(tiers.items(), reverse=True)))


def _number(name: str, member: Cursor) -> int | None:
    if _NUMBER.fullmatch(name) is None or abs(int(name)) > MAX_PRIORITY:
        member.say(f"saw the priority {name[:50]!r}, expected a whole number; the highest is used first")
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


def prioritised(policy: Policy, priorities: Priorities) -> tuple[Policy, str]:
    """``policy`` with those priorities in the place of its pools' own, and what is odd about that, empty where nothing is.

    Where they match no pool at all, the pools keep their own.
    """
    known = {pool.name: priorities.of(pool.name) for pool in policy.pools}
    numbers = [number for number in known.values() if number is not None]
    if not numbers:
        names = ", ".join(sorted(known)[:3]) or "there are none"
        return policy, f"saw no pattern that matches a pool ({names}), expected one; the pools keep their own priorities" if known else ""
    last = min(numbers) - 1
    pools = tuple(replace(pool, priority=last if (number := known[pool.name]) is None else number) for pool in policy.pools)
    return replace(policy, pools=pools), ""
