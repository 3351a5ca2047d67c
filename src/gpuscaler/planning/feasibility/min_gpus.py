"""Machines that are kept for large pods: those of pools with ``min_gpus_per_pod``.

A taint of ours closes them to kube-scheduler, and whoever carries a plan out lifts it for the pods that are placed there. To a plan that
taint is no obstacle, then; how many GPUs a pod asks for is.
"""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from gpuscaler.model.accelerators import gpus_in
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Pool
from gpuscaler.model.table import Array
from gpuscaler.model.taints import HARD_EFFECTS, Toleration
from gpuscaler.model.well_known import CLOSING_TAINTS

#: What keeps small pods away, beside the names of kube-scheduler's plug-ins.
MIN_GPUS = "MinGpusPerPod"
#: What keeps machines from being bought for pods without accelerators.
FOR_GPUS = "ForGpus"
_LIFTED = tuple(Toleration(key=key, operator="Exists") for key in CLOSING_TAINTS)


def is_closed(node: Node) -> bool:
    """Whether a taint of ours keeps pods away until a plan puts them there."""
    return any(taint.key in CLOSING_TAINTS and taint.effect in HARD_EFFECTS for taint in node.taints)


def least_gpus(pools: Iterable[Pool | None]) -> Array | None:
    """The GPUs that a pod must ask for at least on machines of ``pools``, 0 where there is no pool; None where anybody may go anywhere."""
    least = np.array([0 if pool is None else pool.min_gpus_per_pod for pool in pools], dtype=np.int64)
    return least if least.any() else None


def followed_by(first: Array | None, many: int, more: Array | None, much: int) -> Array | None:
    """What :func:`least_gpus` says of ``many`` rows, and behind them what it says of ``much`` more."""
    if first is None and more is None:
        return None
    parts = ((first, many), (more, much))
    return np.concatenate([np.zeros(rows, dtype=np.int64) if part is None else part for part, rows in parts])


def lifted(spec: PodSpec) -> PodSpec:
    """``spec`` as it is judged where a plan opens the machine for it: our own closing taints are no obstacle."""
    return replace(spec, tolerations=(*spec.tolerations, *_LIFTED))


def explain_min_gpus(spec: PodSpec, least: int) -> str:
    return f"serves pods of at least {least} GPUs (min_gpus_per_pod), the pod asks for {gpus_in(spec.requests) or 'none'}"
