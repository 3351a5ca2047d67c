"""The taint of machines that are kept for large pods.

It is not the arriving taint, because that taint means that a machine is not open yet.
"""

from collections.abc import Iterator

from gpuscaler.lifecycle.actions import Act, Close, Lift
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.model.well_known import ARRIVING_TAINT, KEPT_TAINT
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.feasibility.min_gpus import is_closed
from gpuscaler.planning.state.ledger.ledger import Ledger

#: The reason for restoring the NoSchedule effect of our taint on a node that is not cordoned.
UNCORDONED = "it was uncordoned while it was open to DaemonSet pods only"


def update_kept_taints(ledger: Ledger, cluster: Cluster, policy: Policy, index: MachineIndex, inventory: Inventory | None) -> Iterator[Act]:
    """On open machines, remove a left-over arriving taint; machines of pools that keep them closed get the kept taint instead."""
    released_pools = inventory.released_pools if inventory is not None else ()
    for node in cluster.table.tainted(KEPT_TAINT):
        if node.bought is not None and node.bought.pool in released_pools and not node.deleted:
            yield Lift(node.name, f"pool {node.bought.pool} is no longer managed by gpuscaler")
    for node, pool in _nodes_at_rest(ARRIVING_TAINT, ledger, cluster, policy, index):
        if pool.keeps_closed:
            yield Close(node.name, _why_kept(pool), kept=True)
        elif not is_closed(node):
            yield Lift(node.name, UNCORDONED)
    for node, pool in _nodes_at_rest(KEPT_TAINT, ledger, cluster, policy, index):
        if not pool.keeps_closed:
            yield Lift(node.name, "its pool keeps no machines for large pods")
        elif not is_closed(node):
            yield Close(node.name, UNCORDONED, kept=True)


def _why_kept(pool: Pool) -> str:
    if pool.min_gpus_per_pod:
        return f"it is kept for pods of at least {pool.min_gpus_per_pod} GPUs"
    return f"pool {pool.name} is closed: only pods that a plan places on a machine are bound to it"


def _nodes_at_rest(taint: str, ledger: Ledger, cluster: Cluster, policy: Policy, index: MachineIndex) -> Iterator[tuple[Node, Pool]]:
    """Yield the nodes of our pools with ``taint`` that are not being opened or removed, each with its pool."""
    tainted = {node.name: node for node in cluster.table.tainted(taint) if not node.deleted}
    if not tainted:
        return
    under_way = (
        {machine.node for machine in ledger.coming}
        | {promise.node for promise in ledger.promises}
        | {removal.node for removal in ledger.leaving}
    )
    for name, member in members({name: tainted[name] for name in tainted.keys() - under_way}, policy, index.unlisted).items():
        yield tainted[name], member.pool
