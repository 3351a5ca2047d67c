"""The ledger: orders and machines that are not open yet, promises, and removals in progress.

It is saved before the cloud is called, so that a restart at any time neither buys twice nor loses an order (I2), and each machine in it is
counted once until it is open (I3). Everything here is plain data folded from events; times are seconds since the epoch.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state import Upcoming
from gpuscaler.planning.state.ledger.entries import (
    ACCEPTED,
    CLOSING,
    DOUBTFUL,
    DRAINING,
    ENDING,
    INTENDED,
    MARKING,
    NOMINATING,
    OPEN,
    REOPENING,
    SKEW_SECONDS,
    WAITING,
    Order,
    OrderedMachine,
    Promise,
    Removal,
    Withdrawal,
)
from gpuscaler.planning.state.ledger.events import (
    Adopted,
    Answered,
    Broken,
    BrokenPromiseCleared,
    Doubted,
    Event,
    Exchanged,
    Faulted,
    Finished,
    Found,
    Intended,
    LaunchesExpected,
    Lost,
    Noticed,
    Opened,
    Planned,
    Promised,
    PromiseFulfilled,
    Ready,
    Recognised,
    Registered,
    RemovalUpdated,
    Settled,
    Unfit,
    Withdrawing,
    Withdrawn,
)

__all__ = [
    "ACCEPTED",
    "CLOSING",
    "DOUBTFUL",
    "DRAINING",
    "ENDING",
    "INTENDED",
    "MARKING",
    "NOMINATING",
    "OPEN",
    "REOPENING",
    "WAITING",
    "Adopted",
    "Answered",
    "Broken",
    "BrokenPromiseCleared",
    "Doubted",
    "Event",
    "Exchanged",
    "Faulted",
    "Finished",
    "Found",
    "Intended",
    "LaunchesExpected",
    "Ledger",
    "Lost",
    "Noticed",
    "Opened",
    "Order",
    "OrderedMachine",
    "Planned",
    "Promise",
    "PromiseFulfilled",
    "Promised",
    "Ready",
    "Recognised",
    "Registered",
    "Removal",
    "RemovalUpdated",
    "Settled",
    "Unfit",
    "Withdrawal",
    "Withdrawing",
    "Withdrawn",
    "fold_events",
    "known_offerings",
    "pods_by_promised_node",
    "step",
    "unnamed_counts",
    "upcoming_machines",
]


#: The names under which fields of :class:`Ledger` are stored, where they differ.
_STORED_NAMES = {"departed_ids": "past", "unregistered": "strangers", "launches_expected_since": "owing"}


class Ledger(Struct, frozen=True, gc=False, rename=_STORED_NAMES):
    """All orders, machines, promises and removals in progress.

    ``coming`` are the ordered machines, ``leaving`` the removals. ``serial`` numbers orders across restarts. ``bought`` are the times of
    the last minute's purchases and the number of machines of each. ``departed_ids`` are machines that left the ledger while an order still
    waited for machines without a known id: they do not belong to that order. ``broken`` are pods, each with the node that was opened for
    it and where it was not bound, as long as the pod is nominated to that node. ``withdrawals`` are withdrawn orders for which the cloud
    has not confirmed yet that no more machines will come. ``unregistered`` are machines of this cluster that are neither nodes nor in the
    ledger, by id, with the time each was first seen. ``launches_expected_since`` is, by pool, since when a group is expected to launch
    machines that this controller did not order.
    """

    orders: tuple[Order, ...] = ()
    coming: tuple[OrderedMachine, ...] = ()
    promises: tuple[Promise, ...] = ()
    leaving: tuple[Removal, ...] = ()
    serial: int = 0
    bought: tuple[tuple[float, int], ...] = ()
    departed_ids: frozenset[str] = frozenset()
    broken: tuple[tuple[str, str], ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    unregistered: Mapping[str, float] = {}
    launches_expected_since: Mapping[str, float] = {}


def step(ledger: Ledger, event: Event) -> Ledger:
    """The ledger after ``event``; an event about an unknown entry changes nothing."""
    match event:
        case Promised(promise=promise):
            return replace(ledger, promises=(*(old for old in ledger.promises if old.node != promise.node), promise))
        case PromiseFulfilled(node=node):
            return replace(ledger, promises=tuple(promise for promise in ledger.promises if promise.node != node))
        case RemovalUpdated(removal=updated):
            return replace(ledger, leaving=(*(removal for removal in ledger.leaving if removal.node != updated.node), updated))
        case Finished(node=node):
            return replace(ledger, leaving=tuple(removal for removal in ledger.leaving if removal.node != node))
        case Broken(pod=pod, node=node):
            return replace(ledger, broken=(*(entry for entry in ledger.broken if entry[0] != pod), (pod, node)))
        case BrokenPromiseCleared(pod=pod):
            return replace(ledger, broken=tuple(one for one in ledger.broken if one[0] != pod))
        case Noticed(unregistered=unregistered):
            return replace(ledger, unregistered=unregistered)
        case LaunchesExpected(pools=pools):
            return replace(ledger, launches_expected_since=pools)
        case Intended() | Answered() | Doubted() | Settled() | Withdrawing() | Withdrawn():
            return _of_order(ledger, event)
        case _:
            return _of_machine(ledger, event)


def _of_order(ledger: Ledger, event: Intended | Answered | Doubted | Settled | Withdrawing | Withdrawn) -> Ledger:
    match event:
        case Intended(order=order, machines=machines):
            return replace(
                ledger,
                orders=(*ledger.orders, order),
                coming=(*ledger.coming, *machines),
                serial=ledger.serial + 1,
                bought=(*(entry for entry in ledger.bought if entry[0] > order.at - 60.0), (order.at, len(machines))),
            )
        case Answered():
            return _answered(ledger, event)
        case Doubted(token=token, at=at):
            return _order(ledger, token, lambda order: replace(order, state=DOUBTFUL, since=at))
        case Settled(token=token):
            without = {machine.id for machine in ledger.coming if machine.order == token and not machine.instance}
            withdrawals = tuple(Withdrawal(token, order=order, missing=len(without)) for order in ledger.orders if order.token == token)
            return _without_machines(_drop_lost_gangs(replace(ledger, withdrawals=ledger.withdrawals + withdrawals), without), without)
        case Withdrawing(token=token, at=at):
            tried = (
                replace(withdrawal, tried=at, times=withdrawal.times + 1) if withdrawal.token == token else withdrawal
                for withdrawal in ledger.withdrawals
            )
            return replace(ledger, withdrawals=tuple(tried))
        case Withdrawn(token=token):
            return replace(ledger, withdrawals=tuple(withdrawal for withdrawal in ledger.withdrawals if withdrawal.token != token))


def _of_machine(
    ledger: Ledger, event: Found | Recognised | Adopted | Faulted | Registered | Ready | Opened | Lost | Planned | Unfit | Exchanged
) -> Ledger:
    match event:
        case Found(machine=machine, instance=instance, offering=offering, at=at, launched=launched):
            return _without_finished_orders(
                _machine(ledger, machine, lambda machine: _granted(machine, instance, offering, at=at, launched=launched))
            )
        case Recognised(machine=machine, offering=offering):
            return _machine(ledger, machine, lambda machine: replace(machine, offering=offering))
        case Adopted(machine=adopted):
            return replace(ledger, coming=(*ledger.coming, adopted))
        case Faulted(machine=machine, since=since):
            return _machine(ledger, machine, lambda machine: replace(machine, faulted=since))
        case Registered(machine=machine, node=node, at=at):
            return _machine(ledger, machine, lambda machine: replace(machine, node=node, registered=at))
        case Ready(machine=machine, at=at):
            return _machine(ledger, machine, lambda machine: replace(machine, ready=at))
        case Lost(machine=machine):
            return _without_machines(_drop_lost_gangs(ledger, {machine}), {machine})
        case Opened(machine=machine):
            leaving = tuple(
                replace(removal, needs=tuple(needed for needed in removal.needs if needed != machine)) for removal in ledger.leaving
            )
            return _without_machines(replace(ledger, leaving=leaving), {machine})
        case Planned(pods=pods):
            coming = tuple(
                machine if (to := pods.get(machine.id, ())) == machine.pods else replace(machine, pods=to) for machine in ledger.coming
            )
            return ledger if coming == ledger.coming else replace(ledger, coming=coming)
        case Unfit(machine=machine, pods=unfit):
            left = (
                replace(ordered, pods=tuple(pod for pod in ordered.pods if pod not in unfit)) if ordered.id == machine else ordered
                for ordered in ledger.coming
            )
            return replace(ledger, coming=tuple(left))
        case Exchanged(machine=machine, pairs=pairs):
            new_of, old_of = dict(pairs), {new: old for old, new in pairs}
            swaps = (new_of if ordered.id == machine else old_of for ordered in ledger.coming)
            changed = (tuple(swap.get(pod, pod) for pod in machine.pods) for machine, swap in zip(ledger.coming, swaps, strict=True))
            return replace(ledger, coming=tuple(replace(machine, pods=to) for machine, to in zip(ledger.coming, changed, strict=True)))


def unnamed_counts(ledger: Ledger) -> Mapping[str, int]:
    """The number of machines of each order without a known id, by token."""
    return Counter(machine.order for machine in ledger.coming if not machine.instance)


def known_offerings(ledger: Ledger) -> Mapping[str, OfferingKey]:
    """The offerings of the machines of the ledger, by id: an older list of the cloud does not have these machines yet."""
    return {machine.instance: machine.key for machine in ledger.coming if machine.instance}


def fold_events(ledger: Ledger, events: Iterable[Event]) -> Ledger:
    """The ledger after ``events``, in their order."""
    for event in events:
        ledger = step(ledger, event)
    return ledger


def _answered(ledger: Ledger, event: Answered) -> Ledger:
    """Assign ids to the granted machines, and remove the last of those that the cloud neither granted nor accepted."""
    known_instances = {machine.instance for machine in ledger.coming if machine.instance} | ledger.departed_ids
    # The cloud repeats its answer to a repeated order.
    grants = [grant for grant in dict.fromkeys(event.granted) if grant[0] not in known_instances]
    coming, pending, refused = [], event.pending, set[str]()
    for machine in ledger.coming:
        if machine.order != event.token or machine.instance:
            coming.append(machine)
        elif grants:
            instance, offering = _preferred_grant(grants, machine)
            grants.remove((instance, offering))
            coming.append(_granted(machine, instance, offering, at=event.at, launched=event.launched.get(instance, 0.0)))
        elif pending:
            pending -= 1
            coming.append(machine)
        else:
            coming.append(machine)
            refused.add(machine.id)
    coming += _surplus_machines(ledger, event, grants)
    order = next((order for order in ledger.orders if order.token == event.token), None)
    bought = _unbought(ledger.bought, order.at, len(refused)) if order is not None else ledger.bought
    ledger = _without_machines(_drop_lost_gangs(replace(ledger, coming=tuple(coming), bought=bought), refused), refused)
    return _without_finished_orders(
        _order(ledger, event.token, lambda order: replace(order, state=ACCEPTED, since=event.at, operation=event.operation))
    )


def _surplus_machines(ledger: Ledger, event: Answered, grants: Iterable[tuple[str, OfferingKey]]) -> list[OrderedMachine]:
    """Machines that were granted beyond the size of an order: no pod needs them, but they cost as much as others."""
    first = next((machine for machine in ledger.coming if machine.order == event.token), None)
    # Of an order that waits for no more machines it is no longer known which machines it had.
    if first is None or all(order.token != event.token for order in ledger.orders):
        return []
    return [
        _granted(
            OrderedMachine(f"{event.token}-{instance}", event.token, (offering,), first.price, first.asked),
            instance,
            offering,
            at=event.at,
            launched=event.launched.get(instance, 0.0),
        )
        for instance, offering in grants
    ]


def _granted(machine: OrderedMachine, instance: str, offering: OfferingKey, *, at: float, launched: float) -> OrderedMachine:
    """``machine`` with its id. Its launch time counts only if the id became known late, because it comes from the cloud's clock."""
    late = max(launched, machine.asked) if 0.0 < launched < at - SKEW_SECONDS else 0.0
    return replace(machine, instance=instance, offering=offering, granted=at, launched=late)


