"""Writes a capacity that is raised for orders, derived from a fresh read as often as others write in between."""

from collections.abc import Callable, Sequence
from typing import Final

from gpuscaler.clouds.azure.api.arm import ArmError, PreconditionFailedError
from gpuscaler.clouds.azure.buying.capacity import Count, raised_capacity
from gpuscaler.clouds.azure.buying.clearing import Clearing
from gpuscaler.clouds.azure.buying.deletions import Deletions
from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.buying.increment import Increment, Refuse, refused
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import is_unallocated
from gpuscaler.clouds.protocol import THROTTLED, UNKNOWN, BuyResult, CloudError, LostAnswerError
from gpuscaler.model.azure_names import fold_id

#: How often a write is derived again from a fresh read, because something else wrote in between.
MAX_WRITES: Final = 3
#: How long an order waits for deletions that run in its group, in seconds, and after what time it is tried again.
DELETIONS_SECONDS, AGAIN_SECONDS = 60.0, 1.0
#: The longest wait for which an order is kept until Azure takes it, in seconds; for longer ones, other offerings are tried.
QUEUED_SECONDS: Final = 60.0
#: The longest time between two reads of an operation, in seconds, even if Azure asks for more: pods wait for the answer.
SELDOM_SECONDS: Final = 8.0
#: The status with which Azure refuses a write because of another operation.
_CONFLICT: Final = 409


