"""Machines that were bought for pods, and whether any of these came to run: what is bought for the same pods in vain is not bought again.

A machine is fruitless where it ended before it opened, or opened and none of its pods was bound for a while, although some of them still
wait. Machines that their cloud took back say nothing, nor do those whose pods are gone, or for the rest of whose gang there was no room.
"""

from collections.abc import Iterable, Iterator, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.planning.state.breakers import Breaker, Breakers, Target
from gpuscaler.planning.state.ledger.ledger import Coming, Ledger
from gpuscaler.planning.state.offering_events import FRUITLESS, Event, Fruitless, Served

#: So many fruitless machines in a row for the same pods close what they were bought as.
IN_A_ROW = 3
#: So long after it opened the pods of a machine are bound, in seconds: its promises are broken after half of that.
SETTLE_SECONDS = 120.0
HOUR, DAY = 3600.0, 86_400.0
#: So many machines are remembered, and so many pods of each.
MOST, PODS = 200, 20


class PurchaseAttempt(Struct, frozen=True, gc=False):
    """A machine that left the ledger at ``at``, open as ``node`` or ``lost``, and the pods it was bought for.

    It is ``fruitless`` once it was found to be.
    """

    machine: str
    offering: OfferingKey
    pods: tuple[str, ...]
    at: float
    node: str = ""
    lost: bool = False
    fruitless: bool = False


class Efforts(Struct, frozen=True, gc=False):
    """``machines`` whose pods still wait, and the moments of fruitless ones in the last hour, by pool."""

    machines: tuple[PurchaseAttempt, ...] = ()
    lately: Mapping[str, tuple[float, ...]] = {}


def left(
    before: Iterable[Coming], book: Ledger, there: Set[str], now: float, *, ended: Set[str] = frozenset()
) -> Iterator[PurchaseAttempt]:
    """The machines of ``before`` that ``book`` does not have any more. ``there`` are machines that the cloud or a node knows.

    ``ended`` are those that their group ends of its own accord: to balance zones, perhaps.
    """
    known = {one.id for one in book.coming}
    taken = {one.instance for one in book.leaving if one.forced} | ended
    opened = {one.node for one in book.promises}
    for one in before:
        # Who is not there any more and was bought on spot was taken back, as far as anybody knows.
        reclaimed = one.instance in taken or (one.key.market == "spot" and one.instance not in there)
        halved = bool(one.gang) and not one.pods
        if one.instance and one.order and one.bought_for and one.id not in known and not (reclaimed or halved):
            lost = not one.ready and one.node not in opened
            yield PurchaseAttempt(one.instance, one.key, one.bought_for[:PODS], now, one.node, lost)


def judged(efforts: Efforts, more: Iterable[PurchaseAttempt], pods: Mapping[str, Pod], now: float) -> tuple[Efforts, tuple[Event, ...]]:
    """``efforts`` with ``more`` of them, as far as their pods still wait; what that says of offerings."""
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
            one = replace(one, fruitless=True)  # it goes on as what it was found to be
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
        how = "ended before it opened" if one.lost else "opened and did not take it"
        yield Fruitless(one.offering, now, f"pod {worst} waits after {times} machines; the last, {one.machine}, {how}")


def with_hourly(breakers: Breakers, efforts: Efforts, most: int, now: float) -> Breakers:
    """``breakers`` with one for each pool that had ``most`` fruitless machines within the last hour, until that hour is over."""
    full = {pool: moments for pool, moments in efforts.lately.items() if sum(at > now - HOUR for at in moments) >= most}
    stops = tuple(
        Breaker(
            Target(pool),
            FRUITLESS,
            len(moments),
            moments[0],
            moments[-1],
            sorted(moments)[-most] + HOUR,
            detail=f"{len(moments)} machines within an hour whose pods still wait, and the most is {most} (limits.fruitless_per_hour)",
        )
        for pool, moments in sorted(full.items())
    )
    return replace(breakers, open=(*breakers.open, *stops)) if stops else breakers
