"""Kept machines: those of pools with ``min_gpus_per_pod``, which are reserved for large pods.

A gpuscaler taint closes them to kube-scheduler, and the controller binds the pods that a plan places there. So a plan ignores this taint
and checks the number of GPUs that a pod requests instead.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

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
_LIFTED = tuple(Toleration(key=key, operator="Exists") for key in CLOSING_TAINTS)


#: The number of GPUs that a pod counts as where it is compared with ``min_gpus_per_pod``.
CountGpus = Callable[[PodSpec], int]


def requested_gpus(spec: PodSpec) -> int:
    """The number of GPUs that a pod requests."""
    return count_accelerators(spec.requests)


@dataclass(frozen=True)
class MinGpus:
    """The number of GPUs that a pod must count as, by row (``least``, 0 without a minimum), and the number that it counts as."""

    least: Array
    count: CountGpus

    def passes(self, spec: PodSpec) -> Mask:
        """The rows whose minimum ``spec`` meets."""
        return self.least <= self.count(spec)

    @classmethod
    def of(cls, pools: Iterable[Pool | None], count: CountGpus) -> "MinGpus | None":
        """The minimum on machines of ``pools``, 0 without a pool; None if no pool has a minimum."""
        least = np.array([0 if pool is None else pool.min_gpus_per_pod for pool in pools], dtype=np.int64)
        return cls(least, count) if least.any() else None

    def first(self, rows: int) -> "MinGpus":
        """The minimum of the first ``rows`` rows."""
        return MinGpus(self.least[:rows], self.count)


def joined(first: MinGpus | None, first_rows: int, second: MinGpus | None, second_rows: int) -> MinGpus | None:
    """Concatenate the minimum of ``first_rows`` rows and that of ``second_rows`` further rows."""
    either = first or second
    if either is None:
        return None
    parts = ((first, first_rows), (second, second_rows))
    least = np.concatenate([np.zeros(rows, dtype=np.int64) if part is None else part.least for part, rows in parts])
    return MinGpus(least, either.count)


def is_closed(node: Node) -> bool:
    """Whether a gpuscaler taint keeps pods off the node, except pods that a plan places there."""
    return any(taint.key in CLOSING_TAINTS and taint.effect in HARD_EFFECTS for taint in node.taints)


def with_closing_tolerations(spec: PodSpec) -> PodSpec:
    """``spec`` with tolerations for gpuscaler's own closing taints, for machines that the plan would open for it."""
    return replace(spec, tolerations=(*spec.tolerations, *_LIFTED))


def explain_min_gpus(spec: PodSpec, least: int) -> str:
    return f"takes only pods with at least {least} GPUs (min_gpus_per_pod), the pod requests {count_accelerators(spec.requests) or 'none'}"
