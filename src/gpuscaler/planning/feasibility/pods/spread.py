"""PodTopologySpread: constraints with DoNotSchedule.

A constraint counts pods of the same namespace that match its selector and are not terminating. It counts them only on nodes that have the
topology labels of all the pod's hard constraints and that its inclusion policies admit. The domains of such nodes are the eligible ones.
"""

from typing import NamedTuple

import numpy as np

from gpuscaler.model.cluster import PeerKey
from gpuscaler.model.pods import PodSpec, SpreadConstraint
from gpuscaler.model.table import Array, Codes, Mask
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.feasibility.nodes import NodeMasks
from gpuscaler.planning.feasibility.pods.peers import Peers, Query
from gpuscaler.planning.feasibility.resources import UNBOUNDED
from gpuscaler.planning.feasibility.tallies import sums_by_domain


class SpreadCounts(NamedTuple):
    """Matching pods per domain of one constraint.

    ``codes[row]`` is the row's domain, -1 without the label; ``counts`` and ``eligible`` have one entry per domain and a last one
    (0, False) for the code -1. A domain that is not eligible counts 0 and is not part of the minimum.
    """

    codes: Codes
    counts: Array
    eligible: Mask


class _FixedDomains(NamedTuple):
    """The part of a constraint that placing pods does not change. ``everywhere``: every row with the label is counted."""

    rows: Mask
    eligible: Mask
    domains: int
    everywhere: bool


class SpreadMasks:
    """The unchanging part of spread constraints, by spec. Shared by copies of a room."""

    def __init__(self, nodes: NodeMasks) -> None:
        self._nodes = nodes
        self._fixed: dict[tuple[str, SpreadConstraint], _FixedDomains] = {}

    def fixed(self, spec: PodSpec, constraint: SpreadConstraint) -> _FixedDomains:
        fixed = self._fixed.get((spec.digest, constraint))
        if fixed is None:
            fixed = self._fixed[spec.digest, constraint] = self._compute(spec, constraint)
        return fixed

    def _compute(self, spec: PodSpec, constraint: SpreadConstraint) -> _FixedDomains:
        table = self._nodes.table
        codes, values = table.column(constraint.topology_key)
        rows = codes >= 0
        for other in hard(spec):
            rows = rows & (table.column(other.topology_key).codes >= 0)
        if constraint.honor_affinity:
            rows = rows & self._nodes.selected(spec)
        if constraint.honor_taints:
            rows = rows & self._nodes.tolerated(spec)
        eligible = np.zeros(len(values) + 1, dtype=np.bool_)
        eligible[codes[rows]] = True
        return _FixedDomains(rows, eligible, int(eligible.sum()), bool((rows == (codes >= 0)).all()))


class Spread:
    """The topology spread filter for one pod."""

    def __init__(self, spec: PodSpec, peer: PeerKey, masks: SpreadMasks, peers: Peers) -> None:
        self._spec = spec
        self._peer = peer
        self._masks = masks
        self._peers = peers
        self._table = peers.tallies.table

    def counts(self, constraint: SpreadConstraint) -> SpreadCounts:
        key = constraint.topology_key
        codes, values = self._table.column(key)
        fixed = self._masks.fixed(self._spec, constraint)
        if constraint.selector is not None and not constraint.selector.requirements:
            # The scheduler counts no pods for an empty selector, although it matches all.
            return SpreadCounts(codes, np.zeros(len(values) + 1, dtype=np.int64), fixed.eligible)
        number = self._peers.count(self._query(constraint))
        tallies = self._peers.tallies
        if fixed.everywhere:
            return SpreadCounts(codes, tallies.domain(number, key), fixed.eligible)
        return SpreadCounts(codes, sums_by_domain(self._table, key, tallies.rows(number) * fixed.rows), fixed.eligible)

    def _query(self, constraint: SpreadConstraint) -> Query:
        return Query(constraint.selector, (self._spec.namespace,), exclude_terminating=True)

    def _counts_itself(self, constraint: SpreadConstraint) -> bool:
        return constraint.selector is not None and constraint.selector.matches(self._peer.labels)

    def passes(self) -> Mask:
        """Rows where one more copy keeps the skew of every hard constraint; rows without a constraint's label do not pass."""
        mask = np.ones(len(self._table), dtype=np.bool_)
        for constraint in hard(self._spec):
            spread_counts = self.counts(constraint)
            ceiling = self.minimum(constraint, spread_counts) + constraint.max_skew - self._counts_itself(constraint)
            allowed = spread_counts.counts <= ceiling
            allowed[-1] = False
            mask &= allowed[spread_counts.codes]
        return mask

    def minimum(self, constraint: SpreadConstraint, spread_counts: SpreadCounts) -> int:
        """The smallest count of an eligible domain; 0 if there are fewer eligible domains than ``minDomains``."""
        domains = self._masks.fixed(self._spec, constraint).domains
        return int(spread_counts.counts[spread_counts.eligible].min()) if domains and domains >= constraint.min_domains else 0

    def copies_per_host(self) -> Array:
        """How many more copies the constraints over hostnames allow on each row while nothing is placed elsewhere."""
        fits = np.full(len(self._table), UNBOUNDED, dtype=np.int64)
        for constraint in hard(self._spec):
            if constraint.topology_key == HOSTNAME and self._counts_itself(constraint) and _can_count(constraint):
                spread_counts = self.counts(constraint)
                np.minimum(fits, self._room_per_domain(constraint, spread_counts)[spread_counts.codes], out=fits)
        return fits

    def _room_per_domain(self, constraint: SpreadConstraint, spread_counts: SpreadCounts) -> Array:
        fixed = self._masks.fixed(self._spec, constraint)
        others = np.zeros(len(spread_counts.counts), dtype=np.int64)
        if fixed.domains >= constraint.min_domains:
            # The minimum over the other domains: growth of a domain raises the minimum only if it is the single smallest one.
            least = np.sort(spread_counts.counts[fixed.eligible])
            others[:] = least[0]
            second = int(least[1]) if len(least) > 1 else UNBOUNDED // 2
            others[
                fixed.eligible & (spread_counts.counts == least[0]) & ((spread_counts.counts[fixed.eligible] == least[0]).sum() == 1)
            ] = second
        # Pods on a row that is not eligible are not counted, so its count never grows.
        room = np.where(fixed.eligible, np.maximum(others + constraint.max_skew - spread_counts.counts, 0), UNBOUNDED)
        room[-1] = 0
        return room

    def explain(self, row: int) -> str:
        labels = self._table.nodes[row].labels
        for constraint in hard(self._spec):
            key = constraint.topology_key
            if key not in labels:
                return f"topology spread needs the node label {key}, node has none"
            spread_counts = self.counts(constraint)
            count, least = int(spread_counts.counts[spread_counts.codes[row]]), self.minimum(constraint, spread_counts)
            if count + self._counts_itself(constraint) - least > constraint.max_skew:
                return f"{key}={labels[key]} has {count} matching pods, the minimum is {least}, maxSkew is {constraint.max_skew}"
        return "topology spread is satisfied"


def hard(spec: PodSpec) -> tuple[SpreadConstraint, ...]:
    """The constraints with DoNotSchedule."""
    return tuple(constraint for constraint in spec.spread if constraint.hard)


def _can_count(constraint: SpreadConstraint) -> bool:
    return constraint.selector is not None and bool(constraint.selector.requirements)
