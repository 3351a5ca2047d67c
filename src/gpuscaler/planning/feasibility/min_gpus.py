"""Kept machines: those of pools that are ``closed`` or have ``min_gpus_per_pod``, which are reserved for large pods.

A gpuscaler taint closes them to kube-scheduler, and the controller binds the pods that a plan places there. So a plan ignores this taint
and checks the number of GPUs that a pod requests instead.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Pool
from gpuscaler.model.table import Array, Mask
from gpuscaler.model.taints import HARD_EFFECTS, Toleration
from gpuscaler.model.well_known import CLOSING_TAINTS

#: The name of the filter that keeps small pods away, in addition to kube-scheduler's plug-ins.
MIN_GPUS = "MinGpusPerPod"
#: The name of the filter that keeps machines from being bought for pods without accelerators.
FOR_GPUS = "ForGpus"
#: Stands for the minimum of a machine that is not kept.
OPEN = -1
#: A machine of a closed pool takes a pod if its type costs at most this many times as much as the cheapest machine that can be bought for
#: the pod. Such a machine often holds two of these pods. Chosen from 1.35 to 1.5, which gave the same; see decision 0011.
LARGER = 1.5
NO_PRICES: Mapping[str, float] = MappingProxyType({})
_LIFTED = tuple(Toleration(key=key, operator="Exists") for key in CLOSING_TAINTS)


class PodSize(NamedTuple):
    """How large a pod counts as where it is compared with kept machines.

    ``gpus`` is compared with ``min_gpus_per_pod``. ``dollars`` is compared with the price of machines of closed pools: by pool, the hourly
    price of the cheapest machine that can be bought for the pod. A pool without such a machine is left out.
    """

    gpus: int
    dollars: Mapping[str, float] = NO_PRICES


#: The size of a pod by its specification.
SizeOf = Callable[[PodSpec], PodSize]


def requested_size(spec: PodSpec) -> PodSize:
    """The size of a pod where no machine is kept: the number of GPUs that it requests."""
    return PodSize(count_accelerators(spec.requests))


class Minimum(NamedTuple):
    """The size that a pod must have on a machine: the number of GPUs, :data:`OPEN` if the machine is not kept.

    On a machine of a closed ``pool``, ``dollars`` is the price of its type instead; 0 on any other.
    """

    gpus: int
    dollars: float = 0.0
    pool: str = ""

    def admits(self, size: PodSize) -> bool:
        """Whether a pod of this size may go to such a machine."""
        return self.gpus <= size.gpus and self.dollars <= LARGER * size.dollars.get(self.pool, math.inf)


#: The minimum of a machine that is not kept.
UNKEPT = Minimum(OPEN)


@dataclass(frozen=True)
class MinGpus:
    """The rule of kept machines: ``minimums[codes[row]]`` is the minimum of each row, ``size_of`` gives the sizes of pods."""

    minimums: tuple[Minimum, ...]
    codes: Array
    size_of: SizeOf

    @cached_property
    def kept(self) -> Mask:
        """The rows that are kept machines."""
        return self._rows([minimum.gpus != OPEN for minimum in self.minimums])

    @cached_property
    def by_size(self) -> Mask:
        """The rows that are machines of closed pools: there, pods that have no other place may go, too."""
        return self._rows([minimum.dollars > 0 for minimum in self.minimums])

    def passes(self, spec: PodSpec) -> Mask:
        """The rows whose minimum ``spec`` meets."""
        size = self.size_of(spec)
        return self._rows([minimum.admits(size) for minimum in self.minimums])

    def least_gpus(self, row: int) -> int:
        """The number of GPUs that a pod must have on ``row``."""
        return self.minimums[int(self.codes[row])].gpus

    def _rows(self, flags: Sequence[bool]) -> Mask:
        rows: Mask = np.array(flags, dtype=np.bool_)[self.codes]
        return rows

    @classmethod
    def of(cls, minimums: Sequence[Minimum], size_of: SizeOf) -> "MinGpus | None":
        """The rule for machines with these minimums; None if no machine is kept."""
        # By identity, which is faster: the same minimum twice does no harm.
        distinct = {id(minimum): minimum for minimum in minimums}
        if all(minimum.gpus == OPEN for minimum in distinct.values()):
            return None
        numbers = {key: number for number, key in enumerate(distinct)}
        codes = np.array([numbers[id(minimum)] for minimum in minimums], dtype=np.int64)
        return cls(tuple(distinct.values()), codes, size_of)

    def first(self, rows: int) -> "MinGpus":
        """The rule for the first ``rows`` rows."""
        return MinGpus(self.minimums, self.codes[:rows], self.size_of)


class Minimums:
    """Finds the minimum of machines by their pool and type, each once."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._known: dict[tuple[str, str, int], Minimum] = {}

    @property
    def by_size(self) -> bool:
        """Whether some pool has minimums by the sizes of its machines."""
        return any(pool.closed and not pool.min_gpus_per_pod for pool in self._pools.values())

    def on(self, pool: str, instance_type: str, gpus: int) -> Minimum:
        """The minimum of a machine with ``gpus`` GPUs, which count only where its type has no price; :data:`UNKEPT` if it is not kept."""
        minimum = self._known.get((pool, instance_type, gpus))
        if minimum is None:
            minimum = self._known[pool, instance_type, gpus] = _minimum_on(self._pools[pool], instance_type, gpus)
        return minimum


