"""Kept machines: those of pools with ``min_gpus_per_pod``, which are reserved for large pods.

A gpuscaler taint closes them to kube-scheduler, and the controller binds the pods that a plan places there. So a plan ignores this taint
and checks the number of GPUs that a pod requests instead.
"""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Pool
from gpuscaler.model.table import Array
from gpuscaler.model.taints import HARD_EFFECTS, Toleration
from gpuscaler.model.well_known import CLOSING_TAINTS

#: The name of the filter that keeps small pods away, in addition to kube-scheduler's plug-ins.
MIN_GPUS = "MinGpusPerPod"
#: The name of the filter that keeps machines from being bought for pods without accelerators.
FOR_GPUS = "ForGpus"
_LIFTED = tuple(Toleration(key=key, operator="Exists") for key in CLOSING_TAINTS)


def is_closed(node: Node) -> bool:
    """Whether a gpuscaler taint keeps pods off the node, except pods that a plan places there."""
    return any(taint.key in CLOSING_TAINTS and taint.effect in HARD_EFFECTS for taint in node.taints)


def least_gpus(pools: Iterable[Pool | None]) -> Array | None:
    """The minimum number of GPUs that a pod must request on machines of ``pools``, 0 without a pool; None if no pool has a minimum."""
    least = np.array([0 if pool is None else pool.min_gpus_per_pod for pool in pools], dtype=np.int64)
    return least if least.any() else None


def joined_least_gpus(first: Array | None, first_count: int, second: Array | None, second_count: int) -> Array | None:
    """Concatenate the results of :func:`least_gpus` for ``first_count`` rows and for ``second_count`` further rows."""
    if first is None and second is None:
        return None
    parts = ((first, first_count), (second, second_count))
    return np.concatenate([np.zeros(rows, dtype=np.int64) if part is None else part for part, rows in parts])


def with_closing_tolerations(spec: PodSpec) -> PodSpec:
    """``spec`` with tolerations for gpuscaler's own closing taints, for machines that the plan would open for it."""
    return replace(spec, tolerations=(*spec.tolerations, *_LIFTED))


def explain_min_gpus(spec: PodSpec, least: int) -> str:
    return f"takes only pods with at least {least} GPUs (min_gpus_per_pod), the pod requests {count_accelerators(spec.requests) or 'none'}"