def _unbought(bought: tuple[tuple[float, int], ...], at: float, refused: int) -> tuple[tuple[float, int], ...]:
    """``bought`` without the ``refused`` machines ordered at ``at``: refused machines do not count for limits."""
    left = []
    for when, machines in bought:
        less = min(machines, refused) if when == at else 0
        refused -= less
        left.append((when, machines - less))
    return tuple(entry for entry in left if entry[1])


def _preferred_grant(grants: list[tuple[str, OfferingKey]], machine: OrderedMachine) -> tuple[str, OfferingKey]:
    """The granted machine that ``machine`` prefers."""
    return min(grants, key=lambda grant: machine.offerings.index(grant[1]) if grant[1] in machine.offerings else len(machine.offerings))


def _order(ledger: Ledger, token: str, change: Callable[[Order], Order]) -> Ledger:
    return replace(ledger, orders=tuple(change(order) if order.token == token else order for order in ledger.orders))


def _machine(ledger: Ledger, machine: str, change: Callable[[OrderedMachine], OrderedMachine]) -> Ledger:
    return replace(ledger, coming=tuple(change(ordered) if ordered.id == machine else ordered for ordered in ledger.coming))


def _drop_lost_gangs(ledger: Ledger, machines: set[str]) -> Ledger:
    """Drop the pods of all machines of the gangs of the lost ``machines``, until the complete gang is planned again."""
    gangs = {machine.gang for machine in ledger.coming if machine.id in machines and machine.gang}
    if not gangs:
        return ledger
    return replace(ledger, coming=tuple(replace(machine, pods=()) if machine.gang in gangs else machine for machine in ledger.coming))


