"""The simulated cloud's core: machines are asked for, granted or refused, boot, show their GPUs, fail, are reclaimed. No I/O, no clock.

Whoever drives it asks :meth:`SimulatedCloud.next_event` when something will happen and calls :meth:`SimulatedCloud.advance` with the
time that has come. Time is seconds since the epoch and never runs backwards.
"""

import heapq
import random
from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.clouds.delays import NO_FAULTS, Delays, Faults
from gpuscaler.clouds.machines import (
    ANSWERED,
    BOOTING,
    FAILED,
    KUBELET_RESOURCES,
    LOST,
    NO_CAPACITY,
    NOTICE,
    POOL_LIMIT,
    RECLAIMED,
    REGISTERED,
    TERMINATED,
    UNKNOWN_OFFERING,
    VISIBLE,
    Answer,
    CloudEvent,
    CloudMachine,
    Refusal,
)
from gpuscaler.clouds.markets import Key, Markets
from gpuscaler.model.pools import Offering, Pool

#: Billing is by the second with a minimum of a minute, as EC2 bills on-demand Linux machines.
MINIMUM_BILLED_SECONDS = 60.0

#: What happens to markets, inside: an order falls due, capacity changes.
_ORDER, _MARKET = "order", "market"


class _Order(Struct, gc=False):
    token: str
    offerings: tuple[Key, ...]
    missing: int
    spread: bool
    standing: bool
    answered: bool = False


class _Due(Struct, frozen=True, gc=False, order=True):
    """Something to happen: of one moment what was put here first comes first. ``what`` is a machine's id, a token, or an offering."""

    at: float
    order: int
    kind: str
    what: str
    key: Key = ("", "", "", "")
    why: str = ""


