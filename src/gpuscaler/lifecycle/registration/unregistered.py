"""Machines that the cloud lists for a pool of ours and that are neither in the ledger nor open. Each costs money and serves nothing.

Their causes: a memory was lost, an order was given up and filled all the same, other people raised a pool or deleted a Node, or a group
launches machines by itself: up to its minimum, for an update, in place of one that ended. A machine whose node is closed by our arriving
taint is opened like any other new machine, however old it is. Of those without a node, a young one may still become one and counts as on
its way; an old one is given up.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Set

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.futile_launches import Relaunching
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

#: After this many seconds, plus the possible age of the list, a listed machine belongs to no answer that is still on its way.
LISTED_SECONDS = 60.0
#: Old machines are skipped if more than this many, and more than this share of all listed machines, have no node.
FEW, SHARE = 3, 0.45


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
    """Return steps that note unordered machines in ``current``, and that add them to the ledger once they have been there for long enough.

    ``index`` is the index of ``cluster`` and ``inventory``. Machines that a group launches in place of failed ones, according to
    ``breakers``, are added at once: a minute later they may be gone and replaced again.

    They count as on their way from when they were first seen, so that those without a node are given up ``waits.register`` later.
    """
    if inventory is None:
        return ()
    unordered = {instance.id: instance for instance in _strangers(current, cluster, index, policy)}
    since_of = {name: since for name, since in current.strangers.items() if name in unordered}
    then = min(now, waits.seen, inventory.at)
    noted = {name: since_of.get(name, then) for name in unordered}
    relaunching = Relaunching(current, index, breakers, now)
    due = [
        instance
        for name, instance in sorted(unordered.items())
        if then >= noted[name] + _patience(instance, noted[name], waits) or relaunching.covers(instance)
    ]
    old = [instance for instance in due if not is_young(instance, noted[instance.id], waits)]
    if len(old) > FEW and len(old) > SHARE * len(index.listed.alive):
        # If that many lost their Nodes, the Nodes were lost and not the machines (I4).
        due = [instance for instance in due if instance not in old]
    still_noted = {name: since for name, since in noted.items() if all(name != instance.id for instance in due)}
    steps: list[ledger.Event] = [] if still_noted == current.strangers else [ledger.Noticed(still_noted)]
    prices = {offering.key: offering.price for offering in policy.offerings.values()}
    steps += [_adoption(instance, noted[instance.id], prices) for instance in due]
    ours = {pool.name for pool in policy.pools if not pool.min_gpus_per_pod} | set(inventory.let_go)
    return (*steps, *(_adoption(instance, then, prices) for instance in _closed(current, cluster, index, ours)))


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


def _closed(ledger: Ledger, cluster: Cluster, index: MachineIndex, pools: Set[str]) -> Iterator[Instance]:
    """Yield listed machines of ``pools`` whose node has our arriving taint, and that no order may be waiting for.

    Pools that keep their machines for large pods close nodes on purpose and are not among ``pools``. Released pools are: nothing else would
    open their nodes.
    """
    closed = [node for node in cluster.table.tainted(ARRIVING_TAINT) if node.provider_id in index.listed.alive and not node.deleted]
    if not closed:
        return
    under_way = (
        {promise.node for promise in ledger.promises}
        | {removal.node for removal in ledger.leaving}
        | {machine.node for machine in ledger.coming}
    )
    ledger_ids, is_ordered = in_ledger(ledger), _ordered(ledger)
    for node in closed:
        instance = index.listed.alive[node.provider_id]
        # If two nodes claim the same machine, it is unknown which of them is right.
        sure = len(index.by_machine[instance.id]) == 1 and node.name not in under_way
        if sure and instance.id not in ledger_ids and instance.pool in pools and not is_ordered(instance):
            yield instance


def in_ledger(ledger: Ledger) -> Set[str]:
    """Return the ids of machines that ``ledger`` knows, including those that have left it while an order still waits for unnamed ones."""
    return {machine.instance for machine in ledger.coming} | {removal.instance for removal in ledger.leaving} | ledger.past


def _ordered(ledger: Ledger) -> Callable[[Instance], bool]:
    """Return a function that tells whether a machine may be one that an open order waits for.

    Without tokens, that is any machine of its offerings that had not been seen when the order was made.
    """
    tokens = {order.token for order in ledger.orders}
    awaited: dict[OfferingKey, float] = {}
    for order in ledger.orders:
        for key in order.offerings:
            awaited[key] = min(order.at, awaited.get(key, math.inf))

    def is_ordered(instance: Instance) -> bool:
        if instance.token:
            return instance.token in tokens
        return instance.key in awaited and awaited[instance.key] < ledger.strangers.get(instance.id, math.inf)

    return is_ordered


def _patience(instance: Instance, since: float, waits: Waits) -> float:
    """Return how long after it was first seen ``instance`` is added: soon while it may become a node, else when its time is over."""
    return waits.lag + LISTED_SECONDS if is_young(instance, since, waits) else waits.register


def is_young(instance: Instance, since: float, waits: Waits) -> bool:
    """Whether ``instance`` may still become a node, by when it was launched."""
    return instance.launched > since - waits.register


def _strangers(ledger: Ledger, cluster: Cluster, index: MachineIndex, policy: Policy) -> Iterator[Instance]:
    """Yield machines that are listed for a pool of ours, and that belong to no node, removal or order."""
    ledger_ids, is_ordered = in_ledger(ledger), _ordered(ledger)
    nodeless = [instance for instance in index.nodeless if instance.id not in ledger_ids]
    if not nodeless or any(entry.object.startswith("Node ") for entry in cluster.set_aside):
        # A Node that cannot be parsed may belong to any of them (I4).
        return
    pools = {pool.name for pool in policy.pools}
    # The same holds for a node of ours that has no provider ID yet.
    unnamed = index.unnamed
    doubtful = max((unnamed[name].created for name in (members(unnamed, policy) if unnamed else ())), default=-math.inf)
    for instance in nodeless:
        if instance.pool in pools and not is_ordered(instance) and doubtful < instance.launched - SKEW_SECONDS:
            yield instance
