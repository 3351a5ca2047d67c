"""The machines of a simulated cloud, indexed."""

from collections.abc import Iterable

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.simulation.cloud.machines import CloudMachine


class Fleet:
    """Machines in the order in which they were granted.

    ``all`` are existing and ended machines, ``alive`` the existing ones. ``in_use`` are the offerings with machines, in the order in which
    they first had some. ``granted`` counts all machines ever granted, including those that are no longer stored.
    """

    def __init__(self) -> None:
        self.granted = 0
        self.all: dict[str, CloudMachine] = {}
        self.alive: dict[str, CloudMachine] = {}
        self.in_pool: dict[str, int] = {}
        self.of_offering: dict[OfferingKey, dict[str, CloudMachine]] = {}
        self.in_use: dict[OfferingKey, None] = {}

    def add_index_entries(self, pools: Iterable[str], offerings: Iterable[OfferingKey]) -> None:
        """Add index entries for ``pools`` and ``offerings``."""
        for pool in pools:
            self.in_pool.setdefault(pool, 0)
        for key in offerings:
            self.of_offering.setdefault(key, {})

    def admit(self, machine: CloudMachine) -> None:
        """Add a machine, ended or not."""
        self.all[machine.id] = machine
        if machine.ended_at is None:
            key = machine.offering.key
            self.alive[machine.id] = machine
            self.add_index_entries((key.pool,), (key,))
            self.in_pool[key.pool] += 1
            self.of_offering[key][machine.id] = machine
            self.in_use[key] = None

    def end(self, machine: CloudMachine, state: str, now: float) -> None:
        """End an existing machine with the state ``state``."""
        del self.alive[machine.id]
        machine.state = state
        machine.ended_at = now
        key = machine.offering.key
        self.in_pool[key.pool] -= 1
        del self.of_offering[key][machine.id]
        if not self.of_offering[key]:
            del self.in_use[key]
