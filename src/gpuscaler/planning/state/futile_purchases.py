"""Fruitless machines: an offering that is repeatedly bought for the same pods without any of them running is not bought again.

A machine is fruitless if it ended before it opened, or if it opened and none of its pods was bound for a while, although some of them are
still pending. Machines that the cloud reclaimed do not count, nor do machines whose pods are gone, or whose gang had no room for the rest
of its members.
"""

from collections.abc import Iterable, Iterator, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.planning.state.breakers import Breaker, Breakers, Target
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine
from gpuscaler.planning.state.offering_events import FRUITLESS, Event, Fruitless, Served

#: The number of fruitless machines in a row for the same pods that stops purchases of their offering.
IN_A_ROW = 3
#: The time after its opening within which the pods of a machine are bound, in seconds: its promises are broken after half of that.
SETTLE_SECONDS = 120.0
HOUR, DAY = 3600.0, 86_400.0
#: The number of machines that are remembered, and of pods of each.
MOST, PODS = 200, 20


class PurchaseAttempt(Struct, frozen=True, gc=False):
    """A machine that left the ledger at ``at``, open as ``node`` or ``lost``, and the pods it was bought for.

    ``fruitless`` is set once it has been found fruitless.
    """

    machine: str
    offering: OfferingKey
    pods: tuple[str, ...]
    at: float
    node: str = ""
    lost: bool = False
    fruitless: bool = False


class Efforts(Struct, frozen=True, gc=False):
    """``machines`` whose pods are still pending, and the times of fruitless ones in the last hour, by pool."""

    machines: tuple[PurchaseAttempt, ...] = ()
    lately: Mapping[str, tuple[float, ...]] = {}


def left(
    before: Iterable[OrderedMachine], book: Ledger, there: Set[str], now: float, *, ended: Set[str] = frozenset()
) -> Iterator[PurchaseAttempt]:
    """The machines of ``before`` that ``book`` no longer has. ``there`` are machines that the cloud lists or that have a node.

    ``ended`` are those that their group ends by itself, for example to balance zones.
    """
    known = {one.id for one in book.coming}
    taken = {one.instance for one in book.leaving if one.forced} | ended
    opened = {one.node for one in book.promises}
    for one in before:
        # A spot machine that no longer exists is assumed to have been reclaimed.
        reclaimed = one.instance in taken or (one.key.market == "spot" and one.instance not in there)
        halved = bool(one.gang) and not one.pods
        if one.instance and one.order and one.bought_for and one.id not in known and not (reclaimed or halved):
            lost = not one.ready and one.node not in opened
            yield PurchaseAttempt(one.instance, one.key, one.bought_for[:PODS], now, one.node, lost)


def judged(efforts: Efforts, more: Iterable[PurchaseAttempt], pods: Mapping[str, Pod], now: float) -> tuple[Efforts, tuple[Event, ...]]:
    """``efforts`` with ``more`` attempts, as far as their pods are still pending, and the resulting events of offerings."""
    machines: list[PurchaseAttempt] = []
    fates: list[Event] = []
    lately = {pool: kept for pool, moments in efforts.lately.items() if (kept := tuple(at for at in moments if at > now - HOUR))}
    for one in (*efforts.machines, *more):
        known = [pod for key in one.pods if (pod := pods.get(key)) is not None and not pod.finished]
        if any(pod.node_name for pod in known):
            if any(pod.node_name == one.node for pod in known):
                fates.append(Served(one.offering, now))
            continue
        if not known or now >= one.at + DAY:
            continue
        if not one.fruitless and (one.lost or now >= one.at + SETTLE_SECONDS):
            one = replace(one, fruitless=True)  # it stays fruitless from now on
            pool = one.offering.pool
            lately[pool] = (*lately.get(pool, ()), now)
            fates += _too_many(one, machines, now)
        machines.append(one)
    found = Efforts(tuple(machines[-MOST:]), lately)
    return (efforts if found == efforts else found), tuple(fates)


def _too_many(one: PurchaseAttempt, before: Iterable[PurchaseAttempt], now: float) -> Iterator[Event]:
    others = [other for other in before if other.fruitless]
    worst = max(one.pods, key=lambda pod: sum(pod in other.pods for other in others))
    times = 1 + sum(worst in other.pods for other in others)
    if times >= IN_A_ROW:
        how = "ended before it opened" if one.lost else "opened without the pod being bound to it"
        yield Fruitless(one.offering, now, f"pod {worst} is still pending after {times} machines; the last one, {one.machine}, {how}")


def with_hourly(breakers: Breakers, efforts: Efforts, most: int, now: float) -> Breakers:
    """``breakers`` with a breaker for each pool that had ``most`` fruitless machines within the last hour, until that hour is over."""
    full = {pool: moments for pool, moments in efforts.lately.items() if sum(at > now - HOUR for at in moments) >= most}
    stops = tuple(
        Breaker(
            Target(pool),
            FRUITLESS,
            len(moments),
            moments[0],
            moments[-1],
            sorted(moments)[-most] + HOUR,
            detail=f"{len(moments)} machines within an hour whose pods are still pending; the limit is {most} (limits.fruitless_per_hour)",
        )
        for pool, moments in sorted(full.items())
    )
    return replace(breakers, open=(*breakers.open, *stops)) if stops else breakers
