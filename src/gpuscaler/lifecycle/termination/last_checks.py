"""Reasons to give up the removal of a node: pods that were bound after it was decided, or that may not be moved."""

from gpuscaler.lifecycle.termination.eviction import is_protected
from gpuscaler.lifecycle.termination.node_pods import NodePods
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.planning.scale_down.blockers import Protection, promised_to, unreadable_pod_blockers
from gpuscaler.planning.scale_down.disruption import Disruption
from gpuscaler.planning.scale_down.pod_classes import Grouping
from gpuscaler.planning.state.ledger.entries import Removal
from gpuscaler.planning.state.ledger.ledger import Ledger, pods_by_promised_node


class Objections:
    """Checks with one snapshot of the cluster. Each returns the reason against removing a node as text, or None if there is none."""

    def __init__(self, ledger: Ledger, cluster: Cluster, policy: Policy, now: float) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._policy = policy
        self._now = now
        self._unread_somewhere, self._unread_here = unreadable_pod_blockers(cluster)

    def before(self, removal: Removal, node: Node, node_pods: NodePods) -> str | None:
        """Check a node before its first pod is evicted."""
        if not node.ready:
            return "it is not Ready any more"
        if (pod := pods_by_promised_node(self._ledger).get(node.name)) is not None:
            return promised_to(pod).detail
        if (why := self._at_any_time(removal, node, node_pods)) is not None:
            return why
        blocker = Protection(self._cluster, self._policy, self._now).blocker(Grouping(self._cluster, self._now, {}).load(node))
        return self._kept_for_money(removal, node_pods) if blocker is None else blocker.detail

    def during(self, removal: Removal, node: Node, node_pods: NodePods) -> str | None:
        """Check a node while its pods are evicted. PodDisruptionBudgets are left to the API server, which checks them for each eviction.

        An annotation that was added after the removal began applies, too (I6).
        """
        protected = next((f"pod {pod.key} is protected by an annotation" for pod in node_pods.missed if is_protected(pod, self._now)), None)
        return self._at_any_time(removal, node, node_pods) or protected or self._kept_for_money(removal, node_pods)

    def _kept_for_money(self, removal: Removal, node_pods: NodePods) -> str | None:
        """Return why a pod may not be moved to save money: too few replicas of its owner may be left, or its annotations have changed."""
        if not removal.pods or removal.unready:
            return None
        leaving = frozenset(other.node for other in self._ledger.leaving if other.node != removal.node)
        # Evicted pods are not checked again.
        blocker = Disruption(self._cluster, leaving).blocker(pod for pod in node_pods.missed if not pod.deleted)
        return None if blocker is None else blocker.detail

    def _at_any_time(self, removal: Removal, node: Node, node_pods: NodePods) -> str | None:
        if node.scale_down_disabled or node.do_not_disrupt:
            return "the node has a do-not-disrupt or scale-down-disabled annotation"
        new = [pod.key for pod in node_pods.missed if pod.key not in removal.pods]
        if new:
            return f"pod {new[0]} was scheduled onto it after the removal was planned"
        unreadable = self._unread_here.get(node.name) or self._unread_somewhere
        return None if unreadable is None else unreadable.detail
