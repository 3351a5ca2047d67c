"""The pods of a node that is being removed, by how they are handled."""

from typing import NamedTuple

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.taints import Taint, untolerated
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.planning.capacity.idle import STUCK_AFTER
from gpuscaler.planning.scale_down.disruption import CRITICAL

LEAVING = Taint(LEAVING_TAINT)


class NodePods(NamedTuple):
    """The pods of a node.

    ``missed`` are all but DaemonSet pods. ``groups`` are evicted one after the other: pods, then DaemonSet pods, then critical pods, then
    critical DaemonSet pods. Pods that tolerate the leaving taint are in no group, because they might return at once. ``stuck`` are pods
    that should have ended long ago; the removal does not wait for them.
    """

    missed: tuple[Pod, ...]
    groups: tuple[tuple[Pod, ...], ...]
    stuck: tuple[Pod, ...]


def residents(cluster: Cluster, node: Node, now: float) -> NodePods:
    """Return the pods on ``node``, sorted by name, without finished pods, and without static pods, which belong to the node."""
    missed: list[Pod] = []
    groups: tuple[list[Pod], ...] = ([], [], [], [])
    stuck: list[Pod] = []
    for pod in sorted(cluster.on_node.get(node.name, {}).values(), key=lambda pod: pod.key):
        if pod.options.mirror or pod.owner.kind == "Node":
            continue
        if 0 < pod.deleted < now - STUCK_AFTER:
            stuck.append(pod)
            continue
        if not is_daemon(pod):
            missed.append(pod)
        if not stays(pod):
            groups[2 * (pod.spec.priority >= CRITICAL) + is_daemon(pod)].append(pod)
    return NodePods(tuple(missed), tuple(map(tuple, groups)), tuple(stuck))


def is_daemon(pod: Pod) -> bool:
    return pod.owner.kind == "DaemonSet"


def stays(pod: Pod) -> bool:
    """Whether ``pod`` tolerates the leaving taint of its machine."""
    return untolerated((LEAVING,), pod.spec.tolerations) is None
