"""The simulated cloud's core: the life of machines from order to termination. No I/O, no clock.

Machines are ordered, granted or refused, boot, show their GPUs, fail, and are reclaimed. The caller asks :meth:`SimulatedCloud.next_event`
when something will happen next, and calls :meth:`SimulatedCloud.advance` with the current time. Time is seconds since the epoch and never
runs backwards.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from copy import copy

from gpuscaler.model.offerings import NO_OFFERING, OfferingKey
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delays, Faults
from gpuscaler.simulation.cloud.fleet import Fleet
from gpuscaler.simulation.cloud.machines import (
    ANSWERED,
    BOOTING,
    FAILED,
    IMPAIRED,
    LOST,
    NO_CAPACITY,
    NOTICE,
    RECLAIMED,
    REGISTERED,
    TERMINATED,
    UNKNOWN_OFFERING,
    VISIBLE,
    CloudEvent,
    CloudMachine,
    PurchaseAnswer,
    Refusal,
    is_device,
)
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.cloud.replacing import REPLACE, RETRY_SECONDS, Replacements
from gpuscaler.simulation.cloud.room import Quota, grantable
from gpuscaler.simulation.cloud.state import FORM, CloudState, DueEvent, StandingOrder, machine_from_row, machine_rows

#: Billing is by the second with a minimum of a minute, as EC2 bills on-demand Linux machines.
MINIMUM_BILLED_SECONDS = 60.0

#: Internal kinds of due events: the answer to an order, a change of a market's capacity.
_ORDER, _MARKET = "order", "market"


class SimulatedCloud:
    """Machines of ``pools`` that are ordered and ended by calls and change with time and ``markets``, within ``quotas``.

    The random draws of the n-th machine and of the n-th purchase depend only on ``seed`` and n, so that two policies compared on one seed
    get the same draws. ``ids`` is the format of machine ids; it is filled in with n.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        *,
        seed: int = 0,
        delays: Delays | None = None,
        faults: Faults = NO_FAULTS,
        markets: Markets | None = None,
        quotas: Iterable[Quota] = (),
        ids: str = "sim-{:05d}",
    ) -> None:
        self._seed, self._ids = seed, ids
        self._quotas = tuple(quotas)
        self._delays = delays or Delays()
        self._faults = faults
        self.markets = markets or Markets()
        self._fleet = Fleet()
        #: Machines that pools launch by themselves to replace lost ones; None if pools do not do that.
        self.replacements = Replacements() if faults.group_replaces else None
        self.set_pools(pools)
        #: Tokens seen so far, with the refusals of their orders.
        self._answers: dict[str, tuple[Refusal, ...]] = {}
        self._asked = 0
        #: The time at which the image is on each machine.
        self._images: dict[str, float] = {}
        self._orders: dict[str, StandingOrder] = {}
        self._unanswered = 0
        self._booting = 0
        self._watched: set[OfferingKey] = set()
        self._doomed: set[str] = set()
        self._due: list[DueEvent] = []
        self._events_scheduled = 0

    # Calls

    def ask(
        self, token: str, offerings: tuple[OfferingKey, ...], *, count: int, now: float, spread: bool = False, standing: bool = False
    ) -> None:
        """Order ``count`` machines of any of ``offerings``, in that order or in turn (``spread``); the answer comes as an event.

        The unfilled part of a ``standing`` order is granted when capacity comes, until the order is withdrawn. A repeated ``token`` orders
        nothing.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if token in self._answers:
            return
        self._answers[token] = ()
        self._asked += 1
        self._orders[token] = StandingOrder(token, offerings, count, spread, standing)
        self._unanswered += 1
        luck = random.Random(f"{self._seed}/answer/{self._asked}")
        self._schedule(now + self._delays.answer.sample(luck), _ORDER, token)

    def withdraw(self, token: str) -> None:
        """Cancel the unfilled part of an order. An order that has not been answered yet still gets its answer."""
        order = self._orders.get(token)
        if order is not None:
            order.standing = False
            if order.answered:
                del self._orders[token]

    def unanswered(self, token: str) -> bool:
        """Whether a purchase has not been answered yet."""
        return token in self._orders and not self._orders[token].answered

    def answer(self, token: str) -> PurchaseAnswer | None:
        """Return the answer to an order again; None if it has not been answered yet, or was never made."""
        if token not in self._answers or self.unanswered(token):
            return None
        return PurchaseAnswer(
            token, tuple(machine for machine in self._fleet.all.values() if machine.purchase == token), self._answers[token]
        )

    def image_pull(self, machine_id: str, now: float) -> float:
        """Return the seconds until a pod's image is on a machine: the first pod pulls it, later pods wait for the same pull."""
        if machine_id not in self._images:
            self._images[machine_id] = now + self._delays.image_pull.sample(random.Random(f"{self._seed}/image/{machine_id}"))
        return max(0.0, self._images[machine_id] - now)

    def plugin_pull(self, machine_id: str) -> float:
        """Return the seconds until a device plugin's image is on a machine: a tenth of a job's image, since it is small."""
        return self._delays.image_pull.sample(random.Random(f"{self._seed}/plugin/{machine_id}")) / 10.0

    def kubelet_lifetime(self, machine_id: str) -> float:
        """Return the seconds after which the kubelet of a machine stops for good."""
        luck = random.Random(f"{self._seed}/kubelet/{machine_id}")
        return luck.expovariate(1.0) * self._faults.kubelet_hours * 3600.0 if self._faults.kubelet_hours else float("inf")

    def start(self, key: OfferingKey, now: float) -> CloudMachine:
        """Add a machine that exists from the beginning, open from ``now`` on. An unknown offering raises KeyError."""
        machine = self._add_machine(self._offerings[key], "start", now, registered=now, visible=now)
        machine.state = VISIBLE
        self._schedule_failure(machine)
        return machine

    def terminate(self, machine_id: str, now: float) -> CloudMachine:
        """End a machine at once. Ending it again changes nothing; an unknown id raises KeyError."""
        machine = self.machine(machine_id)
        alive = machine.id in self._fleet.alive
        self._end(machine, TERMINATED, now)
        pool = self._pools.get(machine.offering.pool)
        if alive and pool is not None and self._fleet.in_pool[pool.name] < pool.min:
            self._owe_replacement(machine, now)
        return machine

    # Reading

    def machine(self, machine_id: str) -> CloudMachine:
        """A machine by its id, ended or not; an unknown id raises KeyError."""
        return self._fleet.all[machine_id]

    def list(self) -> tuple[CloudMachine, ...]:
        """The existing machines, oldest first."""
        return tuple(self._fleet.alive.values())

    def history(self) -> tuple[CloudMachine, ...]:
        """Every machine that was ever granted, oldest first."""
        return tuple(self._fleet.all.values())

    @property
    def busy(self) -> bool:
        """Whether an answer or a machine is on its way."""
        return self._unanswered > 0 or self._booting > 0

    def billed_seconds(self, machine: CloudMachine, now: float) -> float:
        """Return the seconds billed up to ``now``: from the grant to the end, at least one minute."""
        end = machine.ended_at if machine.ended_at is not None else now
        return max(MINIMUM_BILLED_SECONDS, end - machine.bought_at)

    def cost(self, machine: CloudMachine, now: float) -> float:
        """Return the US dollars billed up to ``now``, each second at its price at the time."""
        began = machine.bought_at
        return self.markets.cost(machine.offering, began, began + self.billed_seconds(machine, now))

    def dollars_per_hour(self, now: float) -> float:
        """Return the current cost of all existing machines in US dollars per hour."""
        alive = (self._fleet.of_offering[key].values() for key in self._fleet.in_use)
        return sum(len(values) * self.markets.price(next(iter(values)).offering, now) for values in alive)

    def set_pools(self, pools: Iterable[Pool]) -> None:
        """Offer other pools from now on; machines of the old ones stay."""
        self._pools = {pool.name: pool for pool in pools}
        self._offerings = {offering.key: offering for pool in self._pools.values() for offering in pool.offerings}
        self._fleet.add_index_entries(self._pools, self._offerings)

    # Saving

    def dump(self, *, ended_after: float = float("-inf"), tokens: int = 1_000) -> CloudState:
        """Return the whole state, without machines that ended before ``ended_after`` and with only the last ``tokens`` tokens."""
        machines = [machine for machine in self._fleet.all.values() if machine.ended_at is None or machine.ended_at > ended_after]
        offerings, rows = machine_rows(machines, self._images)
        last = set(list(self._answers)[-tokens:]) | self._orders.keys()
        return CloudState(
            granted=self._fleet.granted,
            asked=self._asked,
            put=self._events_scheduled,
            offerings=offerings,
            machines=rows,
            answers=tuple(item for item in self._answers.items() if item[0] in last),
            orders=tuple(copy(order) for order in self._orders.values()),
            in_use=tuple(self._fleet.in_use),
            doomed=tuple(sorted(self._doomed & self._fleet.alive.keys())),
            due=tuple(sorted(due for due in self._due if due.kind in {_ORDER, _MARKET, REPLACE} or due.what in self._fleet.alive)),
        )

    def restore(self, state: CloudState) -> None:
        """Load a saved state into a cloud in which nothing has happened yet. :meth:`advance` catches up with overdue events."""
        if state.form != FORM:
            raise ValueError(f"saw a saved cloud of form {state.form}, expected {FORM}")
        self._fleet.granted, self._asked, self._events_scheduled = state.granted, state.asked, state.put
        self._fleet.in_use = dict.fromkeys(state.in_use)
        # Machines share their offering with the pools if the pools still have it.
        offerings = tuple(
            offering if (current := self._offerings.get(offering.key)) != offering else current for offering in state.offerings
        )
        for row in state.machines:
            self._fleet.admit(machine_from_row(row, offerings))
            if row.image_at is not None:
                self._images[row.id] = row.image_at
        self._answers = dict(state.answers)
        self._orders = {order.token: copy(order) for order in state.orders}
        self._doomed = set(state.doomed)
        self._due = list(state.due)
        self._watched = {due.key for due in state.due if due.kind == _MARKET}
        self._unanswered = sum(not order.answered for order in self._orders.values())
        self._booting = sum(machine.arrives for machine in self._fleet.alive.values())

    def check_markets(self, now: float) -> None:
        """Check all markets ``now``, since their settings may have changed: machines beyond their capacity are reclaimed."""
        self._due = [due for due in self._due if due.kind != _MARKET]
        heapq.heapify(self._due)
        self._watched.clear()
        ordered = [key for order in self._orders.values() for key in order.offerings]
        for key in dict.fromkeys([*self._fleet.in_use, *ordered]):
            if key in self._fleet.of_offering:
                self._watched.add(key)
                self._schedule(now, _MARKET, "", key)

    # Time

    def next_event(self) -> float | None:
        """Return the time of the next event, or None."""
        while self._due and not self._is_relevant(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0].at if self._due else None

    def advance(self, now: float) -> tuple[CloudEvent, ...]:
        """Return the events up to and including ``now``, in order of time."""
        return tuple(self._events_until(now))

    def _events_until(self, now: float) -> Iterator[CloudEvent]:
        while (at := self.next_event()) is not None and at <= now:
            due = heapq.heappop(self._due)
            if due.kind == _ORDER:
                self._unanswered -= 1
                yield self._fill_order(self._orders[due.what], at)
            elif due.kind == _MARKET:
                yield from self._change_capacity(due.key, at)
            elif due.kind == REPLACE:
                self._launch_replacement(due)
            else:
                yield self._change_machine(due)

    def _is_relevant(self, due: DueEvent) -> bool:
        if due.kind == _MARKET and not self._fleet.of_offering.get(due.key) and not self._unfilled_orders(due.key):
            self._watched.discard(due.key)
            return False
        return due.kind in {_ORDER, _MARKET, REPLACE} or due.what in self._fleet.alive

    def _change_machine(self, due: DueEvent) -> CloudEvent:
        machine = self._fleet.alive[due.what]
        if due.kind == LOST:
            self._end(machine, LOST, due.at)
            self._owe_replacement(machine, due.at)
        elif due.kind == NOTICE:
            return CloudEvent(due.at, NOTICE, machine, gone_at=due.at + self._faults.notice_seconds)
        else:
            machine.state = due.kind
            self._booting -= due.kind == VISIBLE
        return CloudEvent(due.at, due.kind, machine, why=due.why)

    def _change_capacity(self, key: OfferingKey, now: float) -> Iterator[CloudEvent]:
        """Handle a change of capacity: reclaim machines beyond it, the youngest first, and fill standing orders."""
        alive = list(self._fleet.of_offering[key].values())
        for machine in alive[int(min(len(alive), self.markets.capacity(key, now))) :]:
            self._reclaim(machine, now)
        for order in self._unfilled_orders(key):
            answer = self._fill_order(order, now)
            if answer.answer is not None and answer.answer.machines:
                yield answer
        self._watched.discard(key)
        self._watch(key, now)

    def _reclaim(self, machine: CloudMachine, now: float) -> None:
        if machine.id in self._doomed:
            return
        self._doomed.add(machine.id)
        luck = random.Random(f"{self._seed}/reclaim/{machine.id}")
        at = now + self._faults.reclaim.sample(luck)
        if luck.random() >= self._faults.without_notice:
            self._schedule(at, NOTICE, machine.id)
            at += self._faults.notice_seconds
        self._schedule(at, LOST, machine.id, why=RECLAIMED)

    # Replacing

    def _owe_replacement(self, machine: CloudMachine, now: float) -> None:
        """Have the pool launch another machine to replace one that is gone."""
        if self.replacements is not None:
            self.replacements.add(machine.id, machine.offering.pool, now)
            luck = random.Random(f"{self._seed}/replacement/{machine.id}")
            self._schedule(now + self._delays.answer.sample(luck), REPLACE, machine.id, machine.offering.key)

    def _launch_replacement(self, due: DueEvent) -> None:
        """Launch the replacement that the pool owes, in the same market if possible; retry later if there is no capacity."""
        pool = self._pools.get(due.key.pool)
        if pool is None or self.replacements is None:
            return
        for offering in sorted(pool.offerings, key=lambda offering: (offering.key != due.key, offering.market != due.key.market)):
            capacity = self.markets.capacity(offering.key, due.at)
            granted, _ = grantable(offering, 1, capacity=capacity, pool=pool, fleet=self._fleet, quotas=self._quotas)
            if granted and offering.market == due.key.market:
                self._buy(offering, f"replacing {due.what}", due.at)
                self.replacements.record_launch(due.what, due.at)
                return
        self.replacements.record_failure(due.what, due.at)
        self._schedule(due.at + RETRY_SECONDS, REPLACE, due.what, due.key)

    # Granting

    def _fill_order(self, order: StandingOrder, now: float) -> CloudEvent:
        machines: list[CloudMachine] = []
        refusals: dict[OfferingKey, Refusal] = {}
        for key, count in order.shares():
            offering = self._offerings.get(key)
            if offering is None:
                refusals[key] = Refusal(UNKNOWN_OFFERING, key, count, f"no offering {'/'.join(key)}")
                continue
            pool, capacity = self._pools[offering.pool], self.markets.capacity(key, now)
            granted, refusal = grantable(offering, count, capacity=capacity, pool=pool, fleet=self._fleet, quotas=self._quotas)
            if granted > 1 and offering.market == "spot":
                granted, refusal = self._grant_part(offering, granted, refusal)
            machines += [self._buy(offering, order.token, now) for _ in range(granted)]
            order.missing -= granted
            if refusal is not None:
                refusals[key] = refusal
        order.answered = True
        self._answers[order.token] = tuple(refusals.values())
        if order.missing and order.standing:
            for key in order.offerings:
                self._watch(key, now)
        else:
            del self._orders[order.token]
        return CloudEvent(now, ANSWERED, answer=PurchaseAnswer(order.token, tuple(machines), tuple(refusals.values()), order.missing))

    def _unfilled_orders(self, key: OfferingKey) -> tuple[StandingOrder, ...]:
        """Answered standing orders that still lack machines of an offering."""
        return tuple(order for order in self._orders.values() if order.standing and order.answered and key in order.offerings)

    def _grant_part(self, offering: Offering, count: int, refusal: Refusal | None) -> tuple[int, Refusal | None]:
        """A spot market may have fewer machines than were asked for."""
        luck = random.Random(f"{self._seed}/part/{self._fleet.granted + 1}")
        if luck.random() >= self._faults.partial_grants:
            return count, refusal
        granted = luck.randrange(1, count)
        missing = count - granted + (refusal.missing if refusal is not None else 0)
        detail = f"{'/'.join(offering.key)} had {granted} of {count} machines"
        return granted, Refusal(NO_CAPACITY, offering.key, missing, detail)

    def change_faults(self, faults: Faults) -> None:
        """From now on, purchased and running machines fail as ``faults`` say."""
        self._faults = faults

    def _buy(self, offering: Offering, token: str, now: float) -> CloudMachine:
        luck = random.Random(f"{self._seed}/{self._fleet.granted + 1}")
        registered = now + self._delays.boot.sample(luck)
        plugin = self._delays.device_plugin.sample(luck)
        if luck.random() < self._faults.never_registers:
            registered = float("inf")
        devices = any(map(is_device, offering.allocatable))
        visible = registered + plugin if devices else registered
        if devices and self._faults.never_visible and luck.random() < self._faults.never_visible:
            visible = float("inf")
        machine = self._add_machine(offering, token, now, registered=registered, visible=visible)
        if registered == float("inf") and self._faults.impaired and luck.random() < self._faults.impaired:
            machine.fault = IMPAIRED
        if registered < float("inf"):
            self._schedule(registered, REGISTERED, machine.id)
        if visible < float("inf"):
            self._booting += 1
            self._schedule(visible, VISIBLE, machine.id)
        self._schedule_failure(machine)
        return machine

    def _add_machine(self, offering: Offering, token: str, now: float, *, registered: float, visible: float) -> CloudMachine:
        self._fleet.granted += 1
        machine = CloudMachine(self._ids.format(self._fleet.granted), offering, token, BOOTING, now, registered, visible)
        self._fleet.admit(machine)
        self._watch(offering.key, now)
        return machine

    def _schedule_failure(self, machine: CloudMachine) -> None:
        """Draw when the machine fails."""
        mean = self._faults.gpu_hours_between_failures
        if mean:
            luck = random.Random(f"{self._seed}/failure/{machine.id}")
            hours = luck.expovariate(1.0) * mean / machine.accelerators
            self._schedule(machine.bought_at + 3600.0 * hours, LOST, machine.id, why=FAILED)

    def _end(self, machine: CloudMachine, state: str, now: float) -> None:
        if machine.id in self._fleet.alive:
            self._booting -= machine.arrives
            self._fleet.end(machine, state, now)

    def _watch(self, key: OfferingKey, now: float) -> None:
        """Schedule a check for the next change of an offering's capacity."""
        if key in self._watched or key not in self._offerings:
            return
        change = self.markets.next_change(key, now)
        if change is not None:
            self._watched.add(key)
            self._schedule(change, _MARKET, "", key)

    def _schedule(self, at: float, kind: str, what: str, key: OfferingKey = NO_OFFERING, why: str = "") -> None:
        self._events_scheduled += 1
        heapq.heappush(self._due, DueEvent(at, self._events_scheduled, kind, what, key, why))
