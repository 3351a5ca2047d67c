"""Machines that a cloud launches without an order of ours, and that are not nodes yet (I12).

A group launches machines by itself up to its desired capacity: in place of one that was reclaimed or ended, to reach its minimum, after a
person raised the capacity, or to balance its zones. Such a machine is treated like an ordered one: pods are planned onto it, it counts for
limits, and it is not bought again. The cloud's list alone shows that a machine is expected, in one of three cases:

- the list has the machine, but the ledger does not have it yet;
- its group wants more machines than the list has, and no order of ours asked for them;
- the Node of the machine before it is gone, and the group has not noticed yet.

Only the time since which a machine has been missing is remembered. If a group reports that it cannot launch machines, or none is listed for
minutes, its pods are planned onto other machines.
"""

import math
from collections.abc import Iterator, Mapping

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.registering import Waits
from gpuscaler.lifecycle.registration.unregistered import adopted_name, in_ledger, may_still_register
from gpuscaler.model.instances import Delivery, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.state import Upcoming
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, INTENDED, Ledger

#: How long a group is expected to launch its missing machines, in seconds. Auto Scaling tries within a minute, and again every minute.
OWED_SECONDS = 120.0
#: How long a group is expected to replace a machine whose Node is gone, in seconds, in addition to the possible age of the list. Auto
#: Scaling notices within a minute.
REPLACED_SECONDS = 60.0
_PREFIX = "owed-"


def note_missing(current: Ledger, inventory: Inventory | None, now: float) -> tuple[ledger.Event, ...]:
    """Return the step that notes since when groups have missed machines that were not ordered here; empty if nothing has changed."""
    if inventory is None:
        return ()
    lacking = {
        delivery.pool: current.launches_expected_since.get(delivery.pool, now)
        for delivery in inventory.deliveries
        if count_missing(current, delivery) > 0
    }
    return () if lacking == current.launches_expected_since else (ledger.LaunchesExpected(lacking),)


def count_missing(ledger: Ledger, delivery: Delivery) -> int:
    """Return how many machines a group still has to launch, not counting those that our orders asked for.

    An order that is not answered yet may or may not have raised the desired capacity. Its machines are counted: counting a machine twice
    for a moment only delays a purchase, while a machine that is not counted would be bought again.
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
    """Return the machines that groups launch without an order of ours. ``index`` is the index of ``inventory``."""
    if inventory is None:
        return ()
    pools = {pool.name: pool for pool in policy.pools}
    deliveries = {delivery.pool: delivery for delivery in inventory.deliveries if delivery.pool in pools}
    listed = (machine for machine in _listed(ledger, index, deliveries, waits=waits, now=now) if machine.pool in pools)
    return (*listed, *_beside_orders(ledger, index, deliveries, waits), *_not_launched(ledger, deliveries, pools, now))


def _listed(ledger: Ledger, index: MachineIndex, deliveries: Mapping[str, Delivery], *, waits: Waits, now: float) -> Iterator[Upcoming]:
    """Yield listed machines without a node. The ledger adopts them later, under the same ids."""
    for name, since in sorted(ledger.unregistered.items()):
        instance = index.listed.alive.get(name)
        if instance is None:
            continue
        if may_still_register(instance, since, waits) or (instance.pool in deliveries and now < since + waits.lag + REPLACED_SECONDS):
            yield Upcoming(adopted_name(instance.id), instance.pool, instance.instance_type, instance.market, instance.zone, since=since)


def _beside_orders(ledger: Ledger, index: MachineIndex, deliveries: Mapping[str, Delivery], waits: Waits) -> Iterator[Upcoming]:
    """Yield machines that seem to have been launched before an order for such machines was sent, while that order is not answered yet.

    If the cloud lists no tokens and its clock is behind ours, these machines may belong to the order, so the ledger does not note them as
    unregistered. As in :func:`count_missing`, counting one twice only delays a purchase; one that is not counted would be bought again.
    """
    awaited: dict[OfferingKey, float] = {}
    for order in ledger.orders:
        for key in order.offerings if order.state == INTENDED else ():
            awaited[key] = min(order.at, awaited.get(key, math.inf))
    in_ledger_ids = in_ledger(ledger) | ledger.unregistered.keys()
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
    """Yield machines that groups still have to launch; each may be of any offering of its pool."""
    for name, delivery in sorted(deliveries.items()):
        since = ledger.launches_expected_since.get(name)
        if since is None or delivery.failing or now >= since + OWED_SECONDS:
            continue
        offerings = [offering for offering in pools[name].offerings if not offering.retired]
        choices = tuple((offering.instance_type, offering.market, offering.zone) for offering in offerings if offering.market != "reserved")
        first = max(offerings, key=lambda offering: (offering.price, offering.key), default=None)
        if first is None or not choices:
            continue
        for number in range(count_missing(ledger, delivery)):
            yield Upcoming(f"{_PREFIX}{name}-{number}", name, first.instance_type, first.market, first.zone, since=since, choices=choices)
