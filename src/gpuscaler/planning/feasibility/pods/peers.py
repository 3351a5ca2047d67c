"""Counts of pods that match a selector, by row: the basis of inter-pod affinity and topology spread.

A selector is evaluated once per distinct (namespace, labels) of the cluster's bound pods, and its count is kept current from then on.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuscaler.model.cluster import Cluster, PeerKey
from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.selector_index import SelectorIndex
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.table import Array, NodeTable
from gpuscaler.model.workloads import Namespace
from gpuscaler.planning.feasibility.tallies import Tallies

Namespaces = Mapping[str, Namespace]


class Query(NamedTuple):
    """Selects pods by ``selector`` (None matches no pod), in ``namespaces`` or in namespaces that match ``namespace_selector``."""

    selector: LabelSelector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    exclude_terminating: bool = False

    @classmethod
    def of(cls, term: PodAffinityTerm) -> "Query":
        return cls(term.selector, term.namespaces, term.namespace_selector)

    def matches(self, peer: PeerKey, namespaces: Namespaces) -> bool:
        """Whether a term of the pod that is being placed counts ``peer``.

        A namespace that does not exist has no labels. kube-scheduler 1.35 also evaluates a term's namespace selector against an empty set
        of labels for every pod: it merges the matching namespaces into the term and should then clear the selector, but clears it only in
        a copy. So a selector that matches an empty set of labels covers every namespace.
        """
        if self.selector is None or (self.exclude_terminating and peer.terminating):
            return False
        return self._reaches(peer.namespace, namespaces) and self.selector.matches(peer.labels)

    def _reaches(self, namespace: str, namespaces: Namespaces) -> bool:
        if namespace in self.namespaces:
            return True
        selector = self.namespace_selector
        return selector is not None and (selector.matches(labels_of(namespace, namespaces)) or selector.matches({}))


def readable(terms: Iterable[PodAffinityTerm]) -> bool:
    """Whether the scheduler can parse the selectors of ``terms``. If not, it fails a pending pod, and ignores all terms of a bound pod."""
    selectors = (selector for term in terms for selector in (term.selector, term.namespace_selector))
    return all(selector is None or selector.valid for selector in selectors)


def labels_of(namespace: str, namespaces: Namespaces) -> Mapping[str, str]:
    labels = namespaces.get(namespace)
    return {} if labels is None else labels.labels


class PeerIndex:
    """The bound pods of a cluster, indexed by namespace and label and counted by row. Built on demand; shared by copies of a room."""

    def __init__(self, table: NodeTable, cluster: Cluster) -> None:
        self.namespaces = cluster.namespaces
        self._table = table
        self._peers = cluster.peers
        self._by_namespace: dict[str, list[PeerKey]] | None = None
        self._by_label: dict[tuple[str, str], dict[str | None, list[PeerKey]]] = {}

    def candidates(self, query: Query) -> Iterable[PeerKey]:
        """Every peer that ``query`` may match, without those that are cheap to exclude."""
        if query.selector is None:
            return
        if query.namespace_selector is not None:
            yield from self._peers
            return
        narrow = next((r for r in query.selector.requirements if r.operator == "In"), None)
        for namespace in dict.fromkeys(query.namespaces):
            if narrow is None:
                yield from self._in(namespace)
            else:
                groups = self._grouped(namespace, narrow.key)
                for value in dict.fromkeys(narrow.values):
                    yield from groups.get(value, ())

    def _in(self, namespace: str) -> Sequence[PeerKey]:
        if self._by_namespace is None:
            self._by_namespace = {}
            for peer in self._peers:
                self._by_namespace.setdefault(peer.namespace, []).append(peer)
        return self._by_namespace.get(namespace, ())

    def _grouped(self, namespace: str, key: str) -> Mapping[str | None, Sequence[PeerKey]]:
        groups = self._by_label.get((namespace, key))
        if groups is None:
            groups = self._by_label[namespace, key] = {}
            for peer in self._in(namespace):
                groups.setdefault(peer.labels.get(key), []).append(peer)
        return groups

    def rows(self, queries: tuple[Query, ...]) -> tuple[Array, Array]:
        """Rows with pods that match all ``queries``, and how many; a row may occur more than once."""
        peers = (peer for peer in self.candidates(queries[0]) if self.match(queries, peer))
        return by_row(self._table, (pair for peer in peers for pair in self._peers[peer].items()))

    def match(self, queries: Iterable[Query], peer: PeerKey) -> bool:
        return all(query.matches(peer, self.namespaces) for query in queries)


def by_row(table: NodeTable, nodes: Iterable[tuple[str, int]]) -> tuple[Array, Array]:
    """Convert counts by node name to rows and counts; nodes that are not in ``table`` are left out."""
    counts = [(row, count) for name, count in nodes if (row := table.row.get(name)) is not None]
    pairs = np.array(counts, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


class Peers:
    """Counts of matching pods by row, one tally for each requested tuple of queries; a pod must match all queries of a tuple."""

    def __init__(self, tallies: Tallies, index: PeerIndex) -> None:
        self.tallies = tallies
        self._index = index
        self._queries: list[tuple[Query, ...]] = []
        self._asking = SelectorIndex()
        self._numbers: dict[tuple[Query, ...], int] = {}
        self._placed: dict[PeerKey, dict[int, int]] = {}
        self._touched: dict[PeerKey, tuple[int, tuple[int, ...]]] = {}

    def count(self, *queries: Query) -> int:
        """The number of the tally of pods that match all ``queries``."""
        number = self._numbers.get(queries)
        if number is None:
            number = self._numbers[queries] = self.tallies.new(self._counted(queries))
            self._queries.append(queries)
            self._asking.add(queries[0].selector)
        return number

    def add(self, peer: PeerKey, row: int, count: int) -> None:
        self.add_all(peer, ((row, count),))

    def add_all(self, peer: PeerKey, rows: Iterable[tuple[int, int]]) -> None:
        """Add to each of ``rows`` its own count."""
        placed = self._placed.setdefault(peer, {})
        counting = self._counting(peer) if self._queries else ()
        for row, count in rows:
            placed[row] = placed.get(row, 0) + count
            for number in counting:
                self.tallies.add(number, row, count)

    def _counting(self, peer: PeerKey) -> tuple[int, ...]:
        """The tallies that count ``peer``; only queries that are new since the last call are evaluated."""
        evaluated, numbers = self._touched.get(peer, (0, ()))
        if evaluated < len(self._queries):
            numbers += tuple(n for n in self._asking.candidates(peer.labels, evaluated) if self.matches(self._queries[n], peer))
            self._touched[peer] = (len(self._queries), numbers)
        return numbers

    def matches(self, queries: Iterable[Query], peer: PeerKey) -> bool:
        return self._index.match(queries, peer)

    def _counted(self, queries: tuple[Query, ...]) -> Array:
        rows = np.zeros(len(self.tallies.table), dtype=np.int64)
        where, counts = self._index.rows(queries)
        np.add.at(rows, where, counts)
        for peer, placed in self._placed.items():
            if self.matches(queries, peer):
                for row, count in placed.items():
                    rows[row] += count
        return rows

    def copy(self) -> "Peers":
        return self._with(self.tallies.copy(), self._index)

    def extended(self, table: NodeTable, index: PeerIndex) -> "Peers":
        return self._with(self.tallies.extended(table), index)

    def _with(self, tallies: Tallies, index: PeerIndex) -> "Peers":
        new = Peers(tallies, index)
        new._queries, new._asking = self._queries.copy(), self._asking.copy()
        new._numbers = dict(self._numbers)
        new._placed = {peer: dict(rows) for peer, rows in self._placed.items()}
        new._touched = dict(self._touched)
        return new
