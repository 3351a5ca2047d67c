"""Finds out what became of orders: each operation and each group is read once, however many orders wait for them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuscaler.clouds.azure.api.arm import GoneError
from gpuscaler.clouds.azure.api.operations import OperationState
from gpuscaler.clouds.azure.buying.attribution import Attribution
from gpuscaler.clouds.azure.buying.capacity import Count
from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.buying.increment import Increment, Refuse
from gpuscaler.clouds.azure.buying.progress import Progress
from gpuscaler.clouds.azure.buying.raising import QUEUED_SECONDS, SELDOM_SECONDS
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import instance_of
from gpuscaler.clouds.protocol import THROTTLED, BuyResult, CloudError
from gpuscaler.model.instances import Instance

#: The shortest time between two reads of an operation, in seconds.
OBSERVE_SECONDS = 1.0

_Counted = tuple[Count, Sequence[VirtualMachine]] | CloudError


class Settling:
    """Settles ``open_orders``. ``finish`` takes an order from them, ``clear_up`` has what it lacks in the end cleared."""

    def __init__(
        self,
        open_orders: Mapping[str, Increment],
        progress: Progress,
        attribution: Attribution,
        *,
        now: Callable[[], float],
        refuse: Refuse,
        finish: Callable[[Increment], None],
        clear_up: Callable[[Increment], None],
    ) -> None:
        self._open, self._progress, self._attribution = open_orders, progress, attribution
        self._now, self._refuse, self._finish, self._clear_up = now, refuse, finish, clear_up

    async def settle(self, increments: Iterable[Increment]) -> list[tuple[Increment, BuyResult | CloudError]]:
        """The outcomes of those that have one now, and the errors of those about which nothing could be read.

        Nothing is locked: what is written meanwhile is not held up by reads that Azure delays. What is read is never newer than an order
        that is placed meanwhile, so none of that order's machines is taken for another's.
        """
        due = [increment for increment in increments if self._is_followed(increment) and self._now() >= increment.read_at]
        operations = await self._progress.read(due)
        answers: list[tuple[Increment, BuyResult | CloudError]] = []
        to_count: list[tuple[Increment, OperationState | None]] = []
        for increment in filter(self._is_followed, due):
            state = self._progress.state(increment, operations)
            if isinstance(state, CloudError):
                answers += self._unread(increment, state)
            elif state is not None and not state.done:
                increment.read_at = self._now() + min(state.retry_after, SELDOM_SECONDS)
            else:
                to_count.append((increment, state))
        # A machine that is on no list now will not come, since its operation had ended before: the lists are read after the operations.
        counted = await _count_all({increment.group.key: increment.group for increment, _ in to_count})
        for increment, state in to_count:
            if self._is_followed(increment):
                answers += self._settle(increment, state, counted[increment.group.key])
        return answers

    def machines_of(self, increment: Increment) -> tuple[Instance, ...]:
        """The machines that have come from an order."""
        return tuple(
            instance_of(machine, increment.azure_pool, token=increment.order.token, reserved=self._attribution.reserved)
            for machine in increment.machines.values()
        )

    def _is_followed(self, increment: Increment) -> bool:
        return increment.order.token in self._open and not increment.queued

    def _settle(
        self, increment: Increment, state: OperationState | None, counted: _Counted
    ) -> list[tuple[Increment, BuyResult | CloudError]]:
        if isinstance(counted, GoneError):
            # The group was deleted.
            increment.failure = counted.failure
            return [(increment, self._conclude(increment))]
        if isinstance(counted, CloudError):
            return self._unread(increment, counted)
        count, machines = counted
        if state is None:
            state = self._progress.state_of_group(increment, count, machines)
            if not state.done:
                return []
        increment.ended_at = increment.ended_at or self._now()
        increment.failure = state.failure
        self._attribution.assign(increment, machines)
        if self._progress.may_be_unseen(increment, count, machines):
            return []
        return [(increment, self._conclude(increment))]

    def _unread(self, increment: Increment, error: CloudError) -> list[tuple[Increment, BuyResult | CloudError]]:
        if error.cause != THROTTLED:
            return [(increment, error)]
        # Azure says how long such reads have to wait: other orders are followed meanwhile.
        increment.read_at = self._now() + min(max(error.retry_after, OBSERVE_SECONDS), QUEUED_SECONDS)
        return []

    def _conclude(self, increment: Increment) -> BuyResult:
        instances, missing = self.machines_of(increment), increment.missing
        self._finish(increment)
        if not missing:
            return BuyResult(instances)
        self._clear_up(increment)
        if increment.failure is None and (increment.doubtful or (increment.resumed and not increment.url)):
            # Perhaps it was never sent: that says nothing about the offering, and the next plan orders again what is needed.
            return BuyResult(instances)
        # Of how many machines the order was is not known here: those that a quota cut off, or that came before a restart, are not counted.
        detail = f"{increment.group.name}: {missing} of the ordered machines did not come, and Azure gave no reason"
        refusals = self._refuse(increment.azure_pool, increment.order, increment.failure, detail, partial=bool(instances))
        return BuyResult(instances, 0, refusals)


async def _count_all(groups: Mapping[tuple[str, str], Group]) -> Mapping[tuple[str, str], _Counted]:
    """The number and the machines of each group, or why they could not be read."""

    async def count(group: Group) -> _Counted:
        try:
            return await group.count()
        except CloudError as error:
            return error

    return dict(zip(groups, await asyncio.gather(*map(count, groups.values())), strict=True))
