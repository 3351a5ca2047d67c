"""Which pods a selector counts, per row: the ground of inter-pod affinity and topology spread.

A selector is evaluated once per distinct (namespace, labels) of the cluster's bound pods, and a count is kept current from then on.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gpuscaler.model.cluster import Cluster, PeerKey
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.table import Array, NodeTable
from gpuscaler.model.workloads import Namespace
from gpuscaler.planning.filters.tallies import Tallies

Namespaces = Mapping[str, Namespace]


class Query(NamedTuple):
    """Pods of these namespaces, or of those that ``namespace_selector`` matches, that ``selector`` matches (None matches no pod)."""

    selector: LabelSelector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    exclude_terminating: bool = False

    @classmethod
    def of(cls, term: PodAffinityTerm) -> "Query":
        return cls(term.selector, term.namespaces, term.namespace_selector)

    def matches(self, peer: PeerKey, namespaces: Namespaces) -> bool:
        """Whether a term of the pod that is being placed counts ``peer``.

        A namespace that does not exist has no labels. kube-scheduler 1.35 also asks a term's namespace selector about no labels at all
        for every pod (it merges the matching namespaces into the term and means to forget the selector, but forgets it in a copy), so
        that a selector that no labels satisfy takes in every namespace.
        """
        if self.selector is None or (self.exclude_terminating and peer.terminating):
            return False
        return self._reaches(peer.namespace, namespaces) and self.selector.matches(peer.labels)

    def _reaches(self, namespace: str, namespaces: Namespaces) -> bool:
        if namespace in self.namespaces:
            return True
        selector = self.namespace_selector
        return selector is not None and (selector.matches(labels_of(namespace, namespaces)) or selector.matches({}))


def labels_of(namespace: str, namespaces: Namespaces) -> Mapping[str, str]:
    found = namespaces.get(namespace)
    return {} if found is None else found.labels


class Peers:
    """Counts of matching pods by row, one tally for each tuple of queries that was asked about; a pod must match all of a tuple."""

    def __init__(self, table: NodeTable, cluster: Cluster) -> None:
        self.tallies = Tallies(table)
        self._cluster = cluster
        self._queries: list[tuple[Query, ...]] = []
        self._numbers: dict[tuple[Query, ...], int] = {}
        self._placed: dict[PeerKey, dict[int, int]] = {}
        self._touched: dict[PeerKey, tuple[int, ...]] = {}

    def count(self, *queries: Query) -> int:
        """The number of the tally of pods that match all ``queries``."""
        number = self._numbers.get(queries)
        if number is None:
            number = self._numbers[queries] = self.tallies.new(self._counted(queries))
            self._queries.append(queries)
            self._touched.clear()
        return number

    def add(self, peer: PeerKey, row: int, count: int) -> None:
        placed = self._placed.setdefault(peer, {})
        placed[row] = placed.get(row, 0) + count
        if not self._queries:
            return
        touched = self._touched.get(peer)
        if touched is None:
            numbers = range(len(self._queries))
            touched = self._touched[peer] = tuple(n for n in numbers if self.matches(self._queries[n], peer))
        for number in touched:
            self.tallies.add(number, row, count)

    def matches(self, queries: Iterable[Query], peer: PeerKey) -> bool:
        return all(query.matches(peer, self._cluster.namespaces) for query in queries)

    def _counted(self, queries: tuple[Query, ...]) -> Array:
        table = self.tallies.table
        rows = np.zeros(len(table), dtype=np.int64)
        for peer, nodes in self._cluster.peers.items():
            if self.matches(queries, peer):
                for name, count in nodes.items():
                    row = table.row.get(name)
                    if row is not None:
                        rows[row] += count
        for peer, placed in self._placed.items():
            if self.matches(queries, peer):
                for row, count in placed.items():
                    rows[row] += count
        return rows

    def copy(self) -> "Peers":
        return self._with(self.tallies.copy())

    def extended(self, table: NodeTable) -> "Peers":
        return self._with(self.tallies.extended(table))

    def _with(self, tallies: Tallies) -> "Peers":
        new = Peers(tallies.table, self._cluster)
        new.tallies = tallies
        new._queries = self._queries.copy()
        new._numbers = dict(self._numbers)
        new._placed = {peer: dict(rows) for peer, rows in self._placed.items()}
        new._touched = dict(self._touched)
        return new


def peer_of(namespace: str, labels: LabelSet, *, terminating: bool = False) -> PeerKey:
    return PeerKey(namespace, labels, terminating)