def _without_machines(ledger: Ledger, machines: set[str]) -> Ledger:
    """The ledger without ``machines``; removals that depend on one of these are marked ``bereft``."""
    instances = {machine.instance for machine in ledger.coming if machine.id in machines and machine.instance}
    return _without_finished_orders(
        replace(
            ledger,
            coming=tuple(machine for machine in ledger.coming if machine.id not in machines),
            leaving=tuple(removal if machines.isdisjoint(removal.needs) else replace(removal, bereft=True) for removal in ledger.leaving),
            departed_ids=ledger.departed_ids | instances,
        )
    )


def _without_finished_orders(ledger: Ledger) -> Ledger:
    """The ledger without orders whose machines all have a known id."""
    awaited = {machine.order for machine in ledger.coming if not machine.instance}
    orders = tuple(order for order in ledger.orders if order.token in awaited)
    return replace(ledger, orders=orders, departed_ids=ledger.departed_ids if orders else frozenset())


def pods_by_promised_node(ledger: Ledger) -> dict[str, str]:
    """The nodes that are promised to pods, each with the first of its pods, for :class:`~gpuscaler.planning.state.State`."""
    return {promise.node: promise.pods[0] for promise in ledger.promises if promise.pods}


def upcoming_machines(ledger: Ledger) -> tuple[Upcoming, ...]:
    """Every machine that is not open yet, once, for :class:`~gpuscaler.planning.state.State`."""
    return tuple(
        Upcoming(
            id=machine.id,
            pool=machine.key.pool,
            instance_type=machine.key.instance_type,
            market=machine.key.market,
            zone=machine.key.zone,
            node=machine.node,
            since=machine.asked,
            choices=tuple((kind, market, zone) for _, market, kind, zone in machine.offerings[: machine.meant])
            if machine.offering is None
            else (),
            behind=tuple((kind, market, zone) for _, market, kind, zone in machine.offerings[machine.meant :])
            if machine.offering is None
            else (),
            pods=machine.pods,
        )
        for machine in ledger.coming
    )
