"""What keeps gpuscaler from buying or ending machines, or leaves something of them: settings of pools, locks, policies."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.azure.account import (
    CLUSTER,
    SPOT,
    AzurePool,
    AzureScaleSet,
    agent_pools,
    az,
    azure_check,
    scale_sets,
    settings_of,
)
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

LOCK = "azure/Lock"
_STAY = "stay as stopped ones that keep their quota and disks"
_READ_ONLY = "readonly"
#: The part of a lock's id behind what it locks.
_LOCKS = "/providers/microsoft.authorization/locks/"


def find_settings(evidence: Evidence) -> Iterator[Finding]:
    """D47: settings that exclude a pool, or that leave something behind."""
    for pool in agent_pools(evidence):
        if not pool.adopted:
            continue
        if pool.is_word("Deallocate", "scaleDownMode"):
            fix = Fix((pool.update("--scale-down-mode", "Delete"),))
            effect = f"ended machines would {_STAY}, so gpuscaler sets the pool aside"
            yield Finding("D47", CRITICAL, pool.title, "scaleDownMode", "Deallocate", "Delete", effect, fix)
        if SPOT in pool.markets and pool.is_word("Deallocate", "scaleSetEvictionPolicy"):
            yield _deallocates(pool, "scaleSetEvictionPolicy", "a node pool")
    for scale_set in scale_sets(evidence):
        if scale_set.adopted:
            yield from _scale_set(scale_set)


def _scale_set(scale_set: AzureScaleSet) -> Iterator[Finding]:
    over = scale_set.document.value("properties", "overprovision")
    # It is on unless a scale set says otherwise; AKS switches it off.
    if scale_set.document.text("Mode") == "Uniform" and (over is True or (over is None and not scale_set.agent_pool)):
        yield Finding(
            "D47",
            CRITICAL,
            scale_set.title,
            "overprovision",
            "true" if over else "no value, which means true",
            "false",
            "Azure starts more machines than were asked for, which become nodes and vanish; gpuscaler sets the scale set aside",
            Fix((scale_set.update("--set", "overprovision=false"),)),
        )
    if scale_set.agent_pool:
        return
    if SPOT in scale_set.markets and not scale_set.is_word("Delete", "virtualMachineProfile", "evictionPolicy"):
        yield _deallocates(scale_set, "virtualMachineProfile.evictionPolicy", "a scale set")
    for field in scale_set.document.texts("Kept"):
        yield Finding(
            "D47",
            WARNING,
            scale_set.title,
            field,
            "Detach",
            "Delete",
            "each ended machine leaves something that is billed or takes an address",
            Fix(advice="set deleteOption to Delete in the model of the scale set: it is in virtualMachineProfile"),
        )


def _deallocates(machines: AzurePool | AzureScaleSet, field: str, what: str) -> Finding:
    return Finding(
        "D47",
        CRITICAL,
        machines.title,
        field,
        machines.document.text("properties", *field.split(".")) or "no value, which means Deallocate",
        "Delete",
        f"evicted machines would {_STAY}, so gpuscaler sets the pool aside",
        Fix(advice=f"make {what} with the eviction policy Delete, and delete this one: the policy cannot be changed"),
    )


def find_locks(evidence: Evidence) -> Iterator[Finding]:
    """D47: locks on the subscription, on resource groups with machines, and on what is in them.

    AKS refuses to scale pools down while anything in the node resource group is locked (AKS issue 3291).
    """
    aks = {_node_group(pool) for pool in agent_pools(evidence) if pool.adopted}
    sets = [scale_set.document.text("id").lower() for scale_set in scale_sets(evidence) if scale_set.adopted]
    needed = {*aks, *sets, *_clusters(evidence)}
    for lock in evidence.of(LOCK):
        scope = lock.text("id").lower().rpartition(_LOCKS)[0]
        covers = any(f"{place}/".startswith(f"{scope}/") for place in needed)
        if scope and (covers or any(scope.startswith(f"{group}/") for group in aks)):
            yield _lock(lock, covers=covers)


def _node_group(pool: AzurePool) -> str:
    return f"/subscriptions/{pool.subscription}/resourcegroups/{pool.document.text('NodeResourceGroup')}".lower()


def _clusters(evidence: Evidence) -> Iterator[str]:
    """The clusters whose own API changes the sizes of pools."""
    by_setting = any(item.text("Api") == "agentpool" for item in settings_of(evidence))
    machines = any(pool.adopted and pool.is_word("VirtualMachines", "type") for pool in agent_pools(evidence))
    for cluster in evidence.of(CLUSTER):
        locked = cluster.text("properties", "nodeResourceGroupProfile", "restrictionLevel").lower() == _READ_ONLY
        if by_setting or machines or locked:
            yield cluster.text("id").lower()


def _lock(lock: Document, *, covers: bool) -> Finding:
    level = lock.text("properties", "level")
    parts = lock.text("id").split("/")
    place = parts[4] if len(parts) > 4 and parts[3].lower() == "resourcegroups" else lock.text("Subscription")
    if not covers:
        effect = "AKS refuses to scale its pools down, and to upgrade them, while something in the node resource group is locked"
    elif level.lower() == _READ_ONLY:
        effect = "no machine can be bought or ended: Azure refuses with ScopeLocked"
    else:
        effect = "machines cannot be ended: Azure refuses with ScopeLocked"
    return Finding(
        "D47",
        CRITICAL if covers else WARNING,
        f"Lock {place}/{lock.text('name')}",
        "level",
        level or "an unknown level",
        "no lock on machines, nor in a resource group that AKS manages",
        effect,
        Fix((az("lock", "delete", "--ids", lock.text("id")),)),
    )


def find_lockdown(evidence: Evidence) -> Iterable[Finding]:
    """D47: a setting of gpuscaler that cannot work in a locked node resource group."""
    if not any(item.text("Api") == "vmss" for item in settings_of(evidence)):
        return
    for cluster in evidence.of(CLUSTER):
        if cluster.text("properties", "nodeResourceGroupProfile", "restrictionLevel").lower() == _READ_ONLY:
            yield Finding(
                "D47",
                CRITICAL,
                "run file",
                "azure.api",
                "vmss",
                "auto",
                "Azure refuses every write: only AKS may write in the node resource group of the cluster (restrictionLevel ReadOnly)",
                Fix(advice="set azure.api to auto in the run file"),
            )


CHECKS = (
    azure_check("D47", "settings of pools and scale sets", (), find_settings),
    azure_check("D47", "locks", (LOCK,), find_locks),
    azure_check("D47", "the way of changing sizes", (), find_lockdown),
)