class SimulatedCloud:
    """Machines of ``pools``, asked for and ended by calls, changed by time and by ``markets``.

    The luck of the n-th machine and of the n-th purchase depends on ``seed`` and n alone, so that two policies compared on one seed meet
    the same.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        *,
        seed: int = 0,
        delays: Delays | None = None,
        faults: Faults = NO_FAULTS,
        markets: Markets | None = None,
    ) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._offerings = {offering.key: offering for pool in self._pools.values() for offering in pool.offerings}
        self._seed = seed
        self._delays = delays or Delays()
        self._faults = faults
        self.markets = markets or Markets()
        self._all: dict[str, CloudMachine] = {}
        self._alive: dict[str, CloudMachine] = {}
        self._asked: set[str] = set()
        #: When the image is on a machine.
        self._images: dict[str, float] = {}
        self._orders: dict[str, _Order] = {}
        self._unanswered = 0
        self._booting = 0
        self._in_pool: dict[str, int] = dict.fromkeys(self._pools, 0)
        self._of_offering: dict[Key, dict[str, CloudMachine]] = {key: {} for key in self._offerings}
        #: Offerings with machines, in the order in which they came.
        self._in_use: dict[Key, None] = {}
        self._watched: set[Key] = set()
        self._doomed: set[str] = set()
        self._due: list[_Due] = []
        self._put_so_far = 0

    # Calls

    def ask(self, token: str, offerings: tuple[Key, ...], *, count: int, now: float, spread: bool = False, standing: bool = False) -> None:
        """Ask for ``count`` machines of any of ``offerings``, in that order, or in turn (``spread``); the answer is an event.

        What a ``standing`` order lacks is granted when capacity comes, until it is withdrawn. A ``token`` that was seen before asks for
        nothing.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if token in self._asked:
            return
        self._asked.add(token)
        self._orders[token] = _Order(token, offerings, count, spread, standing)
        self._unanswered += 1
        luck = random.Random(f"{self._seed}/answer/{len(self._asked)}")
        self._put(now + self._delays.answer.sample(luck), _ORDER, token)

    def withdraw(self, token: str) -> None:
        """Want no more of what an order still lacks. An order that has not been answered is answered all the same."""
        order = self._orders.get(token)
        if order is not None:
            order.standing = False
            if order.answered:
                del self._orders[token]

    def unanswered(self, token: str) -> bool:
        """Whether the answer to a purchase is still out."""
        return token in self._orders and not self._orders[token].answered

    def image_pull(self, machine_id: str, now: float) -> float:
        """Seconds until a pod's image is on a machine: the first pod brings it, and those that come meanwhile wait with it."""
        if machine_id not in self._images:
            self._images[machine_id] = now + self._delays.image_pull.sample(random.Random(f"{self._seed}/image/{machine_id}"))
        return max(0.0, self._images[machine_id] - now)

    def start(self, key: Key, now: float) -> CloudMachine:
        """A machine that was there all along: open from ``now`` on. An unknown offering raises KeyError."""
        machine = self._new(self._offerings[key], "start", now, registered=now, visible=now)
        machine.state = VISIBLE
        self._age(machine)
        return machine

    def terminate(self, machine_id: str, now: float) -> CloudMachine:
        """End a machine at once. Ending it again changes nothing; an unknown id raises KeyError."""
        machine = self.machine(machine_id)
        self._end(machine, TERMINATED, now)
        return machine

    # Reading

    def machine(self, machine_id: str) -> CloudMachine:
        """A machine by its id, ended or not; an unknown id raises KeyError."""
        return self._all[machine_id]

    def list(self) -> tuple[CloudMachine, ...]:
        """The machines that exist, oldest first."""
        return tuple(self._alive.values())

    def history(self) -> tuple[CloudMachine, ...]:
        """Every machine that was ever granted, oldest first."""
        return tuple(self._all.values())

    @property
    def busy(self) -> bool:
        """Whether an answer or a machine is on its way."""
        return self._unanswered > 0 or self._booting > 0

    def billed_seconds(self, machine: CloudMachine, now: float) -> float:
        """Seconds billed up to ``now``: from the grant to the end, at least a minute."""
        end = machine.ended_at if machine.ended_at is not None else now
        return max(MINIMUM_BILLED_SECONDS, end - machine.bought_at)

    def cost(self, machine: CloudMachine, now: float) -> float:
        """US dollars billed up to ``now``, each second at the price it had."""
        began = machine.bought_at
        return self.markets.cost(machine.offering, began, began + self.billed_seconds(machine, now))

    def dollars_per_hour(self, now: float) -> float:
        """What the machines that exist cost at the moment."""
        return sum(len(self._of_offering[key]) * self.markets.price(self._offerings[key], now) for key in self._in_use)

    # Time

    def next_event(self) -> float | None:
        """When something happens next by itself, or None."""
        while self._due and not self._matters(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0].at if self._due else None

    def advance(self, now: float) -> tuple[CloudEvent, ...]:
        """What happened up to and including ``now``, in order of time."""
        return tuple(self._events_until(now))

    def _events_until(self, now: float) -> Iterator[CloudEvent]:
        while (at := self.next_event()) is not None and at <= now:
            due = heapq.heappop(self._due)
            if due.kind == _ORDER:
                self._unanswered -= 1
                yield self._answer(self._orders[due.what], at)
            elif due.kind == _MARKET:
                yield from self._market(due.key, at)
            else:
                yield self._change(due)

    def _matters(self, due: _Due) -> bool:
        if due.kind == _MARKET and not self._of_offering[due.key] and not self._wanting(due.key):
            self._watched.discard(due.key)
            return False
        return due.kind in {_ORDER, _MARKET} or due.what in self._alive

    def _change(self, due: _Due) -> CloudEvent:
        machine = self._alive[due.what]
        if due.kind == LOST:
            self._end(machine, LOST, due.at)
        elif due.kind == NOTICE:
            return CloudEvent(due.at, NOTICE, machine, gone_at=due.at + self._faults.notice_seconds)
        else:
            machine.state = due.kind
            self._booting -= due.kind == VISIBLE
        return CloudEvent(due.at, due.kind, machine, why=due.why)

    def _market(self, key: Key, now: float) -> Iterator[CloudEvent]:
        """Capacity may have changed: machines beyond it are reclaimed, the youngest first; standing orders are filled."""
        alive = list(self._of_offering[key].values())
        for machine in alive[int(min(len(alive), self.markets.capacity(key, now))) :]:
            self._reclaim(machine, now)
        for order in self._wanting(key):
            answer = self._answer(order, now)
            if answer.answer is not None and answer.answer.machines:
                yield answer
        self._watched.discard(key)
        self._watch(key, now)

    def _reclaim(self, machine: CloudMachine, now: float) -> None:
        if machine.id in self._doomed:
            return
        self._doomed.add(machine.id)
        luck = random.Random(f"{self._seed}/reclaim/{machine.id}")
        gone = now + self._faults.reclaim.sample(luck)
        if luck.random() >= self._faults.without_notice:
            self._put(gone, NOTICE, machine.id)
            gone += self._faults.notice_seconds
        self._put(gone, LOST, machine.id, why=RECLAIMED)

    # Granting

    def _answer(self, order: _Order, now: float) -> CloudEvent:
        machines: list[CloudMachine] = []
        refusals: dict[Key, Refusal] = {}
        for key, wanted in self._shares(order):
            offering = self._offerings.get(key)
            if offering is None:
                refusals[key] = Refusal(UNKNOWN_OFFERING, key, wanted, f"no offering {'/'.join(key)}")
                continue
            granted, refusal = self._room(offering, wanted, now)
            if granted > 1 and offering.market == "spot":
                granted, refusal = self._part(offering, granted, refusal)
            machines += [self._buy(offering, order.token, now) for _ in range(granted)]
            order.missing -= granted
            if refusal is not None:
                refusals[key] = refusal
        order.answered = True
        if order.missing and order.standing:
            for key in order.offerings:
                self._watch(key, now)
        else:
            del self._orders[order.token]
        return CloudEvent(now, ANSWERED, answer=Answer(order.token, tuple(machines), tuple(refusals.values()), order.missing))

    def _shares(self, order: _Order) -> Iterator[tuple[Key, int]]:
        """What to try, in order: an offering and how many of it. Consumed while ``order.missing`` is counted down."""
        if order.spread and len(order.offerings) > 1:
            # Everybody's fair share, then the rest from whoever has more.
            share, more = divmod(order.missing, len(order.offerings))
            for number, key in enumerate(order.offerings):
                if share + (number < more):
                    yield key, share + (number < more)
        for key in order.offerings:
            if not order.missing:
                return
            yield key, order.missing

    def _wanting(self, key: Key) -> tuple[_Order, ...]:
        """Standing orders that were answered and lack machines of an offering."""
        return tuple(order for order in self._orders.values() if order.standing and order.answered and key in order.offerings)

    def _room(self, offering: Offering, count: int, now: float) -> tuple[int, Refusal | None]:
        """How many of ``count`` can be granted, and why not all."""
        key = offering.key
        granted, refusal = count, None
        capacity = min(self.markets.capacity(key, now), float("inf") if offering.count is None else offering.count)
        if (left := max(0.0, capacity - len(self._of_offering[key]))) < granted:
            granted = int(left)
            refusal = Refusal(NO_CAPACITY, key, count - granted, f"{'/'.join(key)} has {granted} machines left, {count} were asked")
        maximum = self._pools[offering.pool].max
        if maximum is not None and (left := max(0, maximum - self._in_pool[offering.pool])) < granted:
            granted = int(left)
            detail = f"pool {offering.pool} may have {maximum} machines and has {maximum - granted}, {count} were asked"
            refusal = Refusal(POOL_LIMIT, key, count - granted, detail)
        return granted, refusal

    def _part(self, offering: Offering, count: int, refusal: Refusal | None) -> tuple[int, Refusal | None]:
        """A spot market may have machines, and fewer than it was asked for."""
        luck = random.Random(f"{self._seed}/part/{len(self._all) + 1}")
        if luck.random() >= self._faults.partial_grants:
            return count, refusal
        granted = luck.randrange(1, count)
        missing = count - granted + (refusal.missing if refusal is not None else 0)
        detail = f"{'/'.join(offering.key)} had {granted} of {count} machines"
        return granted, Refusal(NO_CAPACITY, offering.key, missing, detail)

    def _buy(self, offering: Offering, token: str, now: float) -> CloudMachine:
        luck = random.Random(f"{self._seed}/{len(self._all) + 1}")
        registered = now + self._delays.boot.sample(luck)
        plugin = self._delays.device_plugin.sample(luck)
        if luck.random() < self._faults.never_registers:
            registered = float("inf")
        visible = registered + plugin if any(name not in KUBELET_RESOURCES for name in offering.allocatable) else registered
        machine = self._new(offering, token, now, registered=registered, visible=visible)
        if registered < float("inf"):
            self._booting += 1
            self._put(registered, REGISTERED, machine.id)
            self._put(visible, VISIBLE, machine.id)
        self._age(machine)
        return machine

    def _new(self, offering: Offering, token: str, now: float, *, registered: float, visible: float) -> CloudMachine:
        machine = CloudMachine(f"sim-{len(self._all) + 1:05d}", offering, token, BOOTING, now, registered, visible)
        self._all[machine.id] = self._alive[machine.id] = machine
        self._in_pool[offering.pool] += 1
        self._of_offering[offering.key][machine.id] = machine
        self._in_use[offering.key] = None
        self._watch(offering.key, now)
        return machine

    def _age(self, machine: CloudMachine) -> None:
        """Draw when the machine fails."""
        mean = self._faults.gpu_hours_between_failures
        if mean:
            luck = random.Random(f"{self._seed}/failure/{machine.id}")
            hours = luck.expovariate(1.0) * mean / gpus_of(machine.offering)
            self._put(machine.bought_at + 3600.0 * hours, LOST, machine.id, why=FAILED)

    def _end(self, machine: CloudMachine, state: str, now: float) -> None:
        if self._alive.pop(machine.id, None) is None:
            return
        self._booting -= machine.state in {BOOTING, REGISTERED} and machine.registered_at < float("inf")
        machine.state = state
        machine.ended_at = now
        self._in_pool[machine.offering.pool] -= 1
        del self._of_offering[machine.offering.key][machine.id]
        if not self._of_offering[machine.offering.key]:
            del self._in_use[machine.offering.key]

    def _watch(self, key: Key, now: float) -> None:
        """Look again when the capacity of an offering changes."""
        if key in self._watched or key not in self._offerings:
            return
        change = self.markets.next_change(key, now)
        if change is not None:
            self._watched.add(key)
            self._put(change, _MARKET, "", key)

    def _put(self, at: float, kind: str, what: str, key: Key = ("", "", "", ""), why: str = "") -> None:
        self._put_so_far += 1
        heapq.heappush(self._due, _Due(at, self._put_so_far, kind, what, key, why))


def gpus_of(offering: Offering) -> int:
    """Whole accelerators of a machine, at least 1."""
    return max(1, offering.allocatable.get("nvidia.com/gpu", 0))
