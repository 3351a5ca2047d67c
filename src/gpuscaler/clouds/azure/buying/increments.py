"""Orders that are placed by raising a capacity: each is followed by its operation until its machines are there or Azure gave up.

Azure tries once: when the operation has ended, what did not come will not come. So a refusal is reported as soon as the end is known, and
what the attempt left behind is cleared afterwards: entries of machines that were never allocated are deleted by id, and a number without
machines is lowered. Nothing here must survive the process: an order of another one is continued from the URL of its operation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import Arm, GoneError
from gpuscaler.clouds.azure.buying.attribution import Attribution
from gpuscaler.clouds.azure.buying.clearing import Clearing
from gpuscaler.clouds.azure.buying.deletions import Deletions
from gpuscaler.clouds.azure.buying.groups import Group, group_of
from gpuscaler.clouds.azure.buying.increment import Increment, Refuse, refused
from gpuscaler.clouds.azure.buying.progress import Progress
from gpuscaler.clouds.azure.buying.raising import SELDOM_SECONDS, Raising, passes_soon, postpone
from gpuscaler.clouds.azure.buying.settling import OBSERVE_SECONDS, Settling
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.protocol import (
    CONFIGURATION,
    THROTTLED,
    UNKNOWN,
    BuyResult,
    CloudError,
    Order,
    UnfilledOrder,
)

_LOG = structlog.get_logger(__name__)
#: The time for an order until it is left to :meth:`Increments.follow`, in seconds.
ORDER_SECONDS: Final = 6.0
#: The most answers that are kept for the next question.
MOST_ANSWERS: Final = 1000
#: How long a group is not asked again after Azure said that another operation runs in it, in seconds.
BUSY_SECONDS: Final = 30.0
#: How long an order is kept in all while another order's operation runs in its group, and while one of others does, in seconds.
BEHIND_OURS, BEHIND_OTHERS = 300.0, 90.0


class Increments:
    """Raises capacities for orders. ``attribution`` knows which machines came of them, ``deletions`` are those that run.

    ``known`` returns the machines of a pool on its last list.
    """

    def __init__(
        self,
        arm: Arm,
        *,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        refuse: Refuse,
        known: Callable[[AzurePool], Sequence[VirtualMachine]],
    ) -> None:
        self._arm, self._now, self._sleep, self._refuse = arm, now, sleep, refuse
        self._open: dict[str, Increment] = {}
        self._settled: dict[str, None] = {}
        self._late_answers: list[tuple[str, BuyResult]] = []
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._tending: asyncio.Task[None] | None = None
        self.deletions = Deletions(now=now)
        self._clearing = Clearing(self.deletions, now=now, lock=self.lock, expected=self.unfilled, runs=self.is_running)
        self._raising = Raising(self._open, self.deletions, self._clearing, now=now, refuse=refuse, known=known)
        self.attribution = Attribution(self._open)
        progress = Progress(arm, self._open, self.attribution, now=now)
        self._settling = Settling(
            self._open, progress, self.attribution, now=now, refuse=refuse, finish=self._mark_final, clear_up=self._clear_up
        )

    def lock(self, group: Group) -> asyncio.Lock:
        """The lock of a resource: an agent pool's profiles share theirs."""
        return self._locks.setdefault(group.key[0], asyncio.Lock())

    def unfilled(self, group: Group) -> int:
        """How many machines open orders of this process still expect in ``group``."""
        return sum(increment.missing for increment in self._open.values() if increment.group.key == group.key and not increment.queued)

    @property
    def watched(self) -> frozenset[str]:
        """Keys of the resources in which something of ours is going on: their machines are listed again."""
        return self._clearing.watched | {increment.group.key[0] for increment in self._open.values()}

    # Buying

    async def buy(self, azure_pool: AzurePool, order: Order) -> BuyResult:
        """Raise the capacity, and return what is known of it within an order's time."""
        return await self._finish_shielded(self._buy(azure_pool, order), order)

    async def _buy(self, azure_pool: AzurePool, order: Order) -> BuyResult:
        group, began = group_of(self._arm, azure_pool, order.offerings[0].instance_type), self._now()
        increment = Increment(order, azure_pool, group, frozenset(), began)
        async with self.lock(group):
            if order.token in self._settled:
                # It was withdrawn while it waited for the group.
                return BuyResult()
            if group.one_at_a_time and self._is_busy(group):
                return self._queue(increment)
            try:
                answer = await self._raising.place([increment])
            except CloudError as error:
                if not passes_soon(error):
                    raise
                postpone(increment, error, self._now())
                return self._queue(increment)
        if answer is not None:
            return answer
        return await self._wait_for(increment, until=began + ORDER_SECONDS)

    def _queue(self, increment: Increment) -> BuyResult:
        """Keep an order until its group takes it: another operation runs, or Azure asked to wait for a moment."""
        increment.queued, increment.queued_at = True, self._now()
        self._open[increment.order.token] = increment
        return BuyResult(pending=increment.order.count)

    def _is_busy(self, group: Group) -> bool:
        """Whether an operation of ours runs, or orders wait, in the resource of ``group``."""
        return any(not increment.ended_at for increment in self._open_in(group))

    def is_running(self, group: Group) -> bool:
        """Whether an operation of ours runs in the resource of ``group``."""
        return any(not (increment.queued or increment.ended_at) for increment in self._open_in(group))

    def _open_in(self, group: Group) -> list[Increment]:
        """Open orders in the resource of ``group``."""
        return [increment for increment in self._open.values() if increment.group.key[0] == group.key[0]]

    async def _wait_for(self, increment: Increment, until: float) -> BuyResult:
        increment.awaited = True
        try:
            settled = await self._settled_within(increment, until)
        finally:
            increment.awaited = False
        return settled or BuyResult(self._settling.machines_of(increment), increment.missing, operation=increment.url)

    async def _settled_within(self, increment: Increment, until: float) -> BuyResult | None:
        while self._now() + OBSERVE_SECONDS < until:
            await self._sleep(OBSERVE_SECONDS)
            for _, answer in await self._settling.settle([increment]):
                # It was raised: an error of reading says nothing about the order, which is followed on.
                return None if isinstance(answer, CloudError) else answer
        return None

    # Following

    async def follow(self, tokens: Collection[str]) -> list[tuple[str, BuyResult]]:
        """Final answers of the orders with these tokens, each returned once."""
        failure = await self._settle_all()
        self.tend_soon()
        answered = [answer for answer in self._late_answers if answer[0] in tokens]
        if failure is not None and not answered:
            raise failure
        self._late_answers = [answer for answer in self._late_answers if answer[0] not in tokens]
        return answered

    async def _settle_all(self) -> CloudError | None:
        """Send orders that waited, and settle those that have an outcome; returns an error if the outcome of one cannot be read."""
        await self._send_queued()
        by_resource: dict[str, list[Increment]] = {}
        for increment in self._open.values():
            if not (increment.queued or increment.awaited):
                by_resource.setdefault(increment.group.key[0], []).append(increment)
        unread = [entry for entries in await asyncio.gather(*map(self._settle, by_resource.values())) for entry in entries]
        if len(unread) == sum(map(len, by_resource.values())):
            return unread[0][1] if unread else None
        # The others are followed as often as before.
        for increment, error in unread:
            if increment.read_at == 0.0:
                _LOG.warning("an order cannot be followed", order=increment.order.token, group=increment.group.name, problem=str(error))
            increment.read_at = self._now() + SELDOM_SECONDS
        return None

    async def _settle(self, increments: Iterable[Increment]) -> list[tuple[Increment, CloudError]]:
        """Keep the answers to orders that have an outcome; returns those about which nothing could be read."""
        unread = []
        for increment, answer in await self._settling.settle(increments):
            if isinstance(answer, CloudError):
                unread.append((increment, answer))
            else:
                self._keep_answer(increment.order, answer)
        return unread

    def _keep_answer(self, order: Order, answer: BuyResult) -> None:
        self._late_answers = [*self._late_answers[-MOST_ANSWERS:], (order.token, answer)]

    def refuse_queued(self, pools: Collection[str]) -> None:
        """Send no order that waits to other pools than these: the others are no longer used."""
        for increment in tuple(self._open.values()):
            if increment.queued and increment.order.pool not in pools:
                detail = f"{increment.group.name} is no longer used, so what was still to be ordered there is not"
                self._keep_answer(increment.order, refused(increment.order, CONFIGURATION, detail))
                self._mark_final(increment)

    def resume(self, rest: UnfilledOrder, azure_pool: AzurePool, *, in_doubt: bool = False) -> None:
        """Continue an order of another process, with ``in_doubt`` also one of which it is not known whether it was sent.

        Which of its machines have come only the caller knows, from the list; so ``rest.missing`` is what counts, as it is now.
        """
        order = replace(rest.order, count=rest.missing)
        increment = self._open.get(order.token)
        if increment is not None and increment.resumed:
            increment.order = order
        elif increment is None and order.token not in self._settled and (rest.accepted or in_doubt):
            group = group_of(self._arm, azure_pool, order.offerings[0].instance_type)
            self._open[order.token] = Increment(order, azure_pool, group, frozenset(), rest.at, url=rest.operation, resumed=True)

    def drop_resumed_except(self, tokens: Collection[str]) -> None:
        """Drop resumed orders other than ``tokens``: the dropped orders lack no machines any more."""
        for token in [token for token, increment in self._open.items() if increment.resumed and token not in tokens]:
            del self._open[token]

    async def withdraw(self, rest: UnfilledOrder) -> None:
        """Withdraw what an order still lacks; machines that exist stay. Raises CloudError if that is not possible yet."""
        increment = self._open.get(rest.order.token)
        if increment is None:
            # One that waits for its group, or its answer, is not sent any more.
            self._add_settled(rest.order.token)
            return
        if increment.queued:
            self._mark_final(increment)
            return
        async with self.lock(increment.group):
            try:
                count, machines = await increment.group.count()
            except GoneError:
                self._mark_final(increment)
                return
            if increment.order.token not in self._open:
                return
            self.attribution.assign(increment, machines)
            if increment.missing:
                if count.busy:
                    # What comes may not be listed yet, and Azure would end machines of its choice instead.
                    detail = f"{increment.group.name} cannot be lowered while an operation runs"
                    raise CloudError(THROTTLED, detail, retry_after=BUSY_SECONDS)
                self._clear_up(increment)
            self._mark_final(increment)
        self.tend_soon()

    def _clear_up(self, increment: Increment) -> None:
        """Clear what an order lacks in the end."""
        since = increment.at if increment.resumed else 0.0
        self._clearing.add(increment.group, increment.missing, since=since, before=increment.before)

    async def _send_queued(self) -> None:
        """Send orders that waited: all of one group in one write, of several groups of a resource those of the oldest order."""
        groups: dict[str, Group] = {}
        for increment in self._open.values():
            if increment.queued:
                groups.setdefault(increment.group.key[0], increment.group)
        for group in groups.values():
            async with self.lock(group):
                if not (group.one_at_a_time and self.is_running(group)):
                    await self._send_queued_of(group)
        self._refuse_overdue()

    def _refuse_overdue(self) -> None:
        """Answer orders that waited for too long."""
        now = self._now()
        for increment in tuple(self._open.values()):
            waits = now - increment.queued_at
            if increment.queued and waits >= (BEHIND_OURS if self.is_running(increment.group) else BEHIND_OTHERS):
                why = "other operations run, or Azure limits calls or does not answer"
                detail = f"{increment.group.name} has taken no order for {waits:.0f} s: {why}"
                # As throttled, it would close all offerings of the region.
                self._keep_answer(increment.order, refused(increment.order, UNKNOWN, detail, BUSY_SECONDS))
                self._mark_final(increment)

    async def _send_queued_of(self, group: Group) -> None:
        queued = [increment for increment in self._open.values() if increment.queued and increment.group.key == group.key]
        if not queued or not await self._raising.may_take(queued):
            return
        try:
            answer = await self._raising.place(queued)
        except CloudError as error:
            if passes_soon(error):
                for increment in queued:
                    postpone(increment, error, self._now())
                return
            answer = refused(queued[0].order, error.cause, error.detail, error.retry_after)
        if answer is not None:
            for increment in queued:
                self._keep_answer(increment.order, answer)
                self._mark_final(increment)

    def _mark_final(self, increment: Increment) -> None:
        self._open.pop(increment.order.token, None)
        self._add_settled(increment.order.token)

    def _add_settled(self, token: str) -> None:
        self._settled[token] = None
        while len(self._settled) > 1000:
            del self._settled[next(iter(self._settled))]

    # Beside the controller's questions

    def tend_soon(self) -> None:
        """Begin to settle orders that are not asked about any more, and to clear what failed attempts left behind, unless that goes on."""
        if (self._open or self._clearing) and (self._tending is None or self._tending.done()):
            self._tending = asyncio.create_task(self._tend())
            self._tasks.add(self._tending)
            self._tending.add_done_callback(self._tended)

    async def _tend(self) -> None:
        await self._settle_all()
        await self._clearing.clear()

    def _tended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The controller asks, too, and gets the error itself.
            _LOG.debug("orders could not be followed", problem=str(error))

    # Tasks

    async def close(self) -> None:
        """Cancel what is in progress; a call that was already sent ends by itself."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish_shielded(self, call: Awaitable[BuyResult], order: Order) -> BuyResult:
        """Let ``call`` finish even if the caller is cancelled, since its changes must be known. :meth:`follow` then returns the answer."""
        task: asyncio.Task[BuyResult] = asyncio.ensure_future(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            def keep(ended: asyncio.Task[BuyResult]) -> None:
                if ended.cancelled() or order.token in self._open:
                    return
                error = ended.exception()
                if error is None:
                    self._keep_answer(order, ended.result())
                elif isinstance(error, CloudError):
                    self._keep_answer(order, refused(order, error.cause, error.detail, error.retry_after))

            task.add_done_callback(keep)
            raise
