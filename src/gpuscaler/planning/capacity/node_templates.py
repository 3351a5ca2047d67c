"""Node templates of machines that could be bought: one row per offering, and one kind per choice that a purchase can name."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.selectors import NodeSelectorTerm
from gpuscaler.model.table import Array, Mask, NodeTable
from gpuscaler.model.taints import untolerated
from gpuscaler.model.well_known import ARCH, HOSTNAME
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.feasibility.min_gpus import MinGpus, Minimums, SizeOf, requested_size
from gpuscaler.planning.feasibility.resources import BOUNDLESS
from gpuscaler.planning.mix.problem import MixKind, Solution


@dataclass(frozen=True)
class MachineKind:
    """A choice that a purchase can name: one offering, or the set of a pool whose cloud chooses, in all its zones or in one.

    ``rows`` index the templates that it may turn out to be, ``members`` are their offerings; a pod must fit all of them. ``offering`` is
    the most expensive of them. ``probe`` says that only one may be requested, to check whether it is available again.
    """

    pool: Pool
    offering: Offering
    rows: tuple[int, ...]
    probe: bool = False
    members: tuple[Offering, ...] = ()

    @property
    def price(self) -> float:
        return self.offering.price

    @cached_property
    def gpus(self) -> int:
        """The largest number of accelerators that a machine of it may have."""
        return max(offering.gpus for offering in self.members or (self.offering,))

    @cached_property
    def least_gpus(self) -> int:
        """The smallest number of accelerators that a machine of it may have."""
        return min(count_accelerators(offering.allocatable) for offering in self.members or (self.offering,))

    @cached_property
    def key(self) -> str:
        return "/".join((*self.offering.key, str(len(self.rows))))

    @cached_property
    def count(self) -> int | None:
        """The number of machines that can be bought; None if no bound is known."""
        members = self.members or (self.offering,)
        counts = [offering.count for offering in members if offering.count is not None]
        limit = sum(counts) if len(counts) == len(members) else None
        return limit if not self.probe else min(1, limit) if limit is not None else 1


class Templates:
    """All offerings that may be bought now. ``nodes[row]`` is the template node of ``offerings[row]`` minus DaemonSet overhead.

    Offerings in ``blocked`` may not be requested; at most one machine of each offering in ``probing`` may be requested.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        blocked: frozenset[OfferingKey],
        probing: frozenset[OfferingKey] = frozenset(),
        size_of: SizeOf = requested_size,
    ) -> None:
        pools = sorted(policy.pools, key=lambda pool: pool.name)
        pairs = [(pool, offering) for pool in pools for offering in sorted(pool.offerings, key=lambda o: o.key) if not offering.retired]
        #: By pool, the offerings without a row, because they may not be requested now.
        self.blocked: dict[str, list[Offering]] = {}
        for pool, offering in pairs:
            if pool.chooser != "cloud" and offering.key in blocked:
                self.blocked.setdefault(pool.name, []).append(offering)
        pairs = [(pool, offering) for pool, offering in pairs if pool.chooser == "cloud" or offering.key not in blocked]
        self.pools = tuple(pool for pool, _ in pairs)
        self.offerings = tuple(offering for _, offering in pairs)
        self.overhead = overhead = Overhead(cluster)
        self._made_for = (blocked, probing, overhead.daemons)
        self.nodes = tuple(template_node(offering, overhead, f"template-{row}") for row, offering in enumerate(self.offerings))
        self.kinds = tuple(self._kinds(blocked, probing))
        self.minimums = Minimums(pools)
        #: The size of a pod where it is compared with the minimum of a machine.
        self.size_of = size_of
        self._holds: dict[tuple[tuple[str, int], ...], Mask] = {}
        #: Cache of the cheapest mixes of these templates: the same pods are often pending in consecutive plans.
        self.answers: dict[tuple[object, ...], Solution] = {}
        #: Fallbacks of spot machines: see :mod:`~gpuscaler.planning.capacity.fallbacks`.
        self.fallbacks: dict[tuple[object, ...], tuple[Offering, ...]] = {}
        self._domains: dict[tuple[tuple[str, ...], bytes], dict[tuple[int, ...], int]] = {}

    def are_current_for(self, cluster: Cluster, blocked: frozenset[OfferingKey], probing: frozenset[OfferingKey] = frozenset()) -> bool:
        """Whether these templates are still current: the same offerings may be requested, and the same DaemonSets run."""
        *before, daemons = self._made_for
        now = daemon_sets(cluster)
        return before == [blocked, probing] and len(now) == len(daemons) and all(old is new for old, new in zip(daemons, now, strict=True))

    def _kinds(self, blocked: frozenset[OfferingKey], probing: frozenset[OfferingKey]) -> Iterable[MachineKind]:
        rows: dict[tuple[str, str], list[int]] = {}
        for row, pool in enumerate(self.pools):
            if pool.chooser != "cloud":
                yield MachineKind(pool, self.offerings[row], (row,), self.offerings[row].key in probing)
            else:
                rows.setdefault((pool.name, self.offerings[row].zone if pool.names_zone else ""), []).append(row)
        for members in rows.values():
            # A set may be requested while any member is not blocked; the cloud skips members without capacity. It does not switch to
            # another market where it divides machines between markets.
            awake: dict[str, list[Offering]] = {}
            for row in members:
                offering, pool = self.offerings[row], self.pools[row]
                awake.setdefault(offering.market if pool.divides else "", []).extend([offering] if offering.key not in blocked else [])
            if all(awake.values()):
                dearest = max(members, key=lambda row: (self.offerings[row].price, self.offerings[row].key))
                probe = any(all(offering.key in probing for offering in group) for group in awake.values())
                offerings = tuple(self.offerings[row] for row in members)
                yield MachineKind(self.pools[dearest], self.offerings[dearest], tuple(members), probe, offerings)

    @cached_property
    def table(self) -> NodeTable:
        return NodeTable(self.nodes)

    @cached_property
    def boundless(self) -> tuple[Node, ...]:
        """The templates with unlimited resources, for checks that are not about resources."""
        return tuple(
            Node(
                name=node.name,
                labels=node.labels,
                allocatable={name: BOUNDLESS for name, amount in node.allocatable.items() if amount > 0},
                taints=node.taints,
            )
            for node in self.nodes
        )

    @cached_property
    def foreign_arch(self) -> Mask:
        """Templates of an architecture other than amd64, in pools that do not declare it."""
        return np.array(
            [
                (arch := offering.labels.get(ARCH, "amd64")) != "amd64" and pool.arch != arch
                for pool, offering in zip(self.pools, self.offerings, strict=True)
            ],
            dtype=np.bool_,
        )

    @cached_property
    def min_gpus(self) -> MinGpus | None:
        """The minimum size of a pod on each template; None if no template has a minimum."""
        minimums = [self.minimums.on(offering.pool, offering.instance_type, offering.gpus) for offering in self.offerings]
        return MinGpus.of(minimums, self.size_of)

    @cached_property
    def for_gpus(self) -> Mask | None:
        """Templates that are not bought for pods without accelerators; None if there are none."""
        if all(pool.buys_without_gpus for pool in self.pools):
            return None
        return np.array([not pool.buys_without_gpus for pool in self.pools], dtype=np.bool_)

    def rank_of(self, spec: PodSpec) -> bytes:
        """The minimums that a pod meets: pods of one rank may go to the same templates."""
        return b"" if self.min_gpus is None else self.min_gpus.passes(spec).tobytes()

    @cached_property
    def price_rank(self) -> Array:
        """The rank of each template by price, cheapest first."""
        order = sorted(range(len(self.offerings)), key=lambda row: (self.offerings[row].price, self.offerings[row].key))
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        return places

    @cached_property
    def twins(self) -> tuple[tuple[int, ...], ...]:
        """For each kind, the kinds with the same pool, type, price and room, including itself: they differ only in their place."""
        return self._alike([is_scattered(kind) or kind.count is not None for kind in self.kinds])

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Like ``twins``, but including kinds that may only be requested with one machine as a probe."""
        return self._alike([is_scattered(kind) or kind.offering.count is not None for kind in self.kinds])

    def _alike(self, apart: Sequence[bool]) -> tuple[tuple[int, ...], ...]:
        alike: dict[tuple[object, ...], list[int]] = {}
        keys = []
        for index, kind in enumerate(self.kinds):
            alone = index if apart[index] else -1
            size = tuple(sorted(self.capacity(kind).items()))
            members = tuple((offering.market, offering.instance_type, offering.price) for offering in kind.members)
            keys.append((kind.pool.name, kind.offering.instance_type, kind.price, size, members, alone))
            alike.setdefault(keys[-1], []).append(index)
        return tuple(tuple(alike[key]) for key in keys)

    @cached_property
    def cloud_chooses(self) -> bool:
        """Whether the cloud chooses among several templates for some kind."""
        return any(len(kind.rows) > 1 for kind in self.kinds)

    @cached_property
    def scarce(self) -> bool:
        """Whether a purchase may fall short even without limits: offerings with a bounded stock, or sets without a single domain."""
        return self.cloud_chooses or any(kind.count is not None for kind in self.kinds)

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """The kinds with a bounded stock."""
        return tuple(index for index, kind in enumerate(self.kinds) if kind.count is not None)

    @cached_property
    def gpus(self) -> Array:
        """The accelerators of each kind."""
        return np.array([kind.gpus for kind in self.kinds], dtype=np.int64)

    @cached_property
    def prices(self) -> NDArray[np.float64]:
        """The price of each kind, in dollars per hour."""
        return np.array([kind.price for kind in self.kinds], dtype=np.float64)

    @cached_property
    def tiers(self) -> Array:
        """The priority of each kind's pool."""
        return np.array([kind.pool.priority for kind in self.kinds], dtype=np.int64)

    @cached_property
    def mix_kinds(self) -> tuple[MixKind, ...]:
        """The kinds as input of the optimiser."""
        return tuple(
            MixKind(
                key=kind.key,
                capacity=self.capacity(kind),
                price=kind.price,
                pool=kind.pool.name,
                available=kind.count,
                gpus_counted=kind.gpus,
            )
            for kind in self.kinds
        )

    @cached_property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        """GPUs, cpu and memory of each template, to compare sizes."""
        return tuple(
            (count_accelerators(node.allocatable), node.allocatable.get("cpu", 0), node.allocatable.get("memory", 0)) for node in self.nodes
        )

    def after_purchases(self, spent: Mapping[OfferingKey, int]) -> "Templates":
        """These templates with the stock of offerings reduced by the machines that are bought already."""
        if not spent:
            return self
        new = copy(self)
        taken = [spent.get(kind.offering.key, 0) for kind in self.kinds]
        new.__dict__["mix_kinds"] = tuple(
            kind if kind.available is None else msgspec.structs.replace(kind, available=max(0, kind.available - times))
            for kind, times in zip(self.mix_kinds, taken, strict=True)
        )
        return new

    def without_unsettled(self, unsettled: frozenset[OfferingKey]) -> "Templates":
        """These templates without kinds whose offerings are all ``unsettled``.

        In a set that the cloud chooses from, some offering always lacks capacity: one settled offering is enough, because the cloud skips
        those without capacity.
        """
        if not unsettled:
            return self
        new = copy(self)
        new.__dict__["mix_kinds"] = tuple(
            msgspec.structs.replace(kind, available=0) if all(self.offerings[row].key in unsettled for row in its.rows) else kind
            for kind, its in zip(self.mix_kinds, self.kinds, strict=True)
        )
        return new

    def kinds_within(self, mask: Mask) -> Mask:
        """Kinds all of whose templates are in ``mask``."""
        if len(self._member_rows) == len(self.kinds):
            return mask[self._member_rows]
        return np.logical_and.reduceat(mask[self._member_rows], self._member_starts)

    @cached_property
    def _member_rows(self) -> Array:
        return np.array([row for kind in self.kinds for row in kind.rows], dtype=np.int64)

    @cached_property
    def _member_starts(self) -> Array:
        return np.cumsum([0] + [len(kind.rows) for kind in self.kinds])[:-1]

    def capacity(self, kind: MachineKind) -> Mapping[str, int]:
        """The resources that every member of ``kind`` has at least."""
        return smallest_allocatable([self.nodes[row] for row in kind.rows])

    def holds_one(self, spec: PodSpec) -> Mask:
        """Templates that hold one pod of ``spec`` when empty, by resources only. The caller must not change the mask."""
        key = tuple(sorted(spec.requests.items()))
        mask = self._holds.get(key)
        if mask is None:
            mask = self.table.allocatable("pods") > 0
            for resource, amount in key:
                mask &= self.table.allocatable(resource) >= amount
            self._holds[key] = mask
        return mask

    def by_domain(self, keys: tuple[str, ...], mask: Mask) -> Mapping[tuple[int, ...], int]:
        """The cheapest template in ``mask`` of each domain, a tuple of codes of ``keys``. The caller must not change the result."""
        cache_key = (keys, mask.tobytes())
        cheapest = self._domains.get(cache_key)
        if cheapest is None:
            cheapest = self._domains[cache_key] = {}
            rows = np.flatnonzero(mask)
            rows = rows[np.argsort(self.price_rank[rows])]
            codes = [self.table.column(key).codes[rows].tolist() for key in keys]
            for row, *domain in zip(rows.tolist(), *codes, strict=True):
                cheapest.setdefault(tuple(domain), row)
        return cheapest


