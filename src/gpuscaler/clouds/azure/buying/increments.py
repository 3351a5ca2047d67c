"""Orders that are placed by raising a capacity: each is followed by its operation until its machines are there or Azure gave up.

Azure tries once: when the operation has ended, what did not come will not come. So a refusal is reported as soon as the end is known, and
what the attempt left behind is cleared afterwards: entries of machines that were never allocated are deleted by id, and a number without
machines is lowered. Nothing here must survive the process: an order of another one is continued from the URL of its operation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import Arm, ArmError, GoneError, PreconditionFailedError
from gpuscaler.clouds.azure.api.causes import ArmFailure
from gpuscaler.clouds.azure.api.operations import OperationState, read_operation
from gpuscaler.clouds.azure.buying.capacity import Count, raised_capacity
from gpuscaler.clouds.azure.buying.clearing import READ_LAG, SKEW_SECONDS, Clearing
from gpuscaler.clouds.azure.buying.deletions import Deletions
from gpuscaler.clouds.azure.buying.groups import Group, group_of
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.resources import RESERVED, VirtualMachine
from gpuscaler.clouds.azure.machines.listing import has_come, instance_of, is_unallocated, state_of
from gpuscaler.clouds.protocol import (
    CONFIGURATION,
    THROTTLED,
    UNAUTHORISED,
    UNKNOWN,
    BuyResult,
    CloudError,
    LostAnswerError,
    Order,
    Refusal,
    UnfilledOrder,
)
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.instances import PENDING

_LOG = structlog.get_logger(__name__)
#: The time for an order until it is left to :meth:`Increments.follow`, and between two looks at its operation, in seconds.
ORDER_SECONDS, OBSERVE_SECONDS = 6.0, 1.0
#: The most answers that are kept for the next question.
MOST_ANSWERS: Final = 1000
#: How often a write is derived again from a fresh read, because something else wrote in between.
MAX_WRITES: Final = 3
#: How long a group is not asked again after Azure said that another operation runs in it, in seconds.
BUSY_SECONDS: Final = 30.0
#: How long an order waits for deletions that run in its group, in seconds.
DELETIONS_SECONDS: Final = 60.0
#: The longest wait for which an order is kept until Azure takes it, in seconds; for longer ones, other offerings are tried.
QUEUED_SECONDS: Final = 60.0
#: How long an order is kept in all while another order's operation runs in its group, and while somebody else's does, in seconds.
BEHIND_OURS, BEHIND_OTHERS = 300.0, 90.0
#: How long machines of another process's order may take to be named from the list, in seconds.
NAMED_SECONDS: Final = 20.0
#: The longest time between two reads of an operation, in seconds, even if Azure asks for more: pods wait for the answer.
SELDOM_SECONDS: Final = 8.0
#: Codes of operations that a later one has replaced: the later one tries for all machines.
_REPLACED: Final = ("operationpreempted", "canceled", "conflict")


class Refuse(Protocol):
    """Turns a ``failure`` (None: no reason is known, but ``detail`` says what happened) into refusals; ``partial``: some machines came."""

    def __call__(
        self, azure_pool: AzurePool, order: Order, failure: ArmFailure | None, detail: str, *, partial: bool = False
    ) -> tuple[Refusal, ...]: ...


@dataclass(slots=True, eq=False)
class Increment:
    """A raise of a capacity for an order. ``before`` are the folded ids of machines that were there before; ``at`` is when it was made.

    ``url`` is that of the operation, empty if there is none. A ``queued`` order waits since ``queued_at``, at least until ``not_before``.
    An ``awaited`` one is settled by the call that made it. The operation is not read before ``read_at``; ``ended_at`` is when its end was
    seen, 0 before. ``resumed`` marks the order of another process, ``doubtful`` one of which it is not known whether it was sent.
    """

    order: Order
    azure_pool: AzurePool
    group: Group
    before: frozenset[str]
    at: float
    url: str = ""
    queued: bool = False
    awaited: bool = False
    not_before: float = 0.0
    resumed: bool = False
    doubtful: bool = False
    queued_at: float = 0.0
    read_at: float = 0.0
    ended_at: float = 0.0
    failure: ArmFailure | None = None
    machines: dict[str, VirtualMachine] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        return max(0, self.order.count - len(self.machines))


class Increments:
    """Raises capacities for orders. ``tokens`` maps a machine's folded id to the order it came from, as far as this process knows.

    ``reserved`` are folded ids of machines that were ordered as reserved ones: reservations show them later. ``deletions`` are those that
    run. ``known`` returns the machines of a pool on its last list.
    """

    def __init__(
        self,
        arm: Arm,
        *,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        refuse: Refuse,
        known: Callable[[AzurePool], Sequence[VirtualMachine]] = lambda _: (),
    ) -> None:
        self.tokens: dict[str, str] = {}
        self.reserved: set[str] = set()
        self._arm, self._now, self._sleep, self._refuse, self._known = arm, now, sleep, refuse, known
        self._open: dict[str, Increment] = {}
        self._settled: dict[str, None] = {}
        self._late_answers: list[tuple[str, BuyResult]] = []
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._tending: asyncio.Task[None] | None = None
        self.deletions = Deletions(now=now)
        self._clearing = Clearing(self.deletions, now=now, lock=self.lock, expected=self.unfilled, runs=self._is_busy)

    def lock(self, group: Group) -> asyncio.Lock:
        """The lock of a resource: an agent pool's profiles share theirs."""
        return self._locks.setdefault((group.key[0], ""), asyncio.Lock())

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
                return self._queue(increment, 0.0)
            try:
                answer = await self._raise([increment])
            except CloudError as error:
                if error.cause != THROTTLED or error.retry_after > QUEUED_SECONDS:
                    raise
                return self._queue(increment, error.retry_after)
        if answer is not None:
            return answer
        return await self._wait_for(increment, until=began + ORDER_SECONDS)

    def _queue(self, increment: Increment, wait: float) -> BuyResult:
        """Keep an order until its group takes it: another operation runs, or Azure asked to wait for a moment."""
        increment.queued, increment.queued_at, increment.not_before = True, self._now(), self._now() + wait
        self._open[increment.order.token] = increment
        return BuyResult(pending=increment.order.count)

    async def _raise(self, increments: Sequence[Increment]) -> BuyResult | None:
        """Raise the capacity of a group for all ``increments`` in one write; None if it was raised, else the answer to each.

        Raises CloudError if nothing was written, LostAnswerError if that is unknown.
        """
        group, wanted = increments[0].group, sum(increment.order.count for increment in increments)
        first_target = None
        for _ in range(MAX_WRITES):
            count, machines = await self._count(group, increments[0].azure_pool)
            if self._now() < min(increment.at for increment in increments) + DELETIONS_SECONDS:
                self.deletions.check(group, machines)
                if self._clearing.clears(group) and not count.busy and count.unfilled > wanted:
                    # Azure would try for all of the number again.
                    detail = f"{group.name}: a number that earlier orders left is being lowered"
                    raise CloudError(THROTTLED, detail, retry_after=OBSERVE_SECONDS)
                if not count.agreed:
                    # AKS would take a number by its own count, and end or make other machines than the scale set's number asks for.
                    detail = f"{group.name}: AKS has not noticed yet what others did to its scale set"
                    raise CloudError(THROTTLED, detail, retry_after=OBSERVE_SECONDS)
            target = raised_capacity(count, wanted)
            if first_target is not None and count.capacity >= first_target:
                # Something else raised it to where we wanted it: those machines are on their way, and no more are needed.
                return BuyResult()
            if target == count.capacity and not (count.unfilled and not count.busy):
                detail = f"{group.name} is at its maximum of {count.limit}"
                return _refused(increments[0].order, UNKNOWN, detail)
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
        raise CloudError(THROTTLED, detail, retry_after=OBSERVE_SECONDS)

    async def _count(self, group: Group, azure_pool: AzurePool) -> tuple[Count, Sequence[VirtualMachine]]:
        """The number and the machines; while lists of machines are throttled for long, the last known ones: writes are not."""
        try:
            return await group.count()
        except CloudError as error:
            if error.cause != THROTTLED or error.retry_after <= QUEUED_SECONDS or self._clearing.clears(group):
                raise
        # A number without machines cannot be told then, and is taken for machines that came since.
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
        for increment in increments:
            increment.url, increment.queued, increment.before, increment.at = url, False, before, self._now()
            self._open[increment.order.token] = increment

    def _is_busy(self, group: Group) -> bool:
        """Whether an operation of ours runs, or orders wait, in the resource of ``group``."""
        return any(increment.group.key[0] == group.key[0] and not increment.ended_at for increment in self._open.values())

    def _is_running(self, group: Group) -> bool:
        return any(
            increment.group.key[0] == group.key[0] and not increment.queued and not increment.ended_at for increment in self._open.values()
        )

    async def _wait_for(self, increment: Increment, until: float) -> BuyResult:
        increment.awaited = True
        try:
            settled = await self._settled_within(increment, until)
        finally:
            increment.awaited = False
        return settled or BuyResult(pending=increment.missing, operation=increment.url)

    async def _settled_within(self, increment: Increment, until: float) -> BuyResult | None:
        while self._now() + OBSERVE_SECONDS < until:
            await self._sleep(OBSERVE_SECONDS)
            try:
                if (settled := await self._settle(increment)) is not None:
                    return settled
            except (CloudError, LostAnswerError):
                # It was raised: an error of reading says nothing about the order, which is followed on.
                break
        return None

    # Following

    async def follow(self, tokens: Collection[str]) -> list[tuple[str, BuyResult]]:
        """Final answers of the orders with these tokens, each returned once."""
        failure = await self._settle_all()
        self.tend_soon()
        answered = [answer for answer in self._late_answers if answer[0] in tokens]
        if failure is not None and not (answered and isinstance(failure, CloudError | LostAnswerError)):
            raise failure
        self._late_answers = [answer for answer in self._late_answers if answer[0] not in tokens]
        return answered

    async def _settle_all(self) -> BaseException | None:
        """Send orders that waited, and settle those that have an outcome; returns an error if the outcome of one cannot be read."""
        await self._send_queued()
        failure: BaseException | None = None
        open_now = [increment for increment in self._open.values() if not (increment.queued or increment.awaited)]
        answers = await asyncio.gather(*map(self._settle, open_now), return_exceptions=True)
        failed: list[Increment] = []
        for increment, answer in zip(open_now, answers, strict=True):
            if isinstance(answer, BuyResult):
                self._keep_answer(increment, answer)
            elif isinstance(answer, CloudError | LostAnswerError):
                failed.append(increment)
                failure = failure or answer
            elif isinstance(answer, BaseException):
                raise answer
        if len(failed) == len(open_now):
            return failure
        # The others are followed as often as before.
        for increment in failed:
            if increment.read_at == 0.0:
                _LOG.warning("an order cannot be followed", order=increment.order.token, group=increment.group.name, problem=str(failure))
            increment.read_at = self._now() + SELDOM_SECONDS
        return None

    def _keep_answer(self, increment: Increment, answer: BuyResult) -> None:
        self._late_answers = [*self._late_answers[-MOST_ANSWERS:], (increment.order.token, answer)]

    def refuse_queued(self, pools: Collection[str]) -> None:
        """Send no order that waits to other pools than these: the others are no longer used."""
        for increment in tuple(self._open.values()):
            if increment.queued and increment.order.pool not in pools:
                detail = f"{increment.group.name} is no longer used, so what was still to be ordered there is not"
                self._keep_answer(increment, _refused(increment.order, CONFIGURATION, detail))
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
        self._open = {token: increment for token, increment in self._open.items() if token in tokens or not increment.resumed}

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
            if increment.order.token not in self._open:
                return
            try:
                count, machines = await increment.group.count()
            except GoneError:
                self._mark_final(increment)
                return
            self._assign(increment, machines)
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
                if not (group.one_at_a_time and self._is_running(group)):
                    await self._send_queued_of(group)
        self._refuse_overdue()

    def _refuse_overdue(self) -> None:
        """Answer orders that waited for too long."""
        now = self._now()
        for increment in tuple(self._open.values()):
            waits = now - increment.queued_at
            if increment.queued and waits >= (BEHIND_OURS if self._is_running(increment.group) else BEHIND_OTHERS):
                detail = f"{increment.group.name} has taken no order for {waits:.0f} s, since other operations run or Azure limits calls"
                # As throttled, it would close all offerings of the region.
                self._keep_answer(increment, _refused(increment.order, UNKNOWN, detail, BUSY_SECONDS))
                self._mark_final(increment)

    async def _send_queued_of(self, group: Group) -> None:
        now = self._now()
        queued = [increment for increment in self._open.values() if increment.queued and increment.group.key == group.key]
        if not queued or any(now < increment.not_before for increment in queued):
            return
        try:
            answer = await self._raise(queued)
        except CloudError as error:
            if error.cause == THROTTLED and error.retry_after <= QUEUED_SECONDS:
                for increment in queued:
                    increment.not_before = now + max(error.retry_after, OBSERVE_SECONDS)
                return
            answer = _refused(queued[0].order, error.cause, error.detail, error.retry_after)
        if answer is not None:
            for increment in queued:
                self._keep_answer(increment, answer)
                self._mark_final(increment)

    async def _settle(self, increment: Increment) -> BuyResult | None:
        """The answer to an order once its operation has ended."""
        async with self.lock(increment.group):
            if increment.order.token not in self._open or increment.queued:
                return None
            if self._now() < increment.read_at:
                return None
            try:
                return await self._settle_now(increment)
            except GoneError as error:
                # The group was deleted.
                increment.failure = error.failure
                return self._conclude(increment)
            except CloudError as error:
                if error.cause != THROTTLED:
                    raise
                # Azure says how long such reads have to wait: other orders are followed meanwhile.
                increment.read_at = self._now() + min(max(error.retry_after, OBSERVE_SECONDS), QUEUED_SECONDS)
                return None

    async def _settle_now(self, increment: Increment) -> BuyResult | None:
        state = await self._state(increment)
        if not state.done:
            increment.read_at = self._now() + min(state.retry_after, SELDOM_SECONDS)
            return None
        increment.ended_at = increment.ended_at or self._now()
        increment.failure = state.failure
        count, machines = await increment.group.count()
        self._assign(increment, machines)
        if self._may_be_unseen(increment, count, machines):
            return None
        return self._conclude(increment)

    async def _state(self, increment: Increment) -> OperationState:
        """The state of the increment's operation; where none is known, the group's own state decides."""
        url = increment.url
        if url:
            state = await self._read_operation(increment)
            if not state.gone and not self._is_replaced(state):
                return state
            newer = [
                other.url
                for other in self._open.values()
                if other.group.key == increment.group.key and other is not increment and other.at >= increment.at and other.url != url
            ]
            # An operation that a later one replaced, or that is no longer known: the later one, else the inventory, decides.
            increment.url = newer[-1] if newer and not state.gone else ""
            if increment.url:
                return OperationState(done=False, succeeded=False, failure=None)
        count, machines = await increment.group.count()
        failed = next((machine for machine in machines if is_unallocated(machine) and self._is_new(machine, increment)), None)
        failure = ArmFailure(code=failed.fault_code, text=failed.fault) if failed is not None and failed.fault_code else None
        return OperationState(done=not count.busy, succeeded=failure is None, failure=failure)

    async def _read_operation(self, increment: Increment) -> OperationState:
        """The state of the increment's operation; one that may not be read counts as no longer known."""
        if not self._arm.is_own(increment.url):
            # The order was sent to another endpoint.
            return OperationState(done=True, gone=True)
        try:
            return await read_operation(self._arm, increment.url)
        except CloudError as error:
            if error.cause != UNAUTHORISED:
                raise
            _LOG.warning("an operation cannot be read; its group says whether it has ended", group=increment.group.name, problem=str(error))
            return OperationState(done=True, gone=True)

    def _is_replaced(self, state: OperationState) -> bool:
        return state.done and not state.succeeded and state.failure is not None and state.failure.code.lower() in _REPLACED

    def _may_be_unseen(self, increment: Increment, count: Count, machines: Sequence[VirtualMachine]) -> bool:
        """Whether machines may be missing only because a list is behind: Azure's, if it lacks any of the capacity, or the caller's."""
        if increment.resumed and any(self._may_be_of(machine, increment) for machine in machines):
            return self._now() < increment.ended_at + NAMED_SECONDS
        if any(state_of(machine) == PENDING for machine in machines if self._is_new(machine, increment)):
            # The operation has ended: a machine that still starts has in truth started or failed.
            return self._now() < increment.ended_at + READ_LAG
        if not (count.unfilled and increment.missing):
            return False
        if increment.failure is not None:
            # Azure lists what it tries to allocate from the start of the operation.
            return self._now() < increment.at + READ_LAG / 2
        return self._now() < increment.ended_at + READ_LAG

    def _assign(self, increment: Increment, machines: Sequence[VirtualMachine]) -> None:
        """Assign new machines to the increment, as long as it lacks any; those that failed after all are no machines."""
        for machine in machines:
            ident = fold_id(machine.id)
            if is_unallocated(machine) and ident in increment.machines:
                del increment.machines[ident], self.tokens[ident]
            if not increment.resumed and increment.missing and self._may_be_of(machine, increment):
                increment.machines[ident] = machine
                self.tokens[ident] = increment.order.token
                if increment.order.offerings[0].market == RESERVED:
                    self.reserved.add(ident)

    def _may_be_of(self, machine: VirtualMachine, increment: Increment) -> bool:
        """Whether a machine came after the increment was made, and belongs to no order yet."""
        return has_come(machine) and self._is_new(machine, increment) and not self._is_claimed(fold_id(machine.id))

    def _is_new(self, machine: VirtualMachine, increment: Increment) -> bool:
        """Whether an entry of the list came with this increment: after it, and before the next one."""
        ident = fold_id(machine.id)
        if not ident or ident in increment.before or (increment.resumed and machine.created < increment.at - SKEW_SECONDS):
            return False
        return not any(
            ident not in other.before and other.missing and other.at > increment.at and not (other.queued or other.resumed)
            for other in self._open.values()
            if other.group.key == increment.group.key
        )

    def _is_claimed(self, ident: str) -> bool:
        return ident in self.tokens or any(ident in other.machines for other in self._open.values())

    def _conclude(self, increment: Increment) -> BuyResult:
        instances = tuple(
            instance_of(machine, increment.azure_pool, token=increment.order.token, reserved=self.reserved)
            for machine in increment.machines.values()
        )
        missing = increment.missing
        self._mark_final(increment)
        if not missing:
            return BuyResult(instances)
        self._clear_up(increment)
        if increment.failure is None and (increment.doubtful or (increment.resumed and not increment.url)):
            # Perhaps it was never sent: that says nothing about the offering, and the next plan orders again what is needed.
            return BuyResult(instances)
        detail = (
            f"{increment.group.name}: {len(instances)} of {increment.order.count} machines came, and Azure gave no reason for the others"
        )
        refused = self._refuse(increment.azure_pool, increment.order, increment.failure, detail, partial=bool(instances))
        return BuyResult(instances, 0, refused)

    def _mark_final(self, increment: Increment) -> None:
        self._open.pop(increment.order.token, None)
        self._add_settled(increment.order.token)

    def _add_settled(self, token: str) -> None:
        self._settled[token] = None
        while len(self._settled) > 1000:
            del self._settled[next(iter(self._settled))]

    def drop_gone(self, listed: Collection[str]) -> None:
        """Drop what is known of machines that are not among the ``listed`` folded ids; those that were just bought may be listed late."""
        if len(self.tokens) > 2 * len(listed) + 1000:
            self.tokens = {ident: token for ident, token in self.tokens.items() if ident in listed}
        if len(self.reserved) > 2 * len(listed) + 1000:
            self.reserved &= set(listed)

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
                    self._late_answers.append((order.token, ended.result()))
                elif isinstance(error, CloudError):
                    self._late_answers.append((order.token, _refused(order, error.cause, error.detail, error.retry_after)))

            task.add_done_callback(keep)
            raise


def _refused(order: Order, cause: str, detail: str, retry_after: float = 0.0) -> BuyResult:
    return BuyResult(refusals=tuple(Refusal(cause, key, detail, retry_after=retry_after) for key in order.offerings))
