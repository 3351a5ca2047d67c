"""Who is on a node that leaves, by what becomes of them."""

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

    ``missed`` are those that somebody loses something by. ``groups`` are evicted one after the other: pods, then those of DaemonSets,
    then critical pods, then critical ones of DaemonSets; who tolerates that the machine leaves is in none of them, since it might come
    back at once. ``stuck`` should have ended by now, and are not waited for.
    """

    missed: tuple[Pod, ...]
    groups: tuple[tuple[Pod, ...], ...]
    stuck: tuple[Pod, ...]


def residents(cluster: Cluster, node: Node, now: float) -> NodePods:
    """The pods on ``node``, in the order of their names. Finished ones are gone, and static ones are the node's own."""
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
    """Whether ``pod`` tolerates that its machine leaves."""
    return untolerated((LEAVING,), pod.spec.tolerations) is None
