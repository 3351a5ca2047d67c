"""The label ``gpuscaler.io/pool``, written on nodes that the cloud's list shows to be a pool's: for people, and for affinities of pods.

Nothing is decided by it here. It stays where the pool is gone: what it says was true when it was written.
"""

from collections.abc import Iterator
from itertools import islice

from gpuscaler.lifecycle.actions import Label
from gpuscaler.lifecycle.observed.machine_index import Roll
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import POOL_LABEL

#: So many labels at most are written after one look: at an installation all nodes lack theirs.
MOST = 20


def labels_due(cluster: Cluster, policy: Policy, roll: Roll) -> tuple[Label, ...]:
    """The nodes whose label does not say which pool they are of, as many as are written at a time."""
    return tuple(islice(_wrong(cluster, policy, roll), MOST))


def _wrong(cluster: Cluster, policy: Policy, roll: Roll) -> Iterator[Label]:
    pools = {pool.name for pool in policy.pools}
    for node in cluster.nodes.values():
        pool = node.bought.pool if node.bought is not None else ""
        if node.labels.get(POOL_LABEL) == pool or pool not in pools or node.deleted or node.provider_id not in roll.listed.alive:
            continue
        # Of two nodes that say they are one machine, neither is sure to be it.
        if len(roll.by_machine[node.provider_id]) > 1:
            continue
        yield Label(node.name, pool, "the cloud lists its machine for this pool")
