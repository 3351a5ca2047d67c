"""Agent pools and what AKS does for them: making scale sets, reaching counts, following their operations."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from gpuscaler.embedded.azure.aks.models import VIRTUAL_MACHINES, pool_settings, scale_set_model
from gpuscaler.embedded.azure.compute import capacity, scale_sets
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.state import (
    AKS,
    CANCELED,
    DELETING,
    FAILED,
    SUCCEEDED,
    UPDATING,
    AgentPool,
    Cluster,
    Machine,
    Operation,
    ScaleSet,
)
from gpuscaler.embedded.azure.state import VIRTUAL_MACHINES as NO_SCALE_SET
from gpuscaler.embedded.azure.wire.errors import AzureError, Failure, bad_request


def make_pool(account: Contents, cluster: Cluster, name: str, wanted: Mapping[str, Any]) -> AgentPool:
    """A new pool of ``cluster`` without machines, with its scale set. Raises :class:`AzureError` for settings that AKS refuses."""
    pool = AgentPool(name, pool_settings(wanted))
    if pool.kind == VIRTUAL_MACHINES:
        for row in manual_scale(pool.settings):
            add_profile(account, cluster, pool, row["size"])
    else:
        if sizes.size_of(str(pool.settings.get("vmSize", ""))) is None:
            raise size_refused(cluster, str(pool.settings.get("vmSize", "")))
        shown = f"aks-{name}-{cluster.hash}-vmss"
        scale_set = scale_sets.create(account, cluster.subscription, cluster.node_group, shown, scale_set_model(cluster, pool, shown))
        scale_set.agent_pool, scale_set.cluster = pool, cluster
        scale_sets.add(account, scale_set)
        pool.scale_set = shown
    cluster.pools[name.lower()] = pool
    return pool


def size_refused(cluster: Cluster, size: str) -> AzureError:
    """AKS does not know a size."""
    text = f"Virtual Machine size: '{size}' is not supported for subscription {cluster.subscription} in location '{cluster.location}'."
    return bad_request(f"{text} Please refer to aka.ms/aks/vm-size-selector to find supported VM sizes.", code="VMSizeNotSupported")


def manual_scale(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The profiles that a pool of type VirtualMachines is to have: ``size`` and ``count``."""
    rows = ((settings.get("virtualMachinesProfile") or {}).get("scale") or {}).get("manual") or []
    return [{"size": str(row.get("size", "")), "count": int(row.get("count", 0))} for row in rows]


def add_profile(account: Contents, cluster: Cluster, pool: AgentPool, size: str) -> ScaleSet:
    """The machines of one size in a pool of type VirtualMachines."""
    if sizes.size_of(size) is None:
        raise size_refused(cluster, size)
    body = scale_set_model(cluster, AgentPool(pool.name, {**pool.settings, "vmSize": size}), f"aks-{pool.name}-{cluster.hash}-vms")
    body["properties"] |= {"orchestrationMode": NO_SCALE_SET}
    name = f"aks-{pool.name}-{cluster.hash}-vms"
    profile = scale_sets.create(account, cluster.subscription, cluster.node_group, name, body)
    profile.agent_pool, profile.cluster = pool, cluster
    profile.numbers = partial(_next_number, pool)
    pool.profiles[size.lower()] = profile
    return profile


def _next_number(pool: AgentPool) -> int:
    pool.next_number += 1
    return pool.next_number - 1


def sets_of(account: Contents, cluster: Cluster, pool: AgentPool) -> list[ScaleSet]:
    """The scale set of a pool, or its profiles."""
    if pool.kind == VIRTUAL_MACHINES:
        return list(pool.profiles.values())
    group = account.group(cluster.subscription, cluster.node_group)
    found = group.scale_sets.get(pool.scale_set.lower())
    return [found] if found is not None else []


def find_machines(account: Contents, cluster: Cluster, pool: AgentPool, names: Iterable[str]) -> list[tuple[ScaleSet, Machine]]:
    """Machines of a pool by the names of their nodes. Raises :class:`AzureError` if one is missing."""
    machines = {
        machine.computer.lower(): (scale_set, machine)
        for scale_set in sets_of(account, cluster, pool)
        for machine in scale_set.machines.values()
    }
    found = []
    for name in dict.fromkeys(names):
        if name.lower() not in machines:
            text = f"Machine '{name}' is not found in agent pool '{pool.name}'."
            raise bad_request(text, target="machineNames")
        found.append(machines[name.lower()])
    return found


