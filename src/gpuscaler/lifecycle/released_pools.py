"""Pools that gpuscaler no longer manages: work in progress there is finished, and nothing new begins.

A new version of gpuscaler may manage fewer groups than the one before. The older version may have left machines of such a group in its
ledger, arriving or leaving, and taints on its nodes.
"""

from collections.abc import Iterator

from msgspec import Struct

from gpuscaler.lifecycle.actions import Discourage
from gpuscaler.lifecycle.node_marks.soft_taints import SOFT_TAINTS
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Inventory
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import OWN_PREFIX
from gpuscaler.planning.state.ledger.ledger import Ledger

_SOFT = frozenset(taint.key for taint in SOFT_TAINTS)


class ReleasedPool(Struct, frozen=True, gc=False):
    """A pool that is no longer managed: how many of its machines are on their way or being removed, and how many nodes have our taints."""

    pool: str
    coming: int = 0
    leaving: int = 0
    tainted: int = 0


def find_released_pools(ledger: Ledger, cluster: Cluster, inventory: Inventory | None) -> tuple[ReleasedPool, ...]:
    """Return the pools that are no longer managed but still have machines in progress or taints of ours, sorted by name."""
    if inventory is None or not inventory.released_pools:
        return ()
    released = []
    for pool in sorted(inventory.released_pools):
        coming = sum(machine.key.pool == pool for machine in ledger.coming)
        leaving = sum(removal.offering.pool == pool for removal in ledger.leaving)
        nodes = (node for node in cluster.nodes.values() if node.bought is not None and node.bought.pool == pool)
        tainted = sum(any(map(_is_ours, node.taints)) for node in nodes)
        if coming or leaving or tainted:
            released.append(ReleasedPool(pool, coming, leaving, tainted))
    return tuple(released)


def remove_soft_taints(cluster: Cluster, inventory: Inventory | None) -> Iterator[Discourage]:
    """Remove our soft taints from nodes of pools that are no longer managed, since nothing else removes them."""
    pools = inventory.released_pools if inventory is not None else ()
    for node in cluster.nodes.values() if pools else ():
        if node.bought is not None and node.bought.pool in pools and any(taint.key in _SOFT for taint in node.taints):
            yield Discourage(node.name, (), f"pool {node.bought.pool} is no longer managed by gpuscaler")


def _is_ours(taint: Taint) -> bool:
    return taint.key.startswith(OWN_PREFIX)
