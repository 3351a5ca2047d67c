"""Idle nodes: nodes with only pods that need no new node when the machine is removed."""

import math
from collections.abc import Iterable

from gpuscaler.model.pods import Pod

#: A pod that should have terminated this many seconds ago counts as gone: its kubelet does not answer. Source: Cluster Autoscaler,
#: ``PodLongTerminatingExtraThreshold``.
STUCK_AFTER = 30.0


def leaves_with_machine(pod: Pod, now: float) -> bool:
    """Whether ``pod`` needs no other node: a DaemonSet pod, a mirror pod, a finished pod, or a pod stuck in termination."""
    if pod.finished or pod.options.mirror or pod.owner.kind in ("DaemonSet", "Node"):
        return True
    return 0 < pod.deleted < now - STUCK_AFTER


def busy_until(pods: Iterable[Pod]) -> float:
    """When a node with these pods becomes idle, in seconds since the epoch; infinite if a pod that needs a node is not terminating."""
    until = -math.inf
    for pod in pods:
        if not leaves_with_machine(pod, math.inf):
            return math.inf
        if not leaves_with_machine(pod, -math.inf):
            until = max(until, pod.deleted + STUCK_AFTER)
    return until


def is_idle(pods: Iterable[Pod], now: float) -> bool:
    """Whether all pods of a node with these pods leave with the machine."""
    return all(leaves_with_machine(pod, now) for pod in pods)
