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
    Doubted,
    Event,
    Exchanged,
    Finished,
    Found,
    Intended,
    Left,
    Lost,
    Mended,
    Noticed,
    Opened,
    Owing,
    Planned,
    Promised,
    Ready,
    Recognised,
    Redeemed,
    Registered,
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
    "Doubted",
    "Event",
    "Exchanged",
    "Finished",
    "Found",
    "Intended",
    "Ledger",
    "Left",
    "Lost",
    "Mended",
    "Noticed",
    "Opened",
    "Order",
    "OrderedMachine",
    "Owing",
    "Planned",
    "Promise",
    "Promised",
    "Ready",
    "Recognised",
    "Redeemed",
    "Registered",
    "Removal",
    "Settled",
    "Unfit",
    "Withdrawal",
    "Withdrawing",
    "Withdrawn",
    "folded",
    "named",
    "step",
    "unnamed",
    "upcoming",
]


class Ledger(Struct, frozen=True, gc=False):
    """All orders, machines, promises and removals in progress.

    ``serial`` numbers orders across restarts. ``bought`` are the times of the last minute's purchases and the number of machines of each.
    ``past`` are machines that left the ledger while an order still waited for machines without a known id: they do not belong to that
    order. ``broken`` are pods with the nodes that were opened for them and did not take them, while the nomination stands.
    ``withdrawals`` are orders for which the cloud has not yet confirmed that no more machines will come. ``strangers`` are machines of
    this cluster that are neither nodes nor in the ledger, by id, with the time each was first seen. ``owing`` is the time since when
    groups, by pool, lack machines that this controller did not order.
    """

    orders: tuple[Order, ...] = ()
    coming: tuple[OrderedMachine, ...] = ()
    promises: tuple[Promise, ...] = ()
    leaving: tuple[Removal, ...] = ()
    serial: int = 0
    bought: tuple[tuple[float, int], ...] = ()
    past: frozenset[str] = frozenset()
    broken: tuple[tuple[str, str], ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    strangers: Mapping[str, float] = {}
    owing: Mapping[str, float] = {}


def step(ledger: Ledger, event: Event) -> Ledger:
    """The ledger after ``event``; an event about an unknown entry changes nothing."""
    match event:
        case Promised(promise=promise):
            return replace(ledger, promises=(*(one for one in ledger.promises if one.node != promise.node), promise))
        case Redeemed(node=node):
            return replace(ledger, promises=tuple(one for one in ledger.promises if one.node != node))
        case Left(leaving=leaving):
            return replace(ledger, leaving=(*(one for one in ledger.leaving if one.node != leaving.node), leaving))
        case Finished(node=node):
            return replace(ledger, leaving=tuple(one for one in ledger.leaving if one.node != node))
        case Broken(pod=pod, node=node):
            return replace(ledger, broken=(*(one for one in ledger.broken if one[0] != pod), (pod, node)))
        case Mended(pod=pod):
            return replace(ledger, broken=tuple(one for one in ledger.broken if one[0] != pod))
        case Noticed(strangers=strangers):
            return replace(ledger, strangers=strangers)
        case Owing(pools=pools):
            return replace(ledger, owing=pools)
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
                bought=(*(one for one in ledger.bought if one[0] > order.at - 60.0), (order.at, len(machines))),
            )
        case Answered():
            return _answered(ledger, event)
        case Doubted(token=token, at=at):
            return _order(ledger, token, lambda one: replace(one, state=DOUBTFUL, since=at))
        case Settled(token=token):
            without = {one.id for one in ledger.coming if one.order == token and not one.instance}
            told = tuple(Withdrawal(token, order=one, missing=len(without)) for one in ledger.orders if one.token == token)
            return _without(_bereaved(replace(ledger, withdrawals=ledger.withdrawals + told), without), without)
        case Withdrawing(token=token, at=at):
            tried = (replace(one, tried=at, times=one.times + 1) if one.token == token else one for one in ledger.withdrawals)
            return replace(ledger, withdrawals=tuple(tried))
        case Withdrawn(token=token):
            return replace(ledger, withdrawals=tuple(one for one in ledger.withdrawals if one.token != token))


