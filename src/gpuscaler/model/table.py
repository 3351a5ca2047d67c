"""Nodes as arrays: a contiguous int64 array per resource, and a column of codes per requested label key."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuscaler.model.nodes import Node
from gpuscaler.model.taints import Taint

S = TypeVar("S", bound=np.generic)
T = TypeVar("T")
P = TypeVar("P", bound=Sized)

Array = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


#: The number of leading parts of a joined table that are never merged with others.
KEPT_PARTS = 2


class Column(NamedTuple):
    """The values of a label: ``codes[row]`` indexes ``values``, -1 if the node lacks the label."""

    codes: Codes
    values: tuple[str, ...]


class NodeTable:
    """A table with nodes (or node templates) as rows, in the given order. Arrays are built on first use, cached, and read-only."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.names = tuple([node.name for node in self.nodes])
        self._row: Mapping[str, int] | None = None
        self._allocatable: dict[str, Array] = {}
        self._columns: dict[str, Column] = {}
        self._taints: tuple[Codes, tuple[tuple[Taint, ...], ...]] | None = None
        self._unschedulable: Mask | None = None
        self._undecided: tuple[int, ...] | None = None
        #: The tables that this one was joined from, none of which is joined itself. Their number stays small.
        self._parts: tuple[NodeTable, ...] = ()

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def row(self) -> Mapping[str, int]:
        """The row of each node, by name."""
        if self._row is None:
            self._row = {name: row for row, name in enumerate(self.names)}
        return self._row

    def extended(self, nodes: Sequence[Node]) -> "NodeTable":
        """Return a table with these rows followed by ``nodes``."""
        return self.joined(NodeTable(nodes))

    def joined(self, more: "NodeTable") -> "NodeTable":
        """Return a table with these rows followed by those of ``more``; its arrays and codes are joined from theirs, which are cached."""
        new = NodeTable(())
        new.nodes = self.nodes + more.nodes
        new.names = self.names + more.names
        new._parts = pack_parts((*self.parts, *more.parts), merge_tables)
        if self._parts:
            # The parts do not have what was computed for the whole, and the whole itself is not kept.
            for resource, array in self._allocatable.items():
                new._allocatable[resource] = _read_only(np.concatenate((array, more.allocatable(resource))))
            for key, column in self._columns.items():
                new._columns[key] = Column(*_join_columns(column, more.column(key)))
            if self._taints is not None:
                new._taints = _join_columns(self._taints, more.taints)
            if self._undecided is not None:
                new._undecided = self._undecided + tuple(len(self) + row for row in more.undecided)
        return new

    @property
    def parts(self) -> tuple["NodeTable", ...]:
        """The tables that this one was joined from, or itself."""
        return self._parts or (self,)

    def followed_by(self, nodes: Sequence[Node]) -> "NodeTable":
        """Return the table of ``nodes``, most of which are rows here: known values are moved, and only new nodes are read."""
        row_of, own_nodes = self.row, self.nodes
        rows = [row_of.get(node.name, -1) for node in nodes]
        new_rows = [row for row, old in enumerate(rows) if old < 0 or own_nodes[old] is not nodes[row]]
        return self._moved(nodes, np.array(rows, dtype=np.int64), new_rows)

    def changed(self, changes: Mapping[str, Node | None]) -> tuple["NodeTable", Array]:
        """Return a table in the order of names after ``changes``: new or different nodes by name, None for deleted ones.

        The second value is the row that each of its rows had here, -1 for new ones.
        """
        row_of, nodes, names = self.row, list(self.nodes), list(self.names)
        kept = {name: node for name, node in changes.items() if node is not None}
        for name, node in kept.items():
            if name in row_of:
                nodes[row_of[name]] = node
        removed_rows = sorted((row_of[name] for name in changes.keys() - kept.keys() if name in row_of), reverse=True)
        for row in removed_rows:
            del nodes[row], names[row]
        # Insertion positions refer to the rows that stay, before later ones are moved.
        new = sorted(kept.keys() - row_of.keys(), reverse=True)
        positions = [bisect_left(names, name) for name in new]
        for position, name in zip(positions, new, strict=True):
            names.insert(position, name)
            nodes.insert(position, kept[name])
        rows = np.insert(np.delete(np.arange(len(self), dtype=np.int64), removed_rows), positions, -1)
        changed_rows = [bisect_left(names, name) for name in kept]
        return self._moved(nodes, rows, changed_rows, names=None if removed_rows or new else self.names), rows

    def _moved(
        self, nodes: Sequence[Node], rows: Array, changed_rows: Sequence[int], *, names: tuple[str, ...] | None = None
    ) -> "NodeTable":
        """Return the table of ``nodes``, which are ``rows`` here; cached values are read again only for ``changed_rows`` ones.

        ``names`` are given if they equal those of this table.
        """
        new = NodeTable(nodes)
        if names is not None:
            new.names, new._row = names, self._row
        if not len(self):
            return new
        for resource, array in self._allocatable.items():
            moved = new._allocatable[resource] = array[rows]
            moved[changed_rows] = [new.nodes[row].allocatable.get(resource, 0) for row in changed_rows]
            _read_only(moved)
        if self._taints is not None:
            codes, lists = self._taints
            code_of = {taints: code for code, taints in enumerate(lists)}
            new_codes = [code_of.get(new.nodes[row].taints, -1) for row in changed_rows]
            # If one is new, all are read again: otherwise unused lists would accumulate.
            if -1 not in new_codes:
                renewed = codes[rows]
                renewed[changed_rows] = new_codes
                new._taints = (_read_only(renewed), lists)
        return new

    def allocatable(self, resource: str) -> Array:
        """Return the amount of ``resource`` per row."""
        array = self._allocatable.get(resource)
        if array is None:
            if not self._parts:
                array = np.fromiter((node.allocatable.get(resource, 0) for node in self.nodes), dtype=np.int64, count=len(self))
            else:
                array = np.concatenate([part.allocatable(resource) for part in self._parts])
            self._allocatable[resource] = _read_only(array)
        return array

    def column(self, key: str) -> Column:
        """Return the values of label ``key``."""
        column = self._columns.get(key)
        if column is None and self._parts:
            column = self._columns[key] = reduce(
                lambda first, more: Column(*_join_columns(first, more)), (part.column(key) for part in self._parts)
            )
        if column is None:
            codes: dict[str, int] = {}
            raw = [codes.setdefault(v, len(codes)) if (v := node.labels.get(key)) is not None else -1 for node in self.nodes]
            column = self._columns[key] = Column(_read_only(np.array(raw, dtype=np.int32)), tuple(codes))
        return column

    @property
    def taints(self) -> tuple[Codes, tuple[tuple[Taint, ...], ...]]:
        """Distinct taint lists: ``(codes, lists)`` with ``lists[codes[row]]`` the taints of a row; some lists may be unused."""
        if self._taints is None and self._parts:
            self._taints = reduce(_join_columns, [part.taints for part in self._parts])
        if self._taints is None:
            codes: dict[tuple[Taint, ...], int] = {}
            array = np.array([codes.setdefault(node.taints, len(codes)) for node in self.nodes], dtype=np.int32)
            self._taints = (_read_only(array), tuple(codes))
        return self._taints

    def tainted(self, key: str) -> list[Node]:
        """Return the nodes with a taint of this ``key``, in the order of rows."""
        codes, lists = self.taints
        has_taint = [any(taint.key == key for taint in taints) for taints in lists]
        return [self.nodes[row] for row in np.flatnonzero(np.array(has_taint)[codes]).tolist()] if any(has_taint) else []

    @property
    def unschedulable(self) -> Mask:
        """Rows with ``spec.unschedulable``."""
        if self._unschedulable is None:
            self._unschedulable = _read_only(np.array([node.unschedulable for node in self.nodes], dtype=np.bool_))
        return self._unschedulable

    @property
    def undecided(self) -> tuple[int, ...]:
        """Rows with several possible sets of labels."""
        if self._undecided is None:
            self._undecided = tuple(row for row, node in enumerate(self.nodes) if node.may_be)
        return self._undecided