class Raising:
    """Raises capacities, and adds the orders to ``open_orders``. ``known`` returns the machines of a pool on its last list."""

    def __init__(
        self,
        open_orders: dict[str, Increment],
        deletions: Deletions,
        clearing: Clearing,
        *,
        now: Callable[[], float],
        refuse: Refuse,
        known: Callable[[AzurePool], Sequence[VirtualMachine]],
    ) -> None:
        self._open, self._deletions, self._clearing = open_orders, deletions, clearing
        self._now, self._refuse, self._known = now, refuse, known

    async def place(self, increments: Sequence[Increment]) -> BuyResult | None:
        """Raise the capacity of a group for all ``increments`` in one write; None if it was raised, else the answer to each.

        Raises CloudError if nothing was written, LostAnswerError if that is unknown.
        """
        group, wanted = increments[0].group, sum(increment.order.count for increment in increments)
        first_target = None
        for _ in range(MAX_WRITES):
            count, machines = await self._count(group, increments[0].azure_pool)
            if self._now() < min(increment.at for increment in increments) + DELETIONS_SECONDS:
                self._deletions.check(group, machines)
                if not count.busy and count.unfilled > wanted:
                    self._clear_left_over(group, count, machines)
                if self._clearing.clears(group) and not count.busy and count.unfilled > wanted:
                    # Azure would try for all of the number again.
                    detail = f"{group.name}: a number that earlier orders left is being lowered"
                    raise CloudError(THROTTLED, detail, retry_after=AGAIN_SECONDS)
                if not count.agreed:
                    # AKS would take a number by its own count, and end or make other machines than the scale set's number asks for.
                    detail = f"{group.name}: AKS has not noticed yet what others did to its scale set"
                    raise CloudError(THROTTLED, detail, retry_after=AGAIN_SECONDS)
            target = raised_capacity(count, wanted)
            if first_target is not None and count.capacity >= first_target:
                # Something else raised it to where we wanted it: those machines are on their way, and no more are needed.
                return BuyResult()
            if target == count.capacity and not (count.unfilled and not count.busy):
                detail = f"{group.name} is at its maximum of {count.limit}"
                return refused(increments[0].order, UNKNOWN, detail)
            first_target = target if first_target is None else first_target
            try:
                url = await group.write(count, target)
            except PreconditionFailedError:
                continue
            except ArmError as error:
                if error.cause == THROTTLED:
                    raise
                return BuyResult(refusals=self._refuse(increments[0].azure_pool, increments[0].order, error.failure, error.detail))
            except LostAnswerError:
                url = ""
                await self._check_written(increments, count, target)
            self._begin(increments, machines, url)
            return None
        detail = f"{group.name}: others wrote its capacity {MAX_WRITES} times between our reads and writes; it is tried again"
        raise CloudError(THROTTLED, detail, retry_after=AGAIN_SECONDS)

    async def may_take(self, queued: Sequence[Increment]) -> bool:
        """Whether the group of orders that wait may be written: the wait is over, or the operation because of which it began has ended.

        Azure does not say how long another operation takes, so the group is looked at meanwhile.
        """
        now, group = self._now(), queued[0].group
        if all(now >= increment.not_before for increment in queued):
            return True
        if any(now < increment.read_at for increment in queued):
            return False
        for increment in queued:
            increment.read_at = now + SELDOM_SECONDS
        try:
            return not (await group.number()).busy
        except CloudError:
            return False

    def _clear_left_over(self, group: Group, count: Count, machines: Sequence[VirtualMachine]) -> None:
        """Clear what no order waits for: Azure would try for all of the number as soon as it is written, and bring more than is wanted.

        The process that left it has ended, or others did.
        """
        if not self._clearing.clears(group):
            failed = [machine for machine in machines if is_unallocated(machine)]
            before = frozenset(fold_id(machine.id) for machine in machines) - {fold_id(machine.id) for machine in failed}
            self._clearing.add(group, count.unfilled + len(failed), since=0.0, before=before)

    async def _count(self, group: Group, azure_pool: AzurePool) -> tuple[Count, Sequence[VirtualMachine]]:
        """The number and the machines; while lists of machines are throttled for long, the last known ones: writes are not."""
        try:
            return await group.count()
        except CloudError as error:
            if error.cause != THROTTLED or error.retry_after <= QUEUED_SECONDS or self._clearing.clears(group):
                raise
        # A number without machines cannot be seen then, and is taken for machines that came since.
        return await group.number(), self._known(azure_pool)

    async def _check_written(self, increments: Sequence[Increment], count: Count, target: int) -> None:
        """Find out whether a write whose answer was lost has taken effect.

        If that stays unknown, raises LostAnswerError for an order that is sent now. Orders that were accepted before are in doubt: they
        must not be sent again, and the group shows what comes of them.
        """
        group = increments[0].group
        try:
            fresh, _ = await group.count()
            written = fresh.etag != count.etag and fresh.capacity == target != count.capacity
        except CloudError:
            written = False
        if written:
            return
        if not increments[0].queued:
            raise LostAnswerError(f"{group.name}: the answer to a write of capacity {target} was lost, and the group does not show it")
        for increment in increments:
            increment.doubtful = True

    def _begin(self, increments: Sequence[Increment], machines: Sequence[VirtualMachine], url: str) -> None:
        before = frozenset(fold_id(machine.id) for machine in machines)
        group = increments[0].group
        alone = all(other.queued or other.group.key != group.key for other in self._open.values())
        self._clearing.begin(group, before, alone=alone)
        for increment in increments:
            increment.url, increment.queued, increment.before, increment.at, increment.read_at = url, False, before, self._now(), 0.0
            self._open[increment.order.token] = increment


def postpone(increment: Increment, error: CloudError, now: float) -> None:
    """Note when an order that ``error`` has stopped is tried again, and from when on its group is looked at before that."""
    increment.not_before = increment.read_at = now + max(error.retry_after, AGAIN_SECONDS)
    if isinstance(error, ArmError) and error.failure.status == _CONFLICT:
        increment.read_at = min(increment.read_at, now + SELDOM_SECONDS)


def passes_soon(error: CloudError) -> bool:
    """Whether an order that was not sent is kept: Azure asks to wait, or does not answer, which says nothing about capacity."""
    unanswered = error.cause == UNKNOWN and not (isinstance(error, ArmError) and error.failure.status < 500)
    return (error.cause == THROTTLED or unanswered) and error.retry_after <= QUEUED_SECONDS
