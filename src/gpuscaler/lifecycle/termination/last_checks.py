"""Why a node should stay after all, as it is seen now: pods that were not there when its removal was decided, or that may not be moved."""

from gpuscaler.lifecycle.termination.eviction import is_protected
from gpuscaler.lifecycle.termination.node_pods import NodePods
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.planning.scale_down.blockers import Protection, unread
from gpuscaler.planning.scale_down.disruption import Disruption
from gpuscaler.planning.scale_down.pod_classes import Grouping
from gpuscaler.planning.state.ledger.entries import Leaving
from gpuscaler.planning.state.ledger.ledger import Ledger


class Objections:
    """Looks at one picture of the cluster. Each answer is a sentence about the node, or None where nothing stands against its removal."""

    def __init__(self, book: Ledger, cluster: Cluster, policy: Policy, now: float) -> None:
        self._book = book
        self._cluster = cluster
        self._policy = policy
        self._now = now
        self._unread_somewhere, self._unread_here = unread(cluster)

    def before(self, one: Leaving, node: Node, found: NodePods) -> str | None:
        """Before anybody is evicted."""
        promised = [key for promise in self._book.promises if promise.node == node.name for key in promise.pods]
        if not node.ready:
            return "it is not Ready any more"
        if promised:
            return f"pod {promised[0]} is promised to it"
        if (why := self._at_any_time(one, node, found)) is not None:
            return why
        blocker = Protection(self._cluster, self._policy, self._now).blocker(Grouping(self._cluster, self._now, {}).load(node))
        return self._kept_for_money(one, found) if blocker is None else blocker.detail

    def during(self, one: Leaving, node: Node, found: NodePods) -> str | None:
        """While pods are evicted: budgets are asked of the API server, one pod at a time, and no look at them holds for all.

        An annotation that was written meanwhile counts (I6).
        """
        protected = next((f"an annotation of pod {pod.key} protects it" for pod in found.missed if is_protected(pod, self._now)), None)
        return self._at_any_time(one, node, found) or protected or self._kept_for_money(one, found)

    def _kept_for_money(self, one: Leaving, found: NodePods) -> str | None:
        """Which pod may not be moved to save money, now that other replicas of its owner may have gone, or their word may be another."""
        if not one.pods or one.unready:
            return None
        leaving = frozenset(other.node for other in self._book.leaving if other.node != one.node)
        # Those that are evicted already are no longer asked for.
        blocker = Disruption(self._cluster, leaving).blocker(pod for pod in found.missed if not pod.deleted)
        return None if blocker is None else blocker.detail

    def _at_any_time(self, one: Leaving, node: Node, found: NodePods) -> str | None:
        if node.scale_down_disabled or node.do_not_disrupt:
            return "an annotation of the node asks for it"
        new = [pod.key for pod in found.missed if pod.key not in one.pods]
        if new:
            return f"pod {new[0]} came to it meanwhile"
        unreadable = self._unread_here.get(node.name) or self._unread_somewhere
        return None if unreadable is None else unreadable.detail
