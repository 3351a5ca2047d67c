"""InterPodAffinity: required affinity and anti-affinity of the pod, and the required anti-affinity of existing pods."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from gpuscaler.model.cluster import PeerKey
from gpuscaler.model.pods import PodAffinityTerm, PodSpec
from gpuscaler.model.table import Array, Mask, NodeTable
from gpuscaler.planning.feasibility.pods.peers import Namespaces, Peers, Query, labels_of, readable
from gpuscaler.planning.feasibility.tallies import Tallies


class Repulsion:
    """Rows with pods that keep others away by their required anti-affinity (the symmetry of anti-affinity)."""

    def __init__(self, table: NodeTable, namespaces: Namespaces) -> None:
        self.tallies = Tallies(table)
        self._namespaces = namespaces
        self._terms: list[PodAffinityTerm] = []
        self._numbers: dict[PodAffinityTerm, int] = {}
        self._specs: dict[str, tuple[int, ...]] = {}
        self._matching: dict[PeerKey, tuple[int, tuple[int, ...]]] = {}

    def add(self, spec: PodSpec, row: int, count: int) -> None:
        for number in self._terms_of(spec):
            self.tallies.add(number, row, count)

    def fill(self, spec: PodSpec, rows: Array, counts: Array) -> None:
        for number in self._terms_of(spec):
            self.tallies.fill(number, rows, counts)

    def _terms_of(self, spec: PodSpec) -> tuple[int, ...]:
        numbers = self._specs.get(spec.digest)
        if numbers is None:
            terms = spec.anti_affinity if readable(spec.anti_affinity) else ()
            numbers = self._specs[spec.digest] = tuple(self._number(term) for term in terms)
        return numbers

    def _number(self, term: PodAffinityTerm) -> int:
        number = self._numbers.get(term)
        if number is None:
            number = self._numbers[term] = self.tallies.empty()
            self._terms.append(term)
        return number

    def against(self, peer: PeerKey) -> tuple[tuple[PodAffinityTerm, int], ...]:
        """The terms that keep ``peer`` away, with their tallies. Only terms that are new since the last call are evaluated."""
        evaluated, numbers = self._matching.get(peer, (0, ()))
        if evaluated < len(self._terms):
            numbers += tuple(n for n in range(evaluated, len(self._terms)) if repels(self._terms[n], peer, self._namespaces))
            self._matching[peer] = (len(self._terms), numbers)
        return tuple((self._terms[n], n) for n in numbers)

    def includes(self, term: PodAffinityTerm, peer: PeerKey) -> bool:
        """Whether ``term``, on an existing pod, would keep ``peer`` away."""
        return repels(term, peer, self._namespaces)

    def copy(self) -> "Repulsion":
        return self._with(self.tallies.copy())

    def extended(self, table: NodeTable) -> "Repulsion":
        return self._with(self.tallies.extended(table))

    def _with(self, tallies: Tallies) -> "Repulsion":
        new = Repulsion(tallies.table, self._namespaces)
        new.tallies = tallies
        new._terms = self._terms.copy()
        new._numbers = dict(self._numbers)
        new._specs = dict(self._specs)
        new._matching = dict(self._matching)
        return new


def repels(term: PodAffinityTerm, peer: PeerKey, namespaces: Namespaces) -> bool:
    """Whether an existing pod's anti-affinity ``term`` matches ``peer``. A namespace that does not exist has no labels."""
    if term.selector is None:
        return False
    if peer.namespace not in term.namespaces:
        selector = term.namespace_selector
        if selector is None or not selector.matches(labels_of(peer.namespace, namespaces)):
            return False
    return term.selector.matches(peer.labels)


