"""Converts machines of scale sets and agent pools to the controller's instances: states, markets, provider ids. Pure."""

from collections.abc import Collection
from typing import Final

from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.resources import RESERVED, VirtualMachine, is_word, zone_key
from gpuscaler.model.azure_names import SCHEME, canonical_provider_id, fold_id
from gpuscaler.model.instances import PENDING, RUNNING, STOPPING, Instance

#: How far Azure's lists may be behind, in seconds: Azure documents no figure.
READ_LAG: Final = 10.0
#: How far the clocks of Azure and of this process may differ, in seconds.
SKEW_SECONDS: Final = 30.0
_DEALLOCATED = ("deallocated", "deallocating")


def provider_id(machine: VirtualMachine) -> str:
    """The provider id of the machine's Node, in the spelling in which nodes are decoded."""
    return canonical_provider_id(f"{SCHEME}{machine.id}")


def is_unallocated(machine: VirtualMachine) -> bool:
    """Whether Azure never had a machine for this entry: it failed before it had power, and costs nothing."""
    return is_word(machine.state, "Failed") and not machine.power


def has_come(machine: VirtualMachine) -> bool:
    """Whether Azure has, or had, a machine for this entry: one that is being made or deleted without power may never be one."""
    return bool(machine.power) or machine.state.lower() not in ("creating", "failed", "deleting")


def is_leaving(machine: VirtualMachine) -> bool:
    """Whether the machine is being deleted: its group no longer counts it."""
    return is_word(machine.state, "Deleting")


def state_of(machine: VirtualMachine) -> str:
    """One of the states of :mod:`gpuscaler.model.instances`. A machine in an unknown state counts as running."""
    if is_leaving(machine) or machine.power in _DEALLOCATED:
        return STOPPING
    starts = is_word(machine.state, "Creating") or (is_word(machine.state, "Updating") and not machine.power)
    return PENDING if starts else RUNNING


def instance_of(machine: VirtualMachine, azure_pool: AzurePool, *, token: str = "", reserved: Collection[str] = ()) -> Instance:
    """The machine as an instance; ``reserved`` are folded ids of machines in reservations that do not show them yet."""
    scale_set, agent_pool = azure_pool.scale_set, azure_pool.agent_pool
    group = scale_set or agent_pool
    assert group is not None, "a pool has a scale set or an agent pool"
    market, ident = machine.market or group.market, fold_id(machine.id)
    is_reserved = ident in reserved or any(ident in reservation.allocated for reservation in azure_pool.reservations)
    return Instance(
        id=provider_id(machine),
        pool=azure_pool.pool.name,
        market=RESERVED if is_reserved else market,
        instance_type=known_size(azure_pool, machine.size or group.size),
        zone=zone_key(azure_pool.location, machine.zone),
        state=state_of(machine),
        launched=machine.created,
        token=token,
        fault=fault_of(machine),
        protected=machine.protected,
    )


def known_size(azure_pool: AzurePool, size: str) -> str:
    """``size`` as the pool's offerings spell it."""
    return next((offering.instance_type for offering in azure_pool.pool.offerings if is_word(offering.instance_type, size)), size)


def fault_of(machine: VirtualMachine) -> str:
    """What Azure says about a machine that it could not set up, empty without a fault."""
    if not is_word(machine.state, "Failed"):
        return ""
    said = machine.extensions_text or ": ".join(filter(None, (machine.fault_code, machine.fault)))
    return said or "Azure could not set the machine up, and gave no reason"
