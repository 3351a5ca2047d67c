"""Names that resemble another one: what its author probably meant.

Comparing texts is slow, and anyone may make ten thousand objects with names that are almost alike: the work is limited, and who has used
it up gets no more suggestions.
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Protocol

#: The most names that are compared with one, and the lengths of the longest.
_MOST_NAMES, _LONGEST = 100, 128
#: Pairs of letters that are compared for one check, about a second of work; and the cost of a name that is only looked at.
_WORK, _LOOK = 5_000_000, 20


class Labels(Protocol):
    """The labels that nodes have."""

    @property
    def label_keys(self) -> Collection[str]:
        """The keys of all labels."""
        ...

    def values(self, key: str) -> Collection[str]:
        """The values of a label."""
        ...


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The one of ``known``, a short list, that resembles ``name`` most; empty if none does. Names that are too long resemble none."""
    return next(iter(get_close_matches(name, known, 1, cutoff)), "") if len(name) <= _LONGEST else ""


class Similar:
    """Finds names that resemble others, and remembers what it found, as long as one check runs.

    ``work`` limits the pairs of letters that are compared.
    """

    def __init__(self, work: int = _WORK) -> None:
        self._left = work
        self._found: dict[tuple[object, str, int, float], tuple[str, ...]] = {}
        self._cases: dict[object, dict[str, list[str]]] = {}

    def to(self, name: str, known: Collection[str], *, most: int = 1, cutoff: float = 0.6, group: object = None) -> tuple[str, ...]:
        """Up to ``most`` of ``known`` that resemble ``name``, the best first; nothing once the work is used up.

        ``group`` is what ``known`` are the names of: the same for the same names.
        """
        key = (group, name, most, cutoff)
        if group is not None and key in self._found:
            return self._found[key]
        self._left -= _LOOK * len(known)
        if self._left <= 0 or len(name) > _LONGEST:
            return ()
        candidates = [other for other in known if len(other) <= _LONGEST]
        if len(candidates) > _MOST_NAMES:
            candidates = sorted(candidates, key=lambda other: -_common(name, other))[:_MOST_NAMES]
        self._left -= len(name) * sum(map(len, candidates))
        self._found[key] = found = tuple(get_close_matches(name, candidates, most, cutoff))
        return found

    def in_other_case(self, name: str, known: Collection[str], *, group: object) -> tuple[str, ...]:
        """Those of ``known`` that differ from ``name`` only in capital letters."""
        if group not in self._cases:
            cases: dict[str, list[str]] = {}
            for other in known:
                cases.setdefault(other.lower(), []).append(other)
            self._cases[group] = cases
        return tuple(self._cases[group].get(name.lower(), ()))


def meant_label(key: str, value: str, labels: Labels, similar: Similar) -> tuple[str, str]:
    """The label among ``labels`` that a selector of ``key`` and ``value`` probably meant; an empty value if it is unclear."""
    values = labels.values(key)
    if values:
        group = ("values", key)
        alike = similar.to(value, values, most=2, cutoff=0.8, group=group) or similar.in_other_case(value, values, group=group)
        return key, alike[0] if len(alike) == 1 else ""
    keys = [known for known in similar.to(key, labels.label_keys, most=2, cutoff=0.8, group="keys") if value in labels.values(known)]
    return (keys[0], value) if len(keys) == 1 else (key, "")


def _common(one: str, other: str) -> int:
    """The number of letters with which both begin and end."""
    return _prefix(one, other) + _prefix(one[::-1], other[::-1])


def _prefix(one: str, other: str) -> int:
    return next((index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))
