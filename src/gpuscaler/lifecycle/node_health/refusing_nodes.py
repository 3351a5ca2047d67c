"""Nodes on which kube-scheduler does not place pods although they seem to have room: plans avoid them for these pods."""

from collections.abc import Mapping, Set
from hashlib import sha256

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.well_known import OWN_PREFIX
from gpuscaler.planning.plans import Placement
from gpuscaler.planning.state import node_refusals
from gpuscaler.planning.state.node_refusals import PATIENCE_SECONDS, Refusals

#: kube-scheduler retries every unschedulable pod within 5 minutes: after this many seconds an attempt is assumed if none was reported.
ATTEMPT_SECONDS = 330.0


def tried_in_vain(pod: str, since: float, *, attempts: Mapping[str, float], now: float) -> bool:
    """Whether kube-scheduler has tried to place an unbound pod after ``since``, when the pod had room, and failed.

    ``attempts`` is when kube-scheduler last failed to place a pod, by ``namespace/name``.
    """
    if now < since + PATIENCE_SECONDS:
        return False
    return attempts.get(pod, 0.0) > since or now >= since + ATTEMPT_SECONDS


def expected_bindings(cluster: Cluster, placements: tuple[Placement, ...], closed: Set[str], now: float) -> node_refusals.Planned:
    """Return the pods that kube-scheduler should bind by itself: a plan places them on existing nodes that are not ``closed``."""
    return node_refusals.Planned(
        tuple(
            (placement.pod, placement.node) for placement in placements if placement.node in cluster.nodes and placement.node not in closed
        ),
        now,
    )


def find_refusals(
    refusals: Refusals, cluster: Cluster, *, attempts: Mapping[str, float], messages: Mapping[str, str], now: float
) -> list[node_refusals.NodeRefused | node_refusals.Cleared]:
    """Find pods that kube-scheduler did not bind to the node of their plan, and avoided nodes that have changed since.

    ``messages`` are kube-scheduler's messages about its last attempts, by pod.
    """
    events: list[node_refusals.NodeRefused | node_refusals.Cleared] = []
    for wait in refusals.waits:
        pod, node = cluster.pods.get(wait.pod), cluster.nodes.get(wait.node)
        if wait.suspected or pod is None or not pod.is_pending or node is None or not node.ready:
            continue
        if tried_in_vain(wait.pod, wait.since, attempts=attempts, now=now):
            events.append(node_refusals.NodeRefused(wait.pod, pod.spec.digest, wait.node, hash_node(node), now, messages.get(wait.pod, "")))
    changed = (
        refusal.node for refusal in refusals.avoided if (node := cluster.nodes.get(refusal.node)) is None or hash_node(node) != refusal.face
    )
    return events + [node_refusals.Cleared(node) for node in dict.fromkeys(changed)]


def hash_node(node: Node) -> str:
    """Hash the properties that decide which pods an empty node admits: labels, allocatable, foreign taints, and a person's cordon."""
    # Our own taints are left out: they do not change which pods the node can run later.
    taints = sorted(str(taint) for taint in node.taints if not taint.key.startswith(OWN_PREFIX))
    parts = (sorted(node.labels.items()), sorted(node.allocatable.items()), taints, node.unschedulable)
    return sha256(repr(parts).encode()).hexdigest()[:16]
