"""The simulated cloud as an asynchronous provider, with faults of calls to a cloud.

:meth:`SimulatedProvider.run` lets time pass: it advances the core and reports the events of machines.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.protocol import (
    CAPACITY,
    CONFIGURATION,
    INTERRUPTION,
    QUOTA,
    THROTTLED,
    UNKNOWN,
    BuyResult,
    CloudError,
    LostAnswerError,
    Notice,
    Order,
    Refusal,
    UnfilledOrder,
)
from gpuscaler.model.instances import PENDING, RUNNING, Delivery, Instance, Inventory
from gpuscaler.model.pools import Pool
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.machines import (
    BOOTING,
    NO_CAPACITY,
    NOTICE,
    POOL_LIMIT,
    QUOTA_FULL,
    UNKNOWN_OFFERING,
    CloudEvent,
    CloudMachine,
)
from gpuscaler.simulation.cloud.machines import PurchaseAnswer as CoreAnswer
from gpuscaler.simulation.cloud.state import CloudState

_CAUSES = {NO_CAPACITY: CAPACITY, POOL_LIMIT: QUOTA, QUOTA_FULL: QUOTA, UNKNOWN_OFFERING: CONFIGURATION}


class CallFaults(Struct, frozen=True, gc=False):
    """Faults of calls, as shares of all calls between 0 and 1.

    ``throttled`` calls are refused with ``retry_after`` seconds. ``lost`` calls never get their answer; half of them take effect all the
    same. ``stale_seconds`` is the delay of the inventory. Without ``tokens`` a repeated order buys again.
    """

    throttled: float = 0.0
    retry_after: float = 2.0
    lost: float = 0.0
    stale_seconds: float = 0.0
    tokens: bool = True


NO_CALL_FAULTS = CallFaults()
#: Prefix of machine ids.
SCHEME = "simulated:///"
#: A saved cloud contains machines that ended within the last so many seconds.
REMEMBERED = 3600.0


class ProviderState(Struct, frozen=True, gc=False):
    """A simulated cloud with its calls, for saving. ``began`` is second 0 of its markets, 0 if it never ran."""

    began: float = 0.0
    sent: int = 0
    notices: tuple[Notice, ...] = ()
    core: CloudState = CloudState()


async def save_nothing() -> None:
    """Save nothing, for a cloud that lives only as long as the process."""


class SimulatedProvider:
    """A :class:`~gpuscaler.clouds.protocol.Provider` over ``core``. ``now`` is the wall clock, in seconds since the epoch.

    ``listener`` gets every event of a machine as the core reports it; ended machines come with the state ``terminated``. While ``outage``
    is set to a sentence, every call fails with it. ``speed`` is how many seconds of ``now`` pass in one second of the event loop. ``keep``
    may be set to a function that saves :meth:`state`: it is called after every change that must not be lost, before the change is reported.
    """

    name = "simulated"

    def __init__(
        self,
        core: SimulatedCloud,
        pools: Iterable[Pool],
        *,
        now: Callable[[], float],
        listener: Callable[[CloudEvent], None],
        faults: CallFaults = NO_CALL_FAULTS,
        seed: int = 0,
        speed: float = 1.0,
    ) -> None:
        self.core = core
        self.outage = ""
        self.keep: Callable[[], Awaitable[None]] = save_nothing
        self.keeps_tokens = faults.tokens
        self.read_lag = faults.stale_seconds
        self._pools = tuple(pools)
        self._now, self._listener, self._faults, self._speed = now, listener, faults, speed
        self._luck = random.Random(f"{seed}/calls")
        self._answers: dict[str, asyncio.Future[CoreAnswer]] = {}
        self._notices: list[Notice] = []
        self._changed = asyncio.Event()
        self._sent = 0

    def state(self, began: float) -> ProviderState:
        """Return the state that a later process needs to continue."""
        now = self._now()
        return ProviderState(began, self._sent, tuple(self._notices), self.core.dump(ended_after=now - REMEMBERED))

    def resume(self, state: ProviderState) -> None:
        """Continue from ``state``, before anything else happens, and catch up with overdue events.

        The current markets are used, since settings may have changed.
        """
        now = self._now()
        self.core.restore(state.core)
        self._notices, self._sent = list(state.notices), state.sent
        for event in self.core.advance(now):
            self._process_event(event)
        self.core.check_markets(now)

    def set_pools(self, pools: Iterable[Pool]) -> None:
        """Offer other pools from now on; machines of the old ones stay."""
        self._pools = tuple(pools)
        self.core.set_pools(self._pools)

    async def run(self) -> None:
        """Let time pass, until cancelled."""
        while True:
            now = self._now()
            events = self.core.advance(now)
            if events:
                await self.keep()
            for event in events:
                self._process_event(event)
            self._changed.clear()
            following = self.core.next_event()
            # At least what a clock can resolve: in virtual time a shorter wait would never end.
            timeout = None if following is None else max(0.001, (following - now) / self._speed)
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _process_event(self, event: CloudEvent) -> None:
        if event.answer is not None:
            waiting = self._answers.get(event.answer.purchase)
            if waiting is not None and not waiting.done():
                waiting.set_result(event.answer)
            return
        if event.kind == NOTICE and event.machine is not None:
            self._notices.append(Notice(INTERRUPTION, provider_id(event.machine), event.gone_at))
        self._listener(event)

    # Calls

    async def pools(self) -> Sequence[Pool]:
        """The pools at the current prices."""
        await self._call()
        now, price = self._now(), self.core.markets.price
        return tuple(
            replace(pool, offerings=tuple(replace(offering, price=price(offering, now)) for offering in pool.offerings))
            for pool in self._pools
        )

    async def inventory(self) -> Inventory:
        await self._call()
        now = self._now()
        at = now - self._faults.stale_seconds
        machines = self.core.history() if self._faults.stale_seconds else self.core.list()
        listed = (machine for machine in machines if machine.bought_at <= at and (machine.ended_at is None or machine.ended_at > at))
        return Inventory(now, tuple(instance_of(machine, at, tagged=self.keeps_tokens) for machine in listed), self._deliveries(at))

    def _deliveries(self, at: float) -> tuple[Delivery, ...]:
        """What pools still owed at a moment, if they replace machines by themselves."""
        owed = self.core.replacements
        if owed is None:
            return ()
        failures = {pool.name: "no machine is available" if owed.failing(pool.name, at) else "" for pool in self._pools}
        return tuple(Delivery(name, owed.missing(name, at), failing) for name, failing in failures.items())

    async def buy(self, order: Order) -> BuyResult:
        answer_lost = await self._call(writes=True)
        token = order.token
        if not self.keeps_tokens:
            self._sent += 1
            token = f"{order.token}/{self._sent}"
        if token not in self._answers:
            self._answers[token] = asyncio.get_running_loop().create_future()
            if (before := self.core.answer(token)) is not None:
                self._answers[token].set_result(before)
            self.core.ask(token, order.offerings, count=order.count, now=self._now())
            self._changed.set()
            await self.keep()
        if answer_lost:
            raise LostAnswerError(f"the connection broke while order {order.token} was answered")
        answer = await asyncio.shield(self._answers[token])
        return BuyResult(
            instances=tuple(instance_of(machine, self._now(), tagged=self.keeps_tokens) for machine in answer.machines),
            refusals=tuple(
                Refusal(
                    _CAUSES.get(refusal.kind, UNKNOWN),
                    refusal.offering,
                    refusal.detail,
                    bucket=refusal.bucket,
                    every_zone=bool(refusal.bucket),
                )
                for refusal in answer.refusals
            ),
        )

    async def follow(self, _orders: Sequence[UnfilledOrder], /) -> Sequence[tuple[str, BuyResult]]:
        """Return nothing: the simulated cloud answers orders at once, or when they are sent again."""
        return ()

    async def withdraw(self, unfilled: UnfilledOrder, /) -> None:
        await self._call(writes=True)
        self.core.withdraw(unfilled.order.token)
        await self.keep()

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        answer_lost = await self._call(writes=True)
        by_id = {provider_id(machine): machine for machine in self.core.list()}
        for name in ids:
            if name in by_id:
                ended = self.core.terminate(by_id[name].id, self._now())
                self._listener(CloudEvent(self._now(), ended.state, ended))
        self._changed.set()
        await self.keep()
        if answer_lost:
            raise LostAnswerError(f"the connection broke while {len(ids)} machines were ended")
        return dict.fromkeys(ids)

    async def extend(self, ids: Sequence[str]) -> None:
        """Do nothing: no lifecycle hook holds a machine that is being ended."""

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        """Do nothing: no other process ends machines here."""

    async def notices(self) -> Sequence[Notice]:
        await self._call()
        notices, self._notices = self._notices, []
        return notices

    async def close(self) -> None:
        """Do nothing: no connection is open."""

    async def _call(self, *, writes: bool = False) -> bool:
        """Fail as clouds do; return whether the answer is lost although the call takes effect."""
        await asyncio.sleep(0)
        if self.outage:
            raise CloudError(UNKNOWN, self.outage)
        if self._luck.random() < self._faults.throttled:
            raise CloudError(THROTTLED, "Request limit exceeded.", retry_after=self._faults.retry_after)
        if self._luck.random() >= self._faults.lost:
            return False
        if not writes or self._luck.random() < 0.5:
            raise LostAnswerError("the connection broke before the call was made")
        return True


def provider_id(machine: CloudMachine) -> str:
    """The ``spec.providerID`` of the machine's Node."""
    return f"{SCHEME}{machine.offering.zone or 'zone'}/{machine.id}"


def instance_of(machine: CloudMachine, now: float, *, tagged: bool) -> Instance:
    pool, market, instance_type, zone = machine.offering.key
    state = PENDING if machine.state == BOOTING and now < machine.registered_at else RUNNING
    token = machine.purchase if tagged else ""
    ends = machine.offering.ends
    return Instance(provider_id(machine), pool, market, instance_type, zone, state, machine.bought_at, token, machine.fault, ends)