def _minimum_on(pool: Pool, instance_type: str, gpus: int) -> Minimum:
    if not pool.keeps_closed:
        return UNKEPT
    if pool.min_gpus_per_pod:
        return Minimum(pool.min_gpus_per_pod)
    return Minimum(0, price_of_type(pool, instance_type, gpus), pool.name)


def price_of_type(pool: Pool, instance_type: str, gpus: int) -> float:
    """The lowest price of a type of ``pool`` over markets and zones, which stays the same while some of these have no capacity.

    A type that the pool does not have, or of which all machines are paid already, is as large as the cheapest type with so many GPUs. If
    there is none, its GPUs cost as much as those of the largest type.
    """
    paid = [offering for offering in pool.offerings if offering.price > 0]
    own = [offering.price for offering in paid if offering.instance_type == instance_type]
    if own:
        return min(own)
    enough = [offering.price for offering in paid if offering.gpus >= gpus]
    if enough:
        return min(enough)
    largest = max((offering for offering in paid if offering.gpus), key=lambda offering: (offering.gpus, -offering.price), default=None)
    return (largest.price / largest.gpus if largest is not None else 1.0) * max(1, gpus)


def joined(first: MinGpus | None, first_rows: int, second: MinGpus | None, second_rows: int) -> MinGpus | None:
    """Concatenate the rule for ``first_rows`` rows and that for ``second_rows`` further rows."""
    either = first or second
    if either is None:
        return None
    parts = [
        rule or MinGpus((UNKEPT,), np.zeros(rows, dtype=np.int64), either.size_of)
        for rule, rows in ((first, first_rows), (second, second_rows))
    ]
    numbers = {minimum: number for number, minimum in enumerate(dict.fromkeys(minimum for part in parts for minimum in part.minimums))}
    codes = [np.array([numbers[minimum] for minimum in part.minimums], dtype=np.int64)[part.codes] for part in parts]
    return MinGpus(tuple(numbers), np.concatenate(codes), either.size_of)


def is_closed(node: Node) -> bool:
    """Whether a gpuscaler taint keeps pods off the node, except pods that a plan places there."""
    return any(taint.key in CLOSING_TAINTS and taint.effect in HARD_EFFECTS for taint in node.taints)


def with_closing_tolerations(spec: PodSpec) -> PodSpec:
    """``spec`` with tolerations for gpuscaler's own closing taints, for machines that the plan would open for it."""
    return replace(spec, tolerations=(*spec.tolerations, *_LIFTED))


def explain_min_gpus(spec: PodSpec, least: int) -> str:
    if least <= 0:
        return "takes only pods for which no much smaller machine of its closed pool is large enough"
    plural, requested = "s" if least != 1 else "", count_accelerators(spec.requests) or "none"
    return f"takes only pods with at least {least} GPU{plural} (min_gpus_per_pod), the pod requests {requested}"
