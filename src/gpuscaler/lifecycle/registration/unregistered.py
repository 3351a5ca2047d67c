"""Machines that the cloud lists for a pool of ours and that are neither in the ledger nor open. Each costs money and serves no pod.

Several causes are known: the state ConfigMap was lost; an order was given up, but filled after all; a person raised the desired capacity of
a group or deleted a Node; a group launches machines by itself, to reach its minimum, for an update, or in place of a machine that ended.

If such a machine has a node that is closed by our arriving taint, it is opened like a machine that was ordered, whatever its age. Without a
node it is unregistered: while it may still register, it counts as on its way; later it is given up.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Set

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.futile_launches import FailingRelaunches
from gpuscaler.lifecycle.registration.registering import NO_BREAKERS, Waits
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import SKEW_SECONDS
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

#: After this many seconds, plus the possible age of the list, a listed machine cannot belong to an order whose answer is still to come.
LISTED_SECONDS = 60.0
#: Machines that can no longer register are not added if there are more than this many, and more than this share of all listed machines:
#: then their Nodes were lost, not the machines.
MAX_LOST_NODES, MAX_LOST_SHARE = 3, 0.45


def adopt_machines(
    current: Ledger,
    cluster: Cluster,
    inventory: Inventory | None,
    policy: Policy,
    *,
    waits: Waits,
    now: float,
    index: MachineIndex,
    breakers: Breakers = NO_BREAKERS,
) -> tuple[ledger.Event, ...]:
    """Return steps that note unregistered machines in ``current``, and that add them to the ledger once they have existed for long enough.

    ``index`` is the index of ``cluster`` and ``inventory``. Machines that a group launches in place of failed ones, according to
    ``breakers``, are added at once: a minute later they may be gone and replaced again.

    A machine is on its way from when it was first seen, so that it is given up ``waits.register`` later if it has no node.
    """
    if inventory is None:
        return ()
    unregistered = {instance.id: instance for instance in _unregistered(current, cluster, index, policy)}
    since_of = {name: since for name, since in current.unregistered.items() if name in unregistered}
    observed_at = min(now, waits.observed_until, inventory.at)
    noted = {name: since_of.get(name, observed_at) for name in unregistered}
    failing = FailingRelaunches(current, index, breakers, now)
    due = [
        instance
        for name, instance in sorted(unregistered.items())
        if observed_at >= noted[name] + _adoption_delay(instance, noted[name], waits) or failing.contains(instance)
    ]
    lost = [instance for instance in due if not may_still_register(instance, noted[instance.id], waits)]
    if len(lost) > MAX_LOST_NODES and len(lost) > MAX_LOST_SHARE * len(index.listed.alive):
        # If so many machines have no Nodes, the Nodes were lost and not the machines (I4).
        due = [instance for instance in due if instance not in lost]
    still_noted = {name: since for name, since in noted.items() if all(name != instance.id for instance in due)}
    steps: list[ledger.Event] = [] if still_noted == current.unregistered else [ledger.Noticed(still_noted)]
    prices = {offering.key: offering.price for offering in policy.offerings.values()}
    steps += [_adoption(instance, noted[instance.id], prices) for instance in due]
    opening_pools = {pool.name for pool in policy.pools if not pool.keeps_closed} | set(inventory.released_pools)
    closed = _machines_of_closed_nodes(current, cluster, index, opening_pools)
    return (*steps, *(_adoption(instance, observed_at, prices) for instance in closed))


def adopted_name(instance: str) -> str:
    """Return the ledger's name of a machine that was not ordered here."""
    return f"found-{instance}"


def _adoption(instance: Instance, since: float, prices: Mapping[OfferingKey, float]) -> ledger.Adopted:
    launched = min(instance.launched or since, since)
    price = prices.get(instance.key, 0.0)
    return ledger.Adopted(
        OrderedMachine(
            adopted_name(instance.id),
            "",
            (instance.key,),
            price,
            launched,
            offering=instance.key,
            instance=instance.id,
            granted=since,
            launched=launched,
        )
    )