class InterPod:
    """The filter for one pod: ``attracted`` (its affinity), ``free_of`` (its anti-affinity), ``not_repelled`` (that of the others)."""

    def __init__(self, spec: PodSpec, peer: PeerKey, peers: Peers, repulsion: Repulsion) -> None:
        self._spec = spec
        self._peer = peer
        self._peers = peers
        self._repulsion = repulsion
        self._table = peers.tallies.table

    @property
    def applies(self) -> bool:
        """Whether any term applies, so that the filter is needed."""
        return bool(self._spec.affinity or self._spec.anti_affinity or self._repulsion.against(self._peer))

    def passes(self) -> Mask:
        return self.attracted() & self.free_of() & self.not_repelled()

    def attracted(self) -> Mask:
        """Rows where every affinity term finds, in the row's domain, a pod that matches all the terms.

        The first pod of a series with affinity to itself may go to any row with all topology labels, as long as no pod matches.
        """
        terms = self._spec.affinity
        if not terms:
            return np.ones(len(self._table), dtype=np.bool_)
        queries = tuple(Query.of(term) for term in terms)
        number = self._peers.count(*queries)
        labelled = np.ones(len(self._table), dtype=np.bool_)
        mask = np.ones(len(self._table), dtype=np.bool_)
        domains = {term.topology_key: self._peers.tallies.domain(number, term.topology_key) for term in terms}
        for key, sums in domains.items():
            codes = self._table.column(key).codes
            labelled &= codes >= 0
            mask &= (sums > 0)[codes]
        any_match = any(sums.any() for sums in domains.values())
        return mask if any_match or not self._peers.matches(queries, self._peer) else labelled

    def free_of(self) -> Mask:
        """Rows with no pod in their domains that matches an anti-affinity term of this pod."""
        mask = np.ones(len(self._table), dtype=np.bool_)
        for term in self._spec.anti_affinity:
            mask &= self._empty(self._peers.tallies, self._peers.count(Query.of(term)), term.topology_key)
        return mask

    def not_repelled(self) -> Mask:
        """Rows with no pod in their domains that has an anti-affinity term matching this pod."""
        mask = np.ones(len(self._table), dtype=np.bool_)
        for term, number in self._repulsion.against(self._peer):
            mask &= self._empty(self._repulsion.tallies, number, term.topology_key)
        return mask

    def _empty(self, tallies: Tallies, number: int, key: str) -> Mask:
        free: Mask = tallies.domain(number, key) <= 0
        free[list(self._perhaps(tallies.rows(number), key))] = False
        empty: Mask = free[self._table.column(key).codes]
        return empty

    def _perhaps(self, counts: Array, key: str) -> Iterator[int]:
        """The domains that a machine with counted pods may end up in, as long as its labels are undecided."""
        values = self._table.column(key).values
        for row in self._table.undecided:
            if counts[row] > 0:
                yield from (values.index(labels[key]) for labels in self._table.nodes[row].may_be if labels.get(key) in values)

    def alone_on(self) -> Mask:
        """Rows that take at most one copy, because a copy keeps the next one out of its domain."""
        mask = np.zeros(len(self._table), dtype=np.bool_)
        for term in self._spec.anti_affinity:
            if self._peers.matches((Query.of(term),), self._peer) or self._repulsion.includes(term, self._peer):
                mask |= self._table.column(term.topology_key).codes >= 0
        return mask

    def explain(self, row: int) -> str:
        labels = self._table.nodes[row].labels
        if not self.attracted()[row]:
            missing = _unmatched_terms(self._spec.affinity, labels)
            if missing:
                return f"pod affinity needs the node label {missing}, node has none"
            return "no pod matching the pod affinity is in the same " + _keys(self._spec.affinity)
        for term in self._spec.anti_affinity:
            number = self._peers.count(Query.of(term))
            if not self._empty(self._peers.tallies, number, term.topology_key)[row]:
                return f"a pod matching the pod anti-affinity is in {term.topology_key}={labels.get(term.topology_key)}"
        for term, number in self._repulsion.against(self._peer):
            if not self._empty(self._repulsion.tallies, number, term.topology_key)[row]:
                return f"a pod in {term.topology_key}={labels.get(term.topology_key)} has anti-affinity to this pod"
        return "pod affinity is satisfied"


def _unmatched_terms(terms: Iterable[PodAffinityTerm], labels: Mapping[str, str]) -> str:
    return next((term.topology_key for term in terms if term.topology_key not in labels), "")


def _keys(terms: Iterable[PodAffinityTerm]) -> str:
    return ", ".join(sorted({term.topology_key for term in terms}))