def _of_machine(
    ledger: Ledger, event: Found | Recognised | Adopted | Registered | Ready | Opened | Lost | Planned | Unfit | Exchanged
) -> Ledger:
    match event:
        case Found(machine=machine, instance=instance, offering=offering, at=at, launched=launched):
            return _tidied(_machine(ledger, machine, lambda one: _granted(one, instance, offering, at=at, launched=launched)))
        case Recognised(machine=machine, offering=offering):
            return _machine(ledger, machine, lambda one: replace(one, offering=offering))
        case Adopted(machine=stranger):
            return replace(ledger, coming=(*ledger.coming, stranger))
        case Registered(machine=machine, node=node, at=at):
            return _machine(ledger, machine, lambda one: replace(one, node=node, registered=at))
        case Ready(machine=machine, at=at):
            return _machine(ledger, machine, lambda one: replace(one, ready=at))
        case Lost(machine=machine):
            return _without(_bereaved(ledger, {machine}), {machine})
        case Opened(machine=machine):
            leaving = tuple(replace(one, needs=tuple(needed for needed in one.needs if needed != machine)) for one in ledger.leaving)
            return _without(replace(ledger, leaving=leaving), {machine})
        case Planned(pods=pods):
            coming = tuple(one if (to := pods.get(one.id, ())) == one.pods else replace(one, pods=to) for one in ledger.coming)
            return ledger if coming == ledger.coming else replace(ledger, coming=coming)
        case Unfit(machine=machine, pods=unfit):
            left = (
                replace(one, pods=tuple(pod for pod in one.pods if pod not in unfit)) if one.id == machine else one for one in ledger.coming
            )
            return replace(ledger, coming=tuple(left))
        case Exchanged(machine=machine, pairs=pairs):
            come, back = dict(pairs), {new: old for old, new in pairs}
            swaps = (come if one.id == machine else back for one in ledger.coming)
            changed = (tuple(swap.get(pod, pod) for pod in one.pods) for one, swap in zip(ledger.coming, swaps, strict=True))
            return replace(ledger, coming=tuple(replace(one, pods=to) for one, to in zip(ledger.coming, changed, strict=True)))


def unnamed(ledger: Ledger) -> Mapping[str, int]:
    """The number of machines of each order without a known id, by token."""
    return Counter(one.order for one in ledger.coming if not one.instance)


def named(ledger: Ledger) -> Mapping[str, OfferingKey]:
    """The offerings of the machines of the ledger, by id: an outdated list of the cloud does not have them yet."""
    return {one.instance: one.key for one in ledger.coming if one.instance}


def folded(ledger: Ledger, events: Iterable[Event]) -> Ledger:
    """The ledger after ``events``, in their order."""
    for event in events:
        ledger = step(ledger, event)
    return ledger


def _answered(ledger: Ledger, event: Answered) -> Ledger:
    """Assign ids to the granted machines, and remove the last of those that the cloud neither granted nor accepted."""
    known = {one.instance for one in ledger.coming if one.instance} | ledger.past
    # The cloud repeats its answer to a repeated order.
    grants = [grant for grant in dict.fromkeys(event.granted) if grant[0] not in known]
    coming, pending, refused = [], event.pending, set[str]()
    for one in ledger.coming:
        if one.order != event.token or one.instance:
            coming.append(one)
        elif grants:
            instance, offering = _best(grants, one)
            grants.remove((instance, offering))
            coming.append(_granted(one, instance, offering, at=event.at, launched=event.launched.get(instance, 0.0)))
        elif pending:
            pending -= 1
            coming.append(one)
        else:
            coming.append(one)
            refused.add(one.id)
    coming += _surplus(ledger, event, grants)
    order = next((one for one in ledger.orders if one.token == event.token), None)
    bought = _unbought(ledger.bought, order.at, len(refused)) if order is not None else ledger.bought
    ledger = _without(_bereaved(replace(ledger, coming=tuple(coming), bought=bought), refused), refused)
    return _tidied(_order(ledger, event.token, lambda one: replace(one, state=ACCEPTED, since=event.at)))


