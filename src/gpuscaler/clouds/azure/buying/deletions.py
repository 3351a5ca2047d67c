"""Deletions that run: no capacity is written beside them.

A write of the capacity may end a deletion that runs (``OperationPreempted``). A machine that stays then counts again, and Azure ends
another one that is not in the number.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import is_leaving
from gpuscaler.clouds.protocol import THROTTLED, CloudError
from gpuscaler.model.azure_names import fold_id

#: How long a deletion is taken to run while its machine is listed, and after what time a write is tried again, in seconds.
LONGEST_SECONDS, AGAIN_SECONDS = 120.0, 1.0
_CAUSE: Final = "machines are being deleted, and a write of the capacity may end another one instead"


class Deletions:
    """The deletions that this process began, by group: lists may show them late."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._begun: dict[str, dict[str, float]] = {}

    def begin(self, group: Group, machines: Iterable[VirtualMachine]) -> None:
        """Record a deletion, before its call is made."""
        self._begun.setdefault(group.key[0], {}).update((fold_id(machine.id), self._now()) for machine in machines)

    def end(self, group: Group, machines: Iterable[VirtualMachine]) -> None:
        """Record that a deletion will not happen."""
        for machine in machines:
            self._begun.get(group.key[0], {}).pop(fold_id(machine.id), None)

    def check(self, group: Group, machines: Sequence[VirtualMachine]) -> None:
        """Raise CloudError while machines of ``group``, of which ``machines`` are listed, are being deleted."""
        listed = {fold_id(machine.id) for machine in machines}
        begun = self._begun.pop(group.key[0], {})
        running = {ident: at for ident, at in begun.items() if ident in listed and self._now() < at + LONGEST_SECONDS}
        if running:
            self._begun[group.key[0]] = running
        if running or any(map(is_leaving, machines)):
            raise CloudError(THROTTLED, f"{group.name}: {_CAUSE}", retry_after=AGAIN_SECONDS)
