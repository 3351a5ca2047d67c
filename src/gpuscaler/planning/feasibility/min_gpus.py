"""Kept machines: those of pools that are ``closed`` or have ``min_gpus_per_pod``, which are reserved for large pods.

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


#: The number of GPUs that a pod counts as where it is compared with the minimum of a machine.
CountGpus = Callable[[PodSpec], int]


def requested_gpus(spec: PodSpec) -> int:
    """The number of GPUs that a pod requests."""
    return count_accelerators(spec.requests)


@dataclass(frozen=True)
class MinGpus:
    """The rule of kept machines. ``kept`` flags them by row; ``least`` is the number of GPUs that a pod must count as, 0 for others.

    ``count`` is the number that a pod counts as.
    """

    kept: Mask
    least: Array
    count: CountGpus

    def passes(self, spec: PodSpec) -> Mask:
        """The rows whose minimum ``spec`` meets."""
        return self.least <= self.count(spec)

    @classmethod
    def of(cls, machines: Iterable[tuple[Pool | None, int]], count: CountGpus) -> "MinGpus | None":
        """The rule for machines, each with its pool, if it has one, and its number of GPUs; None if no machine is kept."""
        known: dict[tuple[str, int], int] = {}
        kept, least = [], []
        for pool, gpus in machines:
            keeps = pool is not None and pool.keeps_closed
            kept.append(keeps)
            if pool is None or not keeps:
                least.append(0)
                continue
            if (pool.name, gpus) not in known:
                known[pool.name, gpus] = pool.min_gpus_on(gpus)
            least.append(known[pool.name, gpus])
        return cls(np.array(kept, dtype=np.bool_), np.array(least, dtype=np.int64), count) if any(kept) else None

    def first(self, rows: int) -> "MinGpus":
        """The rule for the first ``rows`` rows."""
        return MinGpus(self.kept[:rows], self.least[:rows], self.count)


def joined(first: MinGpus | None, first_rows: int, second: MinGpus | None, second_rows: int) -> MinGpus | None:
    """Concatenate the rule for ``first_rows`` rows and that for ``second_rows`` further rows."""
    either = first or second
    if either is None:
        return None
    rules = [rule or _no_rule(rows, either.count) for rule, rows in ((first, first_rows), (second, second_rows))]
    return MinGpus(np.concatenate([rule.kept for rule in rules]), np.concatenate([rule.least for rule in rules]), either.count)


def _no_rule(rows: int, count: CountGpus) -> MinGpus:
    return MinGpus(np.zeros(rows, dtype=np.bool_), np.zeros(rows, dtype=np.int64), count)


def is_closed(node: Node) -> bool:
    """Whether a gpuscaler taint keeps pods off the node, except pods that a plan places there."""
    return any(taint.key in CLOSING_TAINTS and taint.effect in HARD_EFFECTS for taint in node.taints)


def with_closing_tolerations(spec: PodSpec) -> PodSpec:
    """``spec`` with tolerations for gpuscaler's own closing taints, for machines that the plan would open for it."""
    return replace(spec, tolerations=(*spec.tolerations, *_LIFTED))


def explain_min_gpus(spec: PodSpec, least: int, key: str = "min_gpus_per_pod") -> str:
    """Explain the minimum of a machine; ``key`` is the setting of its pool that it comes from."""
    plural, requested = "s" if least != 1 else "", count_accelerators(spec.requests) or "none"
    return f"takes only pods with at least {least} GPU{plural} ({key}), the pod requests {requested}"
