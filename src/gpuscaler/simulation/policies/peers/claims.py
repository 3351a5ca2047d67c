"""Karpenter's packing: NodeClaims are filled while any instance type still fits, and become the cheapest one at the end.

Source: sigs.k8s.io/karpenter v1.15.0, ``pkg/controllers/provisioning/scheduling`` (scheduler.go, nodeclaim.go, queue.go).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.model.table import Array, Mask
from gpuscaler.simulation.world.autoscaler import Pending
from gpuscaler.simulation.world.scheduler import Scheduler

#: Maximum number of instance types in one CreateFleet request (``pkg/providers/instance`` of the AWS provider).
FLEET_TYPES = 60


class OfferingTable:
    """The offerings of one pool as arrays: one row per offering, one column per resource."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.offerings = pool.offerings
        self.columns = sorted({name for offering in pool.offerings for name in offering.allocatable} | {"pods"})
        self.allocatable: Array = np.array(
            [[offering.allocatable.get(name, 0) for name in self.columns] for offering in pool.offerings], dtype=np.int64
        ).reshape(len(pool.offerings), len(self.columns))
        self.prices = np.array([offering.price for offering in pool.offerings])
        self._admitting: dict[str, Mask] = {}
        self._requests: dict[str, Array | None] = {}

    def available(self, may_be_asked: Callable[[Offering], bool]) -> Mask:
        """Which offerings may be asked, according to ``may_be_asked``."""
        mask: Mask = np.array([may_be_asked(offering) for offering in self.offerings], dtype=np.bool_)
        return mask

    def admitting(self, spec: PodSpec) -> Mask:
        """Which offerings admit a pod of ``spec`` by labels and taints."""
        mask = self._admitting.get(spec.digest)
        if mask is None:
            mask = self._admitting[spec.digest] = np.array([offering.admits(spec) for offering in self.offerings], dtype=np.bool_)
        return mask

    def request(self, spec: PodSpec) -> Array | None:
        """The request of a pod, by column; None if no offering here has what it asks for."""
        if spec.digest not in self._requests:
            requests = {**{name: amount for name, amount in spec.requests.items() if amount}, "pods": 1}
            offered = all(name in self.columns for name in requests)
            self._requests[spec.digest] = np.array([requests.get(name, 0) for name in self.columns], dtype=np.int64) if offered else None
        return self._requests[spec.digest]


class Claim:
    """A NodeClaim that is being filled: its pods, their total request, and the offerings that still fit."""

    def __init__(self, table: OfferingTable, available: Mask) -> None:
        self.table = table
        self.pods: list[str] = []
        self.specs: dict[str, PodSpec] = {}
        self._asked: Array = np.zeros(len(table.columns), dtype=np.int64)
        self._left = available
        self._refused: set[str] = set()

    def add(self, pod: str, spec: PodSpec) -> bool:
        """Add a pod if some offering fits them all; offerings that do not fit are dropped for good."""
        if spec.digest in self._refused:
            return False
        request = self.table.request(spec)
        if request is not None:
            total = self._asked + request
            fitting = self._left & self.table.admitting(spec) & (self.table.allocatable >= total).all(axis=1)
            if fitting.any():
                self.pods.append(pod)
                self.specs[spec.digest] = spec
                self._asked, self._left = total, fitting
                return True
        self._refused.add(spec.digest)
        return False

    def left(self) -> list[Offering]:
        """The offerings that fit all its pods."""
        return [self.table.offerings[row] for row in np.flatnonzero(self._left).tolist()]

    def options(self, among: Sequence[Offering] | None = None) -> tuple[Offering, ...]:
        """The offerings to request from the fleet, cheapest first, out of those that still fit, or those of ``among``.

        Spot if any spot offering fits, without the spot types that cost more than the cheapest on-demand one; machines with accelerators
        only if nothing else fits or a pod asks for one (``filterUnwantedSpot``, ``filterExoticInstanceTypes``).
        """
        fitting = self.left() if among is None else list(among)
        requested_devices = {name for name, amount in zip(self.table.columns, self._asked.tolist(), strict=True) if amount and "/" in name}
        without_devices = [
            offering for offering in fitting if not any("/" in name for name in offering.allocatable if name not in requested_devices)
        ]
        fitting = without_devices or fitting
        for market in ("reserved", "spot", "on-demand"):
            offerings = [offering for offering in fitting if offering.market == market]
            if market == "spot":
                ceiling = min((offering.price for offering in fitting if offering.market == "on-demand"), default=float("inf"))
                offerings = [offering for offering in offerings if offering.price <= ceiling] or offerings
            if offerings:
                return _cheapest_types(offerings)
        return ()


def _cheapest_types(offerings: Iterable[Offering]) -> tuple[Offering, ...]:
    """Offerings of the cheapest types, as many types as a request may name, in order of price."""
    ordered = sorted(offerings, key=lambda offering: (offering.price, offering.key))
    types = list(dict.fromkeys(offering.instance_type for offering in ordered))[:FLEET_TYPES]
    return tuple(offering for offering in ordered if offering.instance_type in types)


class PackingResult:
    """One round of provisioning: the node of each pod, what to launch, and the pods without a place."""

    def __init__(self) -> None:
        self.placed: dict[str, str] = {}
        self.claims: list[Claim] = []
        self.unplaced: list[str] = []


def pack(
    pending: Iterable[Pending],
    room: Scheduler,
    tables: Sequence[OfferingTable],
    *,
    available: Sequence[Mask],
    left_in_pool: dict[str, int | None],
) -> PackingResult:
    """Place ``pending`` pods the way Karpenter simulates it; ``room`` is used up.

    Existing and launched nodes come first, oldest first. Then NodeClaims of this round, the one with the fewest pods first, each taking
    pods while any of its types fits. Then a new NodeClaim of the first pool, by weight, that fits; ``left_in_pool`` says how many more
    machines a pool may have, ``available`` which offerings of each table may be asked.
    """
    packed = PackingResult()
    full: set[str] = set()
    for pod, spec in in_queue_order(pending):
        if spec.digest not in full:
            node = room.first(spec)
            if node is not None:
                room.place(spec, node)
                packed.placed[pod] = node
                continue
            full.add(spec.digest)
        packed.claims.sort(key=lambda claim: len(claim.pods))
        if any(claim.add(pod, spec) for claim in packed.claims):
            continue
        new_claim = _new_claim(pod, spec, tables, available, left_in_pool)
        if new_claim is None:
            packed.unplaced.append(pod)
        else:
            packed.claims.append(new_claim)
    return packed


def _new_claim(
    pod: str, spec: PodSpec, tables: Sequence[OfferingTable], masks: Sequence[Mask], left_in_pool: dict[str, int | None]
) -> Claim | None:
    for table, mask in zip(tables, masks, strict=True):
        name = table.pool.name
        room = left_in_pool[name]
        if room is not None and room <= 0:
            continue
        claim = Claim(table, mask)
        if claim.add(pod, spec):
            if room is not None:
                left_in_pool[name] = room - 1
            return claim
    return None


def in_queue_order(pending: Iterable[Pending]) -> Iterator[tuple[str, PodSpec]]:
    """Pods in the order of Karpenter's queue: most CPU first, then most memory; each specification's oldest pod first."""
    groups = sorted(
        pending,
        key=lambda group: (-group.spec.requests.get("cpu", 0), -group.spec.requests.get("memory", 0), group.oldest, group.pods[0]),
    )
    return ((pod, group.spec) for group in groups for pod in group.pods)


def offering_keys(options: Iterable[Offering]) -> tuple[OfferingKey, ...]:
    return tuple(offering.key for offering in options)