def is_scattered(kind: MachineKind) -> bool:
    """Whether the cloud chooses among several zones for a machine of ``kind``."""
    return len(kind.rows) > 1 and not kind.pool.names_zone


def template_node(offering: Offering, overhead: "Overhead", name: str) -> Node:
    """The node that ``offering`` becomes: its labels with a host name of its own, its resources minus DaemonSet overhead."""
    labels = {**offering.labels, HOSTNAME: name}
    bare = Node(name=name, labels=labels, allocatable=offering.allocatable, taints=offering.taints)
    return Node(name=name, labels=labels, allocatable=overhead.left(bare), taints=offering.taints)


class Overhead:
    """The resources that DaemonSets use on a new node."""

    def __init__(self, cluster: Cluster) -> None:
        self.daemons = daemon_sets(cluster)
        self._memo: dict[tuple[object, ...], dict[str, int]] = {}

    def on(self, node: Node) -> Mapping[str, int]:
        """Requests of the DaemonSet pods that ``node`` will run, ``pods`` included."""
        if not self.daemons:
            return {}
        key = (tuple(sorted((k, v) for k, v in node.labels.items() if k != HOSTNAME)), node.taints)
        requests = self._memo.get(key)
        if requests is None:
            requests = {}
            for daemon in self.daemons:
                if runs_on(daemon, node):
                    assert daemon.template is not None
                    for resource, amount in (*daemon.template.requests.items(), ("pods", 1)):
                        requests[resource] = requests.get(resource, 0) + amount
            self._memo[key] = requests
        return requests

    def left(self, node: Node) -> dict[str, int]:
        """The allocatable resources of ``node`` minus those of its DaemonSets, never below zero."""
        taken = self.on(node)
        return {resource: max(0, amount - taken.get(resource, 0)) for resource, amount in node.allocatable.items()}


