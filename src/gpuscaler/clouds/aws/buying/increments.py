"""Orders that are placed by raising a group's desired capacity: each is followed until it is filled, or failed and the rest is withdrawn.

Nothing here must survive the process: callers pass in what is needed to continue an order of another process.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final

from msgspec.structs import replace

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.buying.activities import LaunchReport
from gpuscaler.clouds.aws.buying.buying import (
    OBSERVE_SECONDS,
    ORDER_SECONDS,
    READ_LAG,
    Increment,
    answer_so_far,
    least_weight,
    raise_capacity,
    read_results,
    was_raised,
    withdraw_missing,
)
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.aws.machines.listing import instance_id
from gpuscaler.clouds.protocol import THROTTLED, UNKNOWN, BuyResult, CloudError, LostAnswerError, Order, UnfilledOrder

#: The largest difference between the clocks of AWS and of the process that sent an order, in seconds.
SKEW_SECONDS: Final = 5.0
#: The longest time until activities show that a group was raised, in seconds.
SHOWN_WITHIN_SECONDS: Final = 180.0
#: How long a settled order is remembered, in seconds.
REMEMBERED_SECONDS: Final = 3600.0


class Increments:
    """Raises groups for orders. ``tokens`` maps a machine's EC2 id to the order it came from, as far as this process knows."""

    def __init__(self, calls: AsyncCalls) -> None:
        self.tokens: dict[str, str] = {}
        self._calls = calls
        self._open: dict[str, Increment] = {}
        self._settled_at: dict[str, float] = {}
        self._late_answers: list[tuple[str, BuyResult]] = []
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[BuyResult | None]] = set()

    def lock(self, aws_pool: AwsPool) -> asyncio.Lock:
        """The lock of a group: concurrent read-modify-write changes of its desired capacity would undo each other."""
        return self._locks.setdefault((aws_pool.group.region, aws_pool.group.name), asyncio.Lock())

    def remember_tokens(self, order: Order, bought: BuyResult) -> BuyResult:
        """Remember which order the machines came from."""
        self.tokens |= {instance_id(instance.id): order.token for instance in bought.instances}
        return bought

    async def buy(self, aws_pool: AwsPool, order: Order) -> BuyResult:
        """Raise the group of ``aws_pool``, and return the result known within an order's time limit."""
        bought = await self._finish_shielded(self._raise_locked(aws_pool, order), order.token)
        assert bought is not None, "a purchase has an answer"
        return bought

    async def follow(self) -> list[tuple[str, BuyResult]]:
        """Final answers of settled orders, each returned once. What a group could not launch is withdrawn first."""
        increments = tuple(self._open.values())
        answers = await asyncio.gather(
            *(self._finish_shielded(self._follow_one(increment), increment.order.token) for increment in increments), return_exceptions=True
        )
        failure: BaseException | None = None
        for increment, settled in zip(increments, answers, strict=True):
            if isinstance(settled, BaseException):
                failure = settled
            elif settled is not None:
                self._late_answers.append((increment.order.token, settled))
        if failure is not None and not (self._late_answers and isinstance(failure, CloudError | LostAnswerError)):
            raise failure
        late_answers, self._late_answers = self._late_answers, []
        return late_answers

    def was_settled(self, token: str) -> bool:
        """Whether an order was settled recently."""
        return token in self._settled_at

    async def resume(self, rest: UnfilledOrder, aws_pool: AwsPool, before: Iterable[str]) -> None:
        """Continue an order of another process, unless it is unknown whether its group was raised and the activities do not show it.

        The caller knows the machines that have come from the order: ``rest.missing`` are still missing, and none of those is in ``before``.
        """
        order, increment = rest.order, self._open.get(rest.order.token)
        if increment is not None and not increment.resumed:
            return
        if increment is None and not rest.accepted and not await was_raised(self._calls, aws_pool, order, since=rest.at - SKEW_SECONDS):
            return
        weight = least_weight(aws_pool, order.offerings)
        existing = frozenset(before) | self.tokens.keys()
        lacking = replace(order, count=rest.missing)
        self._open[order.token] = Increment(lacking, rest.missing * weight, weight, rest.at, existing, aws_pool, resumed=True, at=rest.at)

    def drop_resumed_except(self, tokens: Collection[str]) -> None:
        """Drop resumed orders other than ``tokens``: the dropped orders lack no machines any more."""
        self._open = {token: increment for token, increment in self._open.items() if token in tokens or not increment.resumed}

    async def withdraw(self, rest: UnfilledOrder) -> None:
        """Withdraw what an order still lacks. Raises CloudError while activities may not show yet whether its group was raised."""
        token = rest.order.token
        if token in self._open:
            await self._finish_shielded(self._withdraw_locked(self._open[token]), token)
        elif token not in self._settled_at and not rest.accepted and self._calls.now() < rest.at + SHOWN_WITHIN_SECONDS:
            raise CloudError(UNKNOWN, f"the activities of the group of pool {rest.order.pool} do not show yet whether the group was raised")

    async def close(self) -> None:
        """Cancel what is in progress; a call that was already sent ends by itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish_shielded(self, call: Coroutine[Any, Any, BuyResult | None], token: str) -> BuyResult | None:
        """Let ``call`` finish even if the caller is cancelled, since its changes must be known. :meth:`follow` then returns the answer."""
        task = asyncio.create_task(call)
        self._tasks.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._keep_answer_of(token))
            raise
        finally:
            task.add_done_callback(self._tasks.discard)

    def _keep_answer_of(self, token: str) -> Callable[["asyncio.Task[BuyResult | None]"], None]:
        def keep(task: "asyncio.Task[BuyResult | None]") -> None:
            if not task.cancelled() and task.exception() is None and (answer := task.result()) is not None:
                self._late_answers.append((token, answer))

        return keep

    async def _raise_locked(self, aws_pool: AwsPool, order: Order) -> BuyResult:
        async with self.lock(aws_pool):
            return self.remember_tokens(order, await self._raise_and_wait(aws_pool, order))

    async def _raise_and_wait(self, aws_pool: AwsPool, order: Order) -> BuyResult:
        increment, bought = await raise_capacity(self._calls, aws_pool, order)
        if increment is None:
            return bought
        self._open[order.token] = increment
        until = self._calls.now() + ORDER_SECONDS - OBSERVE_SECONDS
        while True:
            await self._calls.sleep(OBSERVE_SECONDS)
            # The group has been raised: an error of reading the group says nothing about the order. The group is read again.
            with contextlib.suppress(CloudError, LostAnswerError):
                if (settled := await self._settle(increment)) is not None:
                    return settled
            if self._calls.now() >= until:
                return answer_so_far(increment, LaunchReport(), pending=-(-increment.missing // increment.weight))

    async def _settle(self, increment: Increment) -> BuyResult | None:
        """The answer to an order once its increment is filled or has failed; what failed is withdrawn first."""
        report = await self._observe(increment)
        if not increment.missing:
            self._mark_final(increment)
            return answer_so_far(increment, report, pending=0)
        if not report.failures:
            return None
        outcome = await withdraw_missing(self._calls, increment)
        increment.units -= outcome.units
        if outcome.waiting or self._may_be_unseen(increment):
            # The increment is withdrawn as soon as possible: until then, it may still bring machines.
            return None
        # Machines that launched during the withdrawal belong to this order.
        await self._observe(increment)
        self._mark_final(increment)
        return answer_so_far(increment, report, pending=0)

    async def _follow_one(self, increment: Increment) -> BuyResult | None:
        async with self.lock(increment.aws_pool):
            # The previous holder of the lock may have settled the increment.
            settled = await self._settle(increment) if increment.order.token in self._open else None
        return self.remember_tokens(increment.order, settled) if settled is not None else None

    async def _withdraw_locked(self, increment: Increment) -> None:
        async with self.lock(increment.aws_pool):
            await self._observe(increment)
            outcome = await withdraw_missing(self._calls, increment)
            increment.units -= outcome.units
        if outcome.waiting or self._may_be_unseen(increment):
            group, why = increment.aws_pool.group, outcome.why or "its raised capacity does not show yet"
            raise CloudError(THROTTLED, f"group {group.name} in {group.region} cannot be lowered yet: {why}")
        self._mark_final(increment)

    def _may_be_unseen(self, increment: Increment) -> bool:
        """Whether the group may not show its raised capacity yet: others would seem to have lowered it, although it is still launching."""
        return increment.missing > 0 and self._calls.now() < increment.at + READ_LAG

    async def _observe(self, increment: Increment) -> LaunchReport:
        return await read_results(self._calls, increment, self._is_claimed)

    def _is_claimed(self, instance: str) -> bool:
        return instance in self.tokens or any(instance in other.machines for other in self._open.values())

    def _mark_final(self, increment: Increment) -> None:
        """Mark an increment as final: it is never continued again."""
        now = self._calls.now()
        self._open.pop(increment.order.token, None)
        self._settled_at = {token: at for token, at in self._settled_at.items() if at > now - REMEMBERED_SECONDS} | {
            increment.order.token: now
        }
