"""Machines that end by themselves: evictions with their notices, failures; scheduled events of the Instance Metadata Service."""

from functools import partial
from typing import Final

from gpuscaler.embedded.azure.compute import capacity
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware.hardware import SPOT
from gpuscaler.embedded.azure.state import Machine, ScaleSet
from gpuscaler.embedded.azure.wire.errors import bad_request
from gpuscaler.simulation.cloud.machines import LOST, NOTICE, CloudEvent

#: Seconds between an accepted ``simulateEviction`` and the notice: "within 30 minutes", mostly at once.
_SIMULATED: Final = 1.0


def handle_event(account: Contents, event: CloudEvent) -> None:
    """Handle an event of the hardware: notices and losses of machines."""
    owner = account.owners.get(event.machine.id) if event.machine is not None else None
    if owner is None:
        return
    scale_set, machine = owner
    if event.kind == NOTICE:
        account.announce(machine, "Preempt", event.gone_at)
    elif event.kind == LOST:
        account.owners.pop(machine.cloud.id if machine.cloud is not None else "", None)
        capacity.handle_loss(account, scale_set, machine)


def evict(account: Contents, scale_set: ScaleSet, machine: Machine, *, notice: float) -> None:
    """Evict a spot machine ``notice`` seconds from now, announced if that is above 0. One that was never placed is left alone."""
    if machine.cloud is None:
        return
    if notice > 0:
        event = account.announce(machine, "Preempt", account.time + notice)
        event.act = partial(_evict_now, account, scale_set, machine)
    else:
        _evict_now(account, scale_set, machine)


def _evict_now(account: Contents, scale_set: ScaleSet, machine: Machine) -> None:
    hardware = machine.cloud
    if hardware is None or scale_set.machines.get(machine.key) is not machine:
        account.withdraw_events(machine)
        return
    account.owners.pop(hardware.id, None)
    account.hardware.end(hardware, account.time)
    capacity.handle_loss(account, scale_set, machine)


def lose(account: Contents, scale_set: ScaleSet, machine: Machine) -> None:
    """A machine breaks without notice."""
    _evict_now(account, scale_set, machine)


def simulate_eviction(account: Contents, scale_set: ScaleSet, machine: Machine) -> None:
    """The call ``simulateEviction``. Raises :class:`AzureError` for machines that are not spot."""
    if machine.market != SPOT:
        text = f"Operation 'simulateEviction' is not allowed on VM '{machine.name}' since it is not an Azure Spot VM."
        raise bad_request(text, code="OperationNotAllowed")
    account.put(account.time + _SIMULATED, partial(evict, account, scale_set, machine, notice=account.conditions.notice))
