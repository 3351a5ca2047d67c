"""What makes a node idle: no pods on it but those that come and go with the machine."""

import math
from collections.abc import Iterable

from gpuscaler.model.pods import Pod

#: A pod that should have been gone this many seconds ago is taken for gone: its kubelet does not answer. Source: Cluster Autoscaler,
#: ``PodLongTerminatingExtraThreshold``.
STUCK_AFTER = 30.0


def leaves_with_machine(pod: Pod, now: float) -> bool:
    """Whether ``pod`` needs no other home: a DaemonSet's or a mirror pod, a finished one, or one that is stuck in termination."""
    if pod.finished or pod.options.mirror or pod.owner.kind in ("DaemonSet", "Node"):
        return True
    return 0 < pod.deleted < now - STUCK_AFTER


def busy_until(pods: Iterable[Pod]) -> float:
    """Until when a node with these pods is not idle, in seconds since the epoch; infinite where one of them is not ending."""
    until = -math.inf
    for pod in pods:
        if not leaves_with_machine(pod, math.inf):
            return math.inf
        if not leaves_with_machine(pod, -math.inf):
            until = max(until, pod.deleted + STUCK_AFTER)
    return until


def is_idle(pods: Iterable[Pod], now: float) -> bool:
    """Whether a node with these pods does nothing that would be missed."""
    return all(leaves_with_machine(pod, now) for pod in pods)
