"""Which order a machine came from: Azure does not say, so machines that are new belong to the oldest order that lacks any."""

from collections.abc import Collection, Mapping, Sequence

from gpuscaler.clouds.azure.buying.increment import Increment
from gpuscaler.clouds.azure.documents.resources import RESERVED, VirtualMachine
from gpuscaler.clouds.azure.machines.listing import SKEW_SECONDS, has_come, is_unallocated
from gpuscaler.model.azure_names import fold_id


class Attribution:
    """Assigns machines to ``open_orders``. ``tokens`` maps a machine's folded id to its order, as far as this process knows.

    ``reserved`` are folded ids of machines that were ordered as reserved ones: reservations show them later.
    """

    def __init__(self, open_orders: Mapping[str, Increment]) -> None:
        self.tokens: dict[str, str] = {}
        self.reserved: set[str] = set()
        self._open = open_orders

    def assign(self, increment: Increment, machines: Sequence[VirtualMachine]) -> None:
        """Assign new machines to the increment, as long as it lacks any; those that failed after all are no machines."""
        for machine in machines:
            ident = fold_id(machine.id)
            if is_unallocated(machine) and ident in increment.machines:
                del increment.machines[ident]
                self.tokens.pop(ident, None)
            if not increment.resumed and increment.missing and self.may_be_of(machine, increment):
                increment.machines[ident] = machine
                self.tokens[ident] = increment.order.token
                if increment.order.offerings[0].market == RESERVED:
                    self.reserved.add(ident)

    def may_be_of(self, machine: VirtualMachine, increment: Increment) -> bool:
        """Whether a machine came after the increment was made, and belongs to no order yet."""
        return has_come(machine) and self.is_new(machine, increment) and not self._is_claimed(fold_id(machine.id))

    def is_new(self, machine: VirtualMachine, increment: Increment) -> bool:
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

    def drop_gone(self, listed: Collection[str]) -> None:
        """Drop what is known of machines that are not among the ``listed`` folded ids; those that were just bought may be listed late."""
        if len(self.tokens) > 2 * len(listed) + 1000:
            self.tokens = {ident: token for ident, token in self.tokens.items() if ident in listed}
        if len(self.reserved) > 2 * len(listed) + 1000:
            self.reserved &= set(listed)
