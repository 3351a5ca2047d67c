"""The label ``gpuscaler.io/pool`` on nodes that the cloud lists for a pool: for people, and for affinities of pods.

gpuscaler itself decides nothing by it. It stays after the pool is gone: it was true when it was written.
"""

from collections.abc import Iterator
from itertools import islice

from gpuscaler.lifecycle.actions import Label
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import POOL_LABEL

#: How many labels at most are written after one pass: after an installation all nodes lack theirs.
MOST = 20


def labels_due(cluster: Cluster, policy: Policy, index: MachineIndex) -> tuple[Label, ...]:
    """Return the nodes whose label does not name their pool, as many as are written in one pass."""
    return tuple(islice(_wrong_labels(cluster, policy, index), MOST))


def _wrong_labels(cluster: Cluster, policy: Policy, index: MachineIndex) -> Iterator[Label]:
    pools = {pool.name for pool in policy.pools}
    for node in cluster.nodes.values():
        pool = node.bought.pool if node.bought is not None else ""
        if node.labels.get(POOL_LABEL) == pool or pool not in pools or node.deleted or node.provider_id not in index.listed.alive:
            continue
        # If two nodes claim the same machine, it is unknown which of them is right.
        if len(index.by_machine[node.provider_id]) > 1:
            continue
        yield Label(node.name, pool, "the cloud lists its machine for this pool")