def _machines_of_closed_nodes(current: Ledger, cluster: Cluster, index: MachineIndex, pools: Set[str]) -> Iterator[Instance]:
    """Yield listed machines of ``pools`` whose node has our arriving taint, and that no order may be waiting for.

    ``pools`` has no pools that keep their machines for large pods, since these close nodes on purpose. It has the released pools, because
    nothing else would open their nodes.
    """
    closed = [node for node in cluster.table.tainted(ARRIVING_TAINT) if node.provider_id in index.listed.alive and not node.deleted]
    if not closed:
        return
    under_way = (
        {promise.node for promise in current.promises}
        | {removal.node for removal in current.leaving}
        | {machine.node for machine in current.coming}
    )
    ledger_ids, is_ordered = in_ledger(current), _may_be_ordered(current)
    for node in closed:
        instance = index.listed.alive[node.provider_id]
        # If two nodes have the same provider ID, it is unknown to which of them the machine belongs.
        is_unambiguous = len(index.by_machine[instance.id]) == 1 and node.name not in under_way
        if is_unambiguous and instance.id not in ledger_ids and instance.pool in pools and not is_ordered(instance, node.created):
            yield instance


def in_ledger(current: Ledger) -> Set[str]:
    """Return the ids of the machines of ``current``, and of those that left it while an order still waited for machines without an id."""
    return {machine.instance for machine in current.coming} | {removal.instance for removal in current.leaving} | current.departed_ids


def _may_be_ordered(current: Ledger) -> Callable[..., bool]:
    """Return a function that decides whether a machine may belong to an order that still waits for machines.

    If the cloud lists no tokens, every machine of an offering of the order may, unless it had been seen before the order was made, or its
    node had been created before, at ``created`` on the cluster's clock.
    """
    tokens = {order.token for order in current.orders}
    awaited: dict[OfferingKey, float] = {}
    for order in current.orders:
        for key in order.offerings:
            awaited[key] = min(order.at, awaited.get(key, math.inf))

    def is_ordered(instance: Instance, created: float = math.inf) -> bool:
        if instance.token:
            return instance.token in tokens
        if instance.key in awaited and created < awaited[instance.key] - SKEW_SECONDS:
            return False
        return instance.key in awaited and awaited[instance.key] < current.unregistered.get(instance.id, math.inf)

    return is_ordered


def _adoption_delay(instance: Instance, since: float, waits: Waits) -> float:
    """Return how long after ``instance`` was first seen it is added: soon if it may still register, else when its time-out is over."""
    return waits.lag + LISTED_SECONDS if may_still_register(instance, since, waits) else waits.register


def may_still_register(instance: Instance, since: float, waits: Waits) -> bool:
    """Whether ``instance``, first seen at ``since``, was launched so recently that it may still become a node."""
    return instance.launched > since - waits.register


def _unregistered(current: Ledger, cluster: Cluster, index: MachineIndex, policy: Policy) -> Iterator[Instance]:
    """Yield machines that are listed for a pool of ours, and that belong to no node, no removal and no order."""
    ledger_ids, is_ordered = in_ledger(current), _may_be_ordered(current)
    nodeless = [instance for instance in index.nodeless if instance.id not in ledger_ids]
    if not nodeless or any(entry.object.startswith("Node ") for entry in cluster.set_aside):
        # A Node that cannot be parsed may be the node of any of these machines (I4).
        return
    pools = {pool.name for pool in policy.pools}
    # So may a node that has no provider ID yet, and may be one of ours by its labels, if it is not much older than the machine.
    unnamed = index.unnamed
    newest_unnamed = max((unnamed[name].created for name in (members(unnamed, policy, frozenset()) if unnamed else ())), default=-math.inf)
    for instance in nodeless:
        if instance.pool in pools and not is_ordered(instance) and newest_unnamed < instance.launched - SKEW_SECONDS:
            yield instance
