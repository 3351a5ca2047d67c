"""Counts per row that are updated with every placement, with their sums per topology domain."""

import numpy as np

from gpuscaler.model.table import Array, NodeTable


class Tally:
    """One count per row; ``domains[key][code]`` sums it over the rows with that value of the label ``key``.

    The last entry of each domain array belongs to the code -1 (no such label) and stays 0.
    """

    __slots__ = ("domains", "rows")

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.domains: dict[str, Array] = {}

    def copy(self) -> "Tally":
        new = Tally(self.rows.copy())
        new.domains = {key: array.copy() for key, array in self.domains.items()}
        return new


class Tallies:
    """Numbered tallies over one table. Copies share each tally until one of them changes it."""

    __slots__ = ("_items", "_owned", "table")

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self._items: list[Tally] = []
        self._owned: set[int] = set()

    def __len__(self) -> int:
        return len(self._items)

    def new(self, rows: Array) -> int:
        """Add a tally that takes over ``rows`` as its counts; returns its number."""
        self._items.append(Tally(rows))
        self._owned.add(len(self._items) - 1)
        return len(self._items) - 1

    def empty(self) -> int:
        return self.new(np.zeros(len(self.table), dtype=np.int64))

    def rows(self, number: int) -> Array:
        """Counts per row. Callers must not change them."""
        return self._items[number].rows

    def domain(self, number: int, key: str) -> Array:
        """Sums per value of the label ``key``, in the order of its column, and a last 0. Callers must not change them."""
        tally = self._items[number]
        sums = tally.domains.get(key)
        if sums is None:
            sums = tally.domains[key] = sums_by_domain(self.table, key, tally.rows)
        return sums

    def fill(self, number: int, rows: Array, counts: Array) -> None:
        """Add many counts at once; ``rows`` contains each row at most once."""
        tally = self._own(number)
        tally.rows[rows] += counts
        tally.domains.clear()

    def _own(self, number: int) -> Tally:
        if number not in self._owned:
            self._items[number] = self._items[number].copy()
            self._owned.add(number)
        return self._items[number]

    def add(self, number: int, row: int, count: int) -> None:
        tally = self._own(number)
        tally.rows[row] += count
        for key, sums in tally.domains.items():
            code = self.table.column(key).codes[row]
            if code >= 0:
                sums[code] += count

    def copy(self) -> "Tallies":
        new = Tallies(self.table)
        new._items = self._items.copy()
        self._owned = set()
        return new

    def extended(self, table: NodeTable) -> "Tallies":
        """The same counts over ``table``, which has additional rows at the end."""
        new = Tallies(table)
        zeros = np.zeros(len(table) - len(self.table), dtype=np.int64)
        new._items = [Tally(np.concatenate((tally.rows, zeros))) for tally in self._items]
        new._owned = set(range(len(new._items)))
        return new


def sums_by_domain(table: NodeTable, key: str, rows: Array) -> Array:
    """``rows`` summed per value of the label ``key``; one more entry, 0, for rows without it."""
    codes, values = table.column(key)
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    used = np.flatnonzero(rows)
    np.add.at(sums, codes[used], rows[used])
    sums[-1] = 0
    return sums