def _surplus(ledger: Ledger, event: Answered, grants: Iterable[tuple[str, OfferingKey]]) -> list[OrderedMachine]:
    """Machines that were granted beyond the size of an order: no pod needs them, but they cost as much as others."""
    first = next((one for one in ledger.coming if one.order == event.token), None)
    # The machines of an order that waits for nothing any more are no longer known.
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


def _granted(one: OrderedMachine, instance: str, offering: OfferingKey, *, at: float, launched: float) -> OrderedMachine:
    """``one`` with its id. Its launch time counts only if the id became known late, because it comes from the cloud's clock."""
    late = max(launched, one.asked) if 0.0 < launched < at - SKEW_SECONDS else 0.0
    return replace(one, instance=instance, offering=offering, granted=at, launched=late)


def _unbought(bought: tuple[tuple[float, int], ...], at: float, refused: int) -> tuple[tuple[float, int], ...]:
    """``bought`` without the ``refused`` machines ordered at ``at``: refused machines count against no limit."""
    left = []
    for when, many in bought:
        less = min(many, refused) if when == at else 0
        refused -= less
        left.append((when, many - less))
    return tuple(one for one in left if one[1])


def _best(grants: list[tuple[str, OfferingKey]], one: OrderedMachine) -> tuple[str, OfferingKey]:
    """The granted machine that ``one`` prefers."""
    return min(grants, key=lambda grant: one.offerings.index(grant[1]) if grant[1] in one.offerings else len(one.offerings))


def _order(ledger: Ledger, token: str, change: Callable[[Order], Order]) -> Ledger:
    return replace(ledger, orders=tuple(change(one) if one.token == token else one for one in ledger.orders))


def _machine(ledger: Ledger, machine: str, change: Callable[[OrderedMachine], OrderedMachine]) -> Ledger:
    return replace(ledger, coming=tuple(change(one) if one.id == machine else one for one in ledger.coming))


def _bereaved(ledger: Ledger, machines: set[str]) -> Ledger:
    """Drop the pods of all machines of the gangs of the lost ``machines``, until the complete gang is planned again."""
    gangs = {one.gang for one in ledger.coming if one.id in machines and one.gang}
    if not gangs:
        return ledger
    return replace(ledger, coming=tuple(replace(one, pods=()) if one.gang in gangs else one for one in ledger.coming))


def _without(ledger: Ledger, machines: set[str]) -> Ledger:
    """The ledger without ``machines``; removals that depend on one of these are marked ``bereft``."""
    gone = {one.instance for one in ledger.coming if one.id in machines and one.instance}
    return _tidied(
        replace(
            ledger,
            coming=tuple(one for one in ledger.coming if one.id not in machines),
            leaving=tuple(one if machines.isdisjoint(one.needs) else replace(one, bereft=True) for one in ledger.leaving),
            past=ledger.past | gone,
        )
    )


def _tidied(ledger: Ledger) -> Ledger:
    """The ledger without orders whose machines all have a known id."""
    awaited = {one.order for one in ledger.coming if not one.instance}
    orders = tuple(one for one in ledger.orders if one.token in awaited)
    return replace(ledger, orders=orders, past=ledger.past if orders else frozenset())


def upcoming(ledger: Ledger) -> tuple[Upcoming, ...]:
    """Every machine that is not open yet, once, for :class:`~gpuscaler.planning.state.State`."""
    return tuple(
        Upcoming(
            id=one.id,
            pool=one.key.pool,
            instance_type=one.key.instance_type,
            market=one.key.market,
            zone=one.key.zone,
            node=one.node,
            since=one.asked,
            choices=tuple((kind, market, zone) for _, market, kind, zone in one.offerings[: one.meant]) if one.offering is None else (),
            behind=tuple((kind, market, zone) for _, market, kind, zone in one.offerings[one.meant :]) if one.offering is None else (),
            pods=one.pods,
        )
        for one in ledger.coming
    )
