"""Sparse counts of things held on rows, such as volumes and disks."""

from collections.abc import Hashable, Mapping
from types import MappingProxyType

_NOWHERE: Mapping[int, int] = MappingProxyType({})


class Holdings:
    """How often each thing is held on each row. Copies share the rows of a thing until one of them changes it."""

    def __init__(self) -> None:
        self._items: dict[Hashable, dict[int, int]] = {}
        self._owned: set[Hashable] = set()

    def rows(self, thing: Hashable) -> Mapping[int, int]:
        """Rows that hold ``thing``, and how often."""
        return self._items.get(thing, _NOWHERE)

    def add(self, thing: Hashable, row: int, count: int) -> int:
        """Add ``count`` (or remove, if negative) to ``thing`` on ``row``; returns 1 if it is newly held there, -1 if no longer, else 0."""
        if thing not in self._owned:
            self._owned.add(thing)
            self._items[thing] = dict(self._items.get(thing, _NOWHERE))
        rows = self._items[thing]
        before = rows.get(row, 0)
        if before + count:
            rows[row] = before + count
        else:
            rows.pop(row, None)
        return bool(before + count > 0) - bool(before > 0)

    def copy(self) -> "Holdings":
        new = Holdings()
        new._items = self._items.copy()
        self._owned = set()
        return new