def merge_tables(first: NodeTable, more: NodeTable) -> NodeTable:
    """Return the rows of both as a table that is not joined."""
    return NodeTable(first.nodes + more.nodes)


def pack_parts(parts: Sequence[P], merge: Callable[[P, P], P]) -> tuple[P, ...]:
    """Merge the last ``parts``, so that there are few although small ones are added one by one: each is at least twice the next.

    The first two are never merged: they are the nodes and the offerings, which are kept from plan to plan.
    """
    result = list(parts)
    while len(result) > KEPT_PARTS + 1 and len(result[-2]) < 2 * len(result[-1]):
        more = result.pop()
        result[-1] = merge(result[-1], more)
    return tuple(result)


def _read_only(array: NDArray[S]) -> NDArray[S]:
    array.setflags(write=False)
    return array


def _join_columns(first: tuple[Codes, tuple[T, ...]], more: tuple[Codes, tuple[T, ...]]) -> tuple[Codes, tuple[T, ...]]:
    """Concatenate codes and values of two tables."""
    codes = {value: code for code, value in enumerate(first[1])}
    # The last entry stays -1, because the code -1 (no such label) selects it.
    translation = np.full(len(more[1]) + 1, -1, dtype=np.int32)
    for position, value in enumerate(more[1]):
        translation[position] = codes.setdefault(value, len(codes))
    return _read_only(np.concatenate((first[0], translation[more[0]]))), tuple(codes)