def daemon_sets(cluster: Cluster) -> tuple[Workload, ...]:
    """The DaemonSets with a pod template, sorted by key."""
    workloads = [workload for workload in cluster.workloads.values() if workload.kind == "DaemonSet" and workload.template is not None]
    return tuple(sorted(workloads, key=lambda workload: workload.key))


def runs_on(daemon: Workload, node: Node) -> bool:
    """Whether the DaemonSet controller would put a pod on ``node``, by selector, affinity and taints only.

    The template already has the tolerations that the controller adds to its pods (``model.decoding``).
    """
    spec = daemon.template
    if spec is None or not all(node.labels.get(key) == value for key, value in spec.node_selector):
        return False
    if spec.node_affinity is not None and not spec.node_affinity.matches(node.labels, node.name):
        return False
    return untolerated(node.taints, spec.tolerations) is None


def admits_arch(spec: PodSpec, wishes: tuple[NodeSelectorTerm, ...] = ()) -> bool:
    """Whether a pod selects by architecture, so that the selector and affinity filters decide about it."""
    if any(key == ARCH for key, _ in spec.node_selector):
        return True
    terms = spec.node_affinity.terms if spec.node_affinity is not None else ()
    return any(requirement.key == ARCH for term in terms + wishes for requirement in term.expressions)


def smallest_allocatable(nodes: Sequence[Node]) -> Mapping[str, int]:
    """The resources that every one of ``nodes`` has at least."""
    first, *others = (node.allocatable for node in nodes)
    if not others:
        return first
    return {name: min([amount] + [other.get(name, 0) for other in others]) for name, amount in first.items()}
