"""Machines that a cloud launches without an order of ours, and that are still to come (I12).

A group launches machines by itself up to its desired capacity: in place of one that was reclaimed or ended, for its minimum, after a person
raised it, to balance its zones. Such a machine is on its way like one that was ordered: pods are planned onto it, it counts for limits, and
it is not bought again. There are three sources. Each is read from the list alone, so that only the time since which a machine is missing
has to be remembered:

- the group lists it, and the ledger does not have it yet;
- its group wants more machines than it lists, and no order of ours asked for them;
- its predecessor's Node is gone, and the group has yet to notice.

This is not assumed for ever: if a group reports that it cannot launch, or shows nothing for minutes, the pods are served elsewhere.
"""

import math
from collections.abc import Iterator, Mapping

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.registering import Waits
from gpuscaler.lifecycle.registration.unregistered import adopted_name, in_ledger, is_young
from gpuscaler.model.instances import Delivery, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.state import Upcoming
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, INTENDED, Ledger

#: How long a group is trusted to launch what it lacks, in seconds. Auto Scaling tries within a minute, and again every minute.
OWED_SECONDS = 120.0
#: How long a machine whose Node is gone counts as one that its group is about to replace, in seconds, in addition to the possible age of
#: the list. Auto Scaling notices within a minute.
REPLACED_SECONDS = 60.0
_PREFIX = "owed-"


def note_missing(current: Ledger, inventory: Inventory | None, now: float) -> tuple[ledger.Event, ...]:
    """Return the step that notes since when groups lack machines that were not ordered here; empty if that has not changed."""
    if inventory is None:
        return ()
    lacking = {
        delivery.pool: current.owing.get(delivery.pool, now) for delivery in inventory.deliveries if count_missing(current, delivery) > 0
    }
    return () if lacking == current.owing else (ledger.Owing(lacking),)


def count_missing(ledger: Ledger, delivery: Delivery) -> int:
    """Return how many machines a group has yet to launch in addition to those that our orders raised it by.

    An order that is not answered yet may or may not have raised it. It is not subtracted: counting a machine twice for a moment only delays
    a purchase, while a machine that is not counted would be bought.
    """
    accepted = {order.token for order in ledger.orders if order.state == ACCEPTED}
    ours = sum(machine.key.pool == delivery.pool and not machine.instance and machine.order in accepted for machine in ledger.coming)
    ours += sum(
        withdrawal.missing for withdrawal in ledger.withdrawals if withdrawal.order is not None and withdrawal.order.pool == delivery.pool
    )
    return max(0, delivery.missing - ours)


def unordered_machines(
    ledger: Ledger, index: MachineIndex, inventory: Inventory | None, policy: Policy, *, waits: Waits, now: float
) -> tuple[Upcoming, ...]:
    """Return the machines that are on their way by themselves. ``index`` is the index of ``inventory``."""
    if inventory is None:
        return ()
    pools = {pool.name: pool for pool in policy.pools}
    deliveries = {delivery.pool: delivery for delivery in inventory.deliveries if delivery.pool in pools}
    listed = (machine for machine in _listed(ledger, index, deliveries, waits=waits, now=now) if machine.pool in pools)
    return (*listed, *_beside_orders(ledger, index, deliveries, waits), *_not_launched(ledger, deliveries, pools, now))


def _listed(ledger: Ledger, index: MachineIndex, deliveries: Mapping[str, Delivery], *, waits: Waits, now: float) -> Iterator[Upcoming]:
    """Yield listed machines without a node. They become machines of the ledger under the same name."""
    for name, since in sorted(ledger.strangers.items()):
        instance = index.listed.alive.get(name)
        if instance is None:
            continue
        if is_young(instance, since, waits) or (instance.pool in deliveries and now < since + waits.lag + REPLACED_SECONDS):
            yield Upcoming(adopted_name(instance.id), instance.pool, instance.instance_type, instance.market, instance.zone, since=since)


def _beside_orders(ledger: Ledger, index: MachineIndex, deliveries: Mapping[str, Delivery], waits: Waits) -> Iterator[Upcoming]:
    """Yield machines that their group launched before an order for such machines, while that order is not answered yet.

    Without tokens they may belong to that order if the cloud's clock is behind ours, and so they are not counted as unordered. As in
    :func:`count_missing`, counting one twice for a moment delays a purchase, and one that is not counted is bought again.
    """
    awaited: dict[OfferingKey, float] = {}
    for order in ledger.orders:
        for key in order.offerings if order.state == INTENDED else ():
            awaited[key] = min(order.at, awaited.get(key, math.inf))
    in_ledger_ids = in_ledger(ledger) | ledger.strangers.keys()
    for instance in index.nodeless if awaited else ():
        at = awaited.get(instance.key, -math.inf)
        if (
            instance.pool in deliveries
            and not instance.token
            and instance.id not in in_ledger_ids
            and at - waits.register < instance.launched < at
        ):
            yield Upcoming(
                adopted_name(instance.id), instance.pool, instance.instance_type, instance.market, instance.zone, since=instance.launched
            )


def _not_launched(ledger: Ledger, deliveries: Mapping[str, Delivery], pools: Mapping[str, Pool], now: float) -> Iterator[Upcoming]:
    """Yield machines that groups have yet to launch: any that their pools offer."""
    for name, delivery in sorted(deliveries.items()):
        since = ledger.owing.get(name)
        if since is None or delivery.failing or now >= since + OWED_SECONDS:
            continue
        offerings = [offering for offering in pools[name].offerings if not offering.retired]
        choices = tuple((offering.instance_type, offering.market, offering.zone) for offering in offerings if offering.market != "reserved")
        first = max(offerings, key=lambda offering: (offering.price, offering.key), default=None)
        if first is None or not choices:
            continue
        for number in range(count_missing(ledger, delivery)):
            yield Upcoming(f"{_PREFIX}{name}-{number}", name, first.instance_type, first.market, first.zone, since=since, choices=choices)
