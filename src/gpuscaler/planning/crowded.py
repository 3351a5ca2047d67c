"""Machines on their way that others came to: who tolerates every taint, or is bound by hand, waits for no machine to open."""

from collections.abc import Iterator

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.ledger import Coming, Ledger
from gpuscaler.planning.yielding import has_room


def crowded(book: Ledger, cluster: Cluster, policy: Policy) -> frozenset[str]:
    """Machines of ``book``, by id, on whose nodes some of the pods that they were bought for have no room any more."""
    registered = [one for one in book.coming if one.pods and one.node in cluster.on_node and one.node in cluster.nodes]
    if not registered:
        return frozenset()
    promised = {offering.key: offering.allocatable for pool in policy.pools for offering in pool.offerings}
    found = set()
    for one in registered:
        node, waiting = cluster.nodes[one.node], list(_waiting(one, cluster))
        # What it does not show yet it shall have.
        expected = replace(node, allocatable={**promised.get(one.key, {}), **node.allocatable})
        if waiting and not has_room(waiting, expected, cluster):
            found.add(one.id)
    return frozenset(found)


def _waiting(one: Coming, cluster: Cluster) -> Iterator[Pod]:
    """Pods that still wait for the machine."""
    for key in one.pods:
        pod = cluster.pods.get(key)
        if pod is not None and not (pod.node_name or pod.finished or pod.deleted):
            yield pod
