"""Kept machines: those of pools that are ``closed`` or have ``min_gpus_per_pod``, which are reserved for large pods.

A gpuscaler taint closes them to kube-scheduler, and the controller binds the pods that a plan places there. So a plan ignores this taint
and checks the number of GPUs that a pod requests instead.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
_LIFTED = tuple(Toleration(key=key, operator="Exists") for key in CLOSING_TAINTS)


#: The number of GPUs that a pod counts as where it is compared with the minimum of a machine.
CountGpus = Callable[[PodSpec], int]


def requested_gpus(spec: PodSpec) -> int:
    """The number of GPUs that a pod requests."""
    return count_accelerators(spec.requests)


class Minimum(NamedTuple):
    """The number of GPUs that a pod must count as on a machine. ``by_size``: it follows from the sizes of machines of a closed pool."""

    least: int
    by_size: bool = False


@dataclass(frozen=True)
class MinGpus:
    """The rule of kept machines. ``least`` is the number of GPUs that a pod must count as, by row; :data:`OPEN` for machines not kept.

    ``by_size`` flags rows where it follows from the sizes of machines: there, pods that have no other place may go, too. ``count`` is the
    number that a pod counts as.
    """

    least: Array
    by_size: Mask
    count: CountGpus

    @cached_property
    def kept(self) -> Mask:
        """The rows that are kept machines."""
        kept: Mask = self.least != OPEN
        return kept

    def passes(self, spec: PodSpec) -> Mask:
        """The rows whose minimum ``spec`` meets."""
        return self.least <= self.count(spec)

    @classmethod
    def of(cls, minimums: Sequence[Minimum], count: CountGpus) -> "MinGpus | None":
        """The rule for machines with these minimums; None if no machine is kept."""
        least = np.array([minimum.least for minimum in minimums], dtype=np.int64)
        by_size = np.array([minimum.by_size for minimum in minimums], dtype=np.bool_)
        return cls(least, by_size, count) if (least != OPEN).any() else None

    def first(self, rows: int) -> "MinGpus":
        """The rule for the first ``rows`` rows."""
        return MinGpus(self.least[:rows], self.by_size[:rows], self.count)


class Minimums:
    """Finds the minimum of machines by their pool and their number of GPUs, each once."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._known: dict[tuple[str, int], Minimum] = {}

    @property
    def by_size(self) -> bool:
        """Whether some pool has minimums by the sizes of its machines."""
        return any(pool.closed and not pool.min_gpus_per_pod for pool in self._pools.values())

    def on(self, pool: str, gpus: int) -> Minimum:
        """The minimum of such a machine; :data:`OPEN` if its pool keeps no machines."""
        minimum = self._known.get((pool, gpus))
        if minimum is None:
            its = self._pools[pool]
            least = its.min_gpus_on(gpus) if its.keeps_closed else OPEN
            minimum = self._known[pool, gpus] = Minimum(least, by_size=its.closed and not its.min_gpus_per_pod)
        return minimum


def joined(first: MinGpus | None, first_rows: int, second: MinGpus | None, second_rows: int) -> MinGpus | None:
    """Concatenate the rule for ``first_rows`` rows and that for ``second_rows`` further rows."""
    either = first or second
    if either is None:
        return None
    rules = [
        rule or MinGpus(np.full(rows, OPEN), np.zeros(rows, dtype=np.bool_), either.count)
        for rule, rows in ((first, first_rows), (second, second_rows))
    ]
    return MinGpus(np.concatenate([rule.least for rule in rules]), np.concatenate([rule.by_size for rule in rules]), either.count)


def is_closed(node: Node) -> bool:
    """Whether a gpuscaler taint keeps pods off the node, except pods that a plan places there."""
    return any(taint.key in CLOSING_TAINTS and taint.effect in HARD_EFFECTS for taint in node.taints)


def with_closing_tolerations(spec: PodSpec) -> PodSpec:
    """``spec`` with tolerations for gpuscaler's own closing taints, for machines that the plan would open for it."""
    return replace(spec, tolerations=(*spec.tolerations, *_LIFTED))


def explain_min_gpus(spec: PodSpec, least: int) -> str:
    plural, requested = "s" if least != 1 else "", count_accelerators(spec.requests) or "none"
    return f"takes only pods with at least {least} GPU{plural} (min_gpus_per_pod), the pod requests {requested}"