def scale(account: Contents, cluster: Cluster, pool: AgentPool, wanted: Mapping[str, int]) -> Operation:
    """Have each scale set or profile of a pool (by its key of :func:`sets_of`, in lower case) reach a capacity; AKS's operation."""
    parts = {part.size.lower(): part for part in sets_of(account, cluster, pool)}
    refused: dict[str, Failure | None] = {}
    early: Failure | None = None
    for key, count in wanted.items():
        try:
            refused[key] = capacity.check_growth(account, parts[key], count - len(parts[key].counted))
        except AzureError as error:
            # AKS accepts the request and reports what the scale set answered with its own operation.
            early = error.failure
    operation = begin(account, cluster, pool)
    if pool.kind != VIRTUAL_MACHINES:
        pool.count = next(iter(wanted.values()), pool.count)
    if early is not None:
        account.put(account.time + account.conditions.aks_end, partial(_finish, account, pool, operation, [early], list(parts.values())))
        return operation
    starts = []
    for key, count in wanted.items():
        if count != parts[key].capacity or count != len(parts[key].counted):
            starts.append(partial(capacity.set_capacity, account, parts[key], count, refused=refused[key]))
    _follow(account, cluster, pool, operation, starts)
    return operation


def delete_machines(account: Contents, cluster: Cluster, pool: AgentPool, names: Iterable[str]) -> Operation:
    """Delete machines of a pool by name; its count falls with them."""
    found = find_machines(account, cluster, pool, names)
    operation = begin(account, cluster, pool)
    by_set: dict[str, tuple[ScaleSet, list[Machine]]] = {}
    for scale_set, machine in found:
        by_set.setdefault(f"{scale_set.name}/{scale_set.size}", (scale_set, []))[1].append(machine)
    pool.count = max(0, pool.count - len([machine for _, machine in found if machine.counted]))
    starts = [partial(capacity.delete_machines, account, scale_set, machines, force=False) for scale_set, machines in by_set.values()]
    _follow(account, cluster, pool, operation, starts)
    return operation


def remove(account: Contents, cluster: Cluster, pool: AgentPool) -> Operation:
    """Delete a pool and its machines."""
    operation = begin(account, cluster, pool)
    pool.state = DELETING
    if pool.kind == VIRTUAL_MACHINES:
        starts: list[Callable[[], Operation]] = [
            partial(capacity.delete_machines, account, part, list(part.machines.values()), force=True) for part in pool.profiles.values()
        ]
    else:
        starts = [partial(scale_sets.remove, account, scale_set) for scale_set in sets_of(account, cluster, pool)]

    def finish(ended: Operation) -> None:
        if ended.status == SUCCEEDED:
            cluster.pools.pop(pool.name.lower(), None)

    operation.then = finish
    _follow(account, cluster, pool, operation, starts)
    return operation


def begin(account: Contents, cluster: Cluster, pool: AgentPool) -> Operation:
    """A new operation of AKS on a pool."""
    operation = account.begin(cluster.subscription, cluster.location, AKS)
    pool.operation, pool.state = operation, UPDATING
    pool.version += 1
    cluster.version += 1
    return operation


def _follow(account: Contents, cluster: Cluster, pool: AgentPool, operation: Operation, starts: Iterable[Callable[[], Operation]]) -> None:
    """End AKS's operation when those of its scale sets have ended."""
    parts = sets_of(account, cluster, pool)
    running: set[str] = set()
    failures: list[Failure] = []

    def hear(ended: Operation) -> None:
        running.discard(ended.id)
        if ended.status in {FAILED, CANCELED} and ended.error is not None:
            failures.append(ended.error)
        if not running:
            account.put(account.time + account.conditions.aks_end, partial(_finish, account, pool, operation, failures, parts))

    begun = [start() for start in starts]
    for inner in begun:
        if inner.running:
            running.add(inner.id)
            before = inner.then
            inner.then = hear if before is None else partial(_both, before, hear)
    if not running:
        account.put(account.time + account.conditions.aks_end, partial(_finish, account, pool, operation, failures, parts))


def _both(first: Callable[[Operation], None], second: Callable[[Operation], None], operation: Operation) -> None:
    first(operation)
    second(operation)


def _finish(account: Contents, pool: AgentPool, operation: Operation, failures: list[Failure], parts: list[ScaleSet]) -> None:
    if not operation.running:
        return
    if pool.operation is operation:
        pool.state = FAILED if failures else SUCCEEDED
        for part in parts:
            capacity.schedule_sync(account, part)
    if not failures:
        account.end(operation, SUCCEEDED)
        return
    inner = capacity.worst(failures)
    text = f'Code="{inner.code}" Message="{inner.message}"'
    account.end(operation, FAILED, Failure("ReconcileVMSSAgentPoolFailed", text, details=(inner,)))
