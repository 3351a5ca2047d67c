"""Whether the operation of an order has ended, and whether the lists show all that it brought."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.causes import ArmFailure
from gpuscaler.clouds.azure.api.operations import OperationState, read_operation
from gpuscaler.clouds.azure.buying.attribution import Attribution
from gpuscaler.clouds.azure.buying.capacity import Count
from gpuscaler.clouds.azure.buying.increment import Increment
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import READ_LAG, is_unallocated, state_of
from gpuscaler.clouds.protocol import UNAUTHORISED, CloudError
from gpuscaler.model.instances import PENDING

_LOG = structlog.get_logger(__name__)
#: How long machines of another process's order may take to be named from the list, in seconds.
NAMED_SECONDS: Final = 20.0
#: Codes of operations that a later one has replaced: the later one tries for all machines.
_REPLACED: Final = ("operationpreempted", "canceled", "conflict")


class Progress:
    """Follows ``open_orders``."""

    def __init__(self, arm: Arm, open_orders: Mapping[str, Increment], attribution: Attribution, *, now: Callable[[], float]) -> None:
        self._arm, self._open, self._attribution, self._now = arm, open_orders, attribution, now

    async def read(self, increments: Iterable[Increment]) -> Mapping[str, OperationState | CloudError]:
        """The states of the increments' operations, or why they could not be read, by URL: orders that were sent together share one."""
        by_url = {increment.url: increment for increment in increments if increment.url}
        return dict(zip(by_url, await asyncio.gather(*map(self._read_operation, by_url.values())), strict=True))

    def state(self, increment: Increment, operations: Mapping[str, OperationState | CloudError]) -> OperationState | CloudError | None:
        """The state of the increment's operation among those that were read; None if none is known and the group's own state decides."""
        url = increment.url
        if not url:
            return None
        state = operations.get(url, OperationState(done=False))
        if isinstance(state, CloudError) or not (state.gone or self._is_replaced(state)):
            return state
        newer = [
            other.url
            for other in self._open.values()
            if other.group.key == increment.group.key and other is not increment and other.at >= increment.at and other.url != url
        ]
        # An operation that a later one replaced, or that is no longer known: the later one, else the inventory, decides.
        increment.url = newer[-1] if newer and not state.gone else ""
        return OperationState(done=False) if increment.url else None

    def state_of_group(self, increment: Increment, count: Count, machines: Sequence[VirtualMachine]) -> OperationState:
        """The state of an increment whose operation is not known."""
        failed = next((machine for machine in machines if is_unallocated(machine) and self._attribution.is_new(machine, increment)), None)
        failure = ArmFailure(code=failed.fault_code, text=failed.fault) if failed is not None and failed.fault_code else None
        return OperationState(done=not count.busy, succeeded=failure is None, failure=failure)

    async def _read_operation(self, increment: Increment) -> OperationState | CloudError:
        """The state of the increment's operation; one that may not be read counts as no longer known."""
        if not self._arm.is_own(increment.url):
            # The order was sent to another endpoint.
            return OperationState(done=True, gone=True)
        try:
            return await read_operation(self._arm, increment.url)
        except CloudError as error:
            if error.cause != UNAUTHORISED:
                return error
            _LOG.warning("an operation cannot be read; its group says whether it has ended", group=increment.group.name, problem=str(error))
            return OperationState(done=True, gone=True)

    def _is_replaced(self, state: OperationState) -> bool:
        return state.done and not state.succeeded and state.failure is not None and state.failure.code.lower() in _REPLACED

    def may_be_unseen(self, increment: Increment, count: Count, machines: Sequence[VirtualMachine]) -> bool:
        """Whether machines may be missing only because a list is behind: Azure's, if it lacks any of the capacity, or the caller's."""
        if increment.resumed and any(self._attribution.may_be_of(machine, increment) for machine in machines):
            return self._now() < increment.ended_at + NAMED_SECONDS
        if any(state_of(machine) == PENDING and self._attribution.is_new(machine, increment) for machine in machines):
            # The operation has ended: a machine that still starts has in truth started or failed.
            return self._now() < increment.ended_at + READ_LAG
        if not (count.unfilled and increment.missing):
            return False
        if increment.failure is not None:
            # Azure lists what it tries to allocate from the start of the operation.
            return self._now() < increment.at + READ_LAG / 2
        return self._now() < increment.ended_at + READ_LAG
