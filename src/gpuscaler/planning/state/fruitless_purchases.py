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


class PurchaseAttempts(Struct, frozen=True, gc=False):
    """``machines`` whose pods are still pending, and the times of fruitless ones in the last hour, by pool."""

    machines: tuple[PurchaseAttempt, ...] = ()
    lately: Mapping[str, tuple[float, ...]] = {}


def departed_machines(
    before: Iterable[OrderedMachine], ledger: Ledger, existing: Set[str], now: float, *, ended: Set[str] = frozenset()
) -> Iterator[PurchaseAttempt]:
    """The machines of ``before`` that ``ledger`` no longer has. ``existing`` are machines that the cloud lists or that have a node.

    ``ended`` are those that their group ends by itself, for example to balance zones.
    """
    current = {machine.id for machine in ledger.coming}
    taken = {removal.instance for removal in ledger.leaving if removal.forced} | ended
    opened = {promise.node for promise in ledger.promises}
    for machine in before:
        # A spot machine that no longer exists is assumed to have been reclaimed.
        reclaimed = machine.instance in taken or (machine.key.market == "spot" and machine.instance not in existing)
        halved = bool(machine.gang) and not machine.pods
        if machine.instance and machine.order and machine.bought_for and machine.id not in current and not (reclaimed or halved):
            lost = not machine.ready and machine.node not in opened
            yield PurchaseAttempt(machine.instance, machine.key, machine.bought_for[:PODS], now, machine.node, lost)


def judge_attempts(
    efforts: PurchaseAttempts, new_attempts: Iterable[PurchaseAttempt], pods: Mapping[str, Pod], now: float
) -> tuple[PurchaseAttempts, tuple[Event, ...]]:
    """``efforts`` with ``new_attempts``, as far as their pods are still pending, and the resulting events of offerings."""
    machines: list[PurchaseAttempt] = []
    events: list[Event] = []
    lately = {pool: kept for pool, moments in efforts.lately.items() if (kept := tuple(at for at in moments if at > now - HOUR))}
    for attempt in (*efforts.machines, *new_attempts):
        pending = [pod for key in attempt.pods if (pod := pods.get(key)) is not None and not pod.finished]
        if any(pod.node_name for pod in pending):
            if any(pod.node_name == attempt.node for pod in pending):
                events.append(Served(attempt.offering, now))
            continue
        if not pending or now >= attempt.at + DAY:
            continue
        if not attempt.fruitless and (attempt.lost or now >= attempt.at + SETTLE_SECONDS):
            attempt = replace(attempt, fruitless=True)  # it stays fruitless from now on
            pool = attempt.offering.pool
            lately[pool] = (*lately.get(pool, ()), now)
            events += _too_many(attempt, machines, now)
        machines.append(attempt)
    attempts = PurchaseAttempts(tuple(machines[-MOST:]), lately)
    return (efforts if attempts == efforts else attempts), tuple(events)


def _too_many(attempt: PurchaseAttempt, before: Iterable[PurchaseAttempt], now: float) -> Iterator[Event]:
    others = [other for other in before if other.fruitless]
    worst = max(attempt.pods, key=lambda pod: sum(pod in other.pods for other in others))
    times = 1 + sum(worst in other.pods for other in others)
    if times >= IN_A_ROW:
        how = "ended before it opened" if attempt.lost else "opened without the pod being bound to it"
        yield Fruitless(
            attempt.offering, now, f"pod {worst} is still pending after {times} machines; the last one, {attempt.machine}, {how}"
        )


def with_hourly_breakers(breakers: Breakers, efforts: PurchaseAttempts, limit: int, now: float) -> Breakers:
    """``breakers`` with a breaker for each pool that had ``limit`` fruitless machines within the last hour, until that hour is over."""
    full = {pool: moments for pool, moments in efforts.lately.items() if sum(at > now - HOUR for at in moments) >= limit}
    stops = tuple(
        Breaker(
            Target(pool),
            FRUITLESS,
            len(moments),
            moments[0],
            moments[-1],
            sorted(moments)[-limit] + HOUR,
            detail=f"{len(moments)} machines within an hour whose pods are still pending; the limit is {limit} (limits.fruitless_per_hour)",
        )
        for pool, moments in sorted(full.items())
    )
    return replace(breakers, open=(*breakers.open, *stops)) if stops else breakers
