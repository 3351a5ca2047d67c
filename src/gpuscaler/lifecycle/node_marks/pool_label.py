"""The label ``gpuscaler.io/pool`` on nodes that the cloud lists for a pool. It is for people, and for node affinity.

gpuscaler itself uses the label only until the cloud has listed its machines after a start: these nodes count for limits by then. It does
not remove the label when the pool is gone.
"""

from collections.abc import Iterator
from itertools import islice

from gpuscaler.lifecycle.actions import Label
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import POOL_LABEL

#: The maximum number of labels written in one pass: after an installation no node has one.
MOST = 20


def labels_due(cluster: Cluster, policy: Policy, index: MachineIndex) -> tuple[Label, ...]:
    """Return the labels to write in this pass, on nodes whose label is missing or differs from their pool."""
    return tuple(islice(_wrong_labels(cluster, policy, index), MOST))


def _wrong_labels(cluster: Cluster, policy: Policy, index: MachineIndex) -> Iterator[Label]:
    pools = {pool.name for pool in policy.pools}
    for node in cluster.nodes.values():
        pool = node.bought.pool if node.bought is not None else ""
        if node.labels.get(POOL_LABEL) == pool or pool not in pools or node.deleted or node.provider_id not in index.listed.alive:
            continue
        # If two nodes have the same provider ID, it is unknown to which of them the machine belongs.
        if len(index.by_machine[node.provider_id]) > 1:
            continue
        yield Label(node.name, pool, "the cloud lists its machine for this pool")
