"""Scores of kube-scheduler's default plug-ins, for many nodes at once. Arrays have a row for each node that passed the filters.

Source: ``pkg/scheduler/framework/plugins`` (``noderesources``, ``tainttoleration``, ``nodeaffinity``), Kubernetes 1.35; weights are those
of the default configuration, 1 if none is named here.
"""

from typing import Final

import numpy as np

from gpuscaler.model.table import Array

#: Requests assumed for a pod without requests when nodes are scored (``pkg/scheduler/util/pod_resources.go``): millicores and bytes.
SCORED_CPU, SCORED_MEMORY = 100, 200 * 1024 * 1024
TAINT_WEIGHT: Final = 3
AFFINITY_WEIGHT: Final = 2


def resource_scores(capacity: Array, free: Array, request: Array, *, fill: bool = False) -> Array:
    """NodeResourcesFit and NodeResourcesBalancedAllocation together, over cpu and memory, which are the columns of all three arrays.

    NodeResourcesFit scores by LeastAllocated, or by MostAllocated if nodes are to be filled, and treats a pod without requests as if it
    requested a little; NodeResourcesBalancedAllocation takes requests as they are, and does not score a pod without any. Existing pods
    without requests are left out: NodeResourcesFit counts the same small amount for each of them.
    """
    whole = np.maximum(1, capacity)
    remaining = np.maximum(0, free - np.where(request > 0, request, (SCORED_CPU, SCORED_MEMORY)))
    counted = whole - remaining if fill else remaining
    scores: Array = (counted * 100 // whole).sum(axis=1) // 2
    if request.any():
        shares = 1.0 - np.maximum(0, free - request) / whole
        scores = scores + ((1.0 - np.abs(shares[:, 0] - shares[:, 1]) / 2.0) * 100.0).astype(np.int64)
    return scores


def taint_scores(taints: Array) -> Array:
    """TaintToleration: for the number of soft taints that a pod does not tolerate, 100 for none and 0 for the most."""
    scores: Array = 100 - 100 * taints // max(1, int(taints.max()))
    return scores


def affinity_scores(weights: Array) -> Array:
    """NodeAffinity: for the sum of weights of the preferences that a node meets, 100 for the largest."""
    scores: Array = 100 * weights // max(1, int(weights.max()))
    return scores
