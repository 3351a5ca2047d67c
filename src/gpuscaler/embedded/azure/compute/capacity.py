"""Capacity of scale sets: growing, failing, shrinking, deleting machines, evictions."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from gpuscaler.embedded.azure.compute import reserving, views
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.hardware.hardware import SPOT
from gpuscaler.embedded.azure.hardware.refusals import quota_failure, raised
from gpuscaler.embedded.azure.state import (
    CANCELED,
    CREATING,
    DELETING,
    FAILED,
    FLEXIBLE,
    IN_PROGRESS,
    PREEMPTED,
    SUCCEEDED,
    UNIFORM,
    UPDATING,
    VIRTUAL_MACHINES,
    Machine,
    Operation,
    ScaleSet,
)
from gpuscaler.embedded.azure.wire.errors import Failure
from gpuscaler.model.azure_names import base_36
from gpuscaler.simulation.cloud.machines import CloudMachine

_MINUTES: Final = re.compile(r"PT([0-9]{1,2})M")


def zone_keys(scale_set: ScaleSet) -> tuple[str, ...]:
    """The zones of a scale set as offerings have them, such as ``eastus-1``; ``eastus-0`` if it is not zonal."""
    return tuple(f"{scale_set.location}-{zone}" for zone in scale_set.zones)


def check_growth(account: Contents, scale_set: ScaleSet, count: int) -> Failure | None:
    """Raise :class:`AzureError` if ``count`` more machines are refused at once; returns a failure that is to come with the operation."""
    if count <= 0:
        return None
    refused = account.hardware.refused_at_once(scale_set.market, scale_set.size, zone_keys(scale_set), count)
    if refused is not None:
        raise raised(*refused)
    failure = exceeded_quota(account, scale_set, count)
    if failure is not None and account.conditions.quota == "answer":
        raise raised(failure)
    return failure


def exceeded_quota(account: Contents, scale_set: ScaleSet, count: int) -> Failure | None:
    """The quota that ``count`` more machines exceed."""
    details, subscription, location = sizes.size_of(scale_set.size), scale_set.subscription, scale_set.location
    required = count * details.vcpu if details is not None else 0
    usage = account.usage(subscription, location)
    names = ("lowPriorityCores",) if scale_set.market == SPOT else ("cores", sizes.family(details.name if details is not None else ""))
    for name in names:
        limit, used = account.limit(subscription, location, name), usage.get(name, 0)
        if used + required > limit:
            return quota_failure(name, location=location, limit=limit, usage=used, required=required)
    return None


def set_capacity(account: Contents, scale_set: ScaleSet, capacity: int, *, refused: Failure | None = None) -> Operation:
    """Set the capacity of a scale set and begin to reach it; a running operation is superseded. ``refused`` fails all new machines."""
    operation = account.begin(scale_set.subscription, scale_set.location)
    _preempt_deletions(account, scale_set)
    superseded = scale_set.operation
    scale_set.operation = operation
    if superseded is not None:
        account.end(superseded, CANCELED, PREEMPTED)
    scale_set.capacity = capacity
    for machine in scale_set.machines.values():
        # The number that was written is without what is being deleted.
        machine.falls_later = False
    scale_set.state = UPDATING
    counted = scale_set.counted
    operation.waiting |= {machine.key for machine in counted if machine.state == CREATING}
    if len(counted) < capacity:
        added = [_add_machine(account, scale_set) for _ in range(capacity - len(counted))]
        operation.waiting |= {machine.key for machine in added}
        account.put(account.time + account.conditions.allocation, partial(_allocate, account, scale_set, added, refused))
    elif len(counted) > capacity:
        _shrink(account, scale_set, len(counted) - capacity)
    if not operation.waiting:
        account.put(account.time + min(1.0, account.conditions.allocation), partial(_end_if_done, account, scale_set, operation))
    changed(account, scale_set)
    return operation


def changed(account: Contents, scale_set: ScaleSet, *, etag: bool = True) -> None:
    """Record a change of a scale set or its machines."""
    if etag:
        scale_set.version += 1
    if account.conditions.read_lag:
        record_list(account, scale_set)
    schedule_sync(account, scale_set)


def schedule_sync(account: Contents, scale_set: ScaleSet) -> None:
    """Have AKS notice a capacity that is not the count of its agent pool."""
    pool = scale_set.agent_pool
    if pool is not None and scale_set.mode == UNIFORM and pool.count != scale_set.capacity and not scale_set.sync_due:
        scale_set.sync_due = True
        account.put(account.time + account.conditions.aks_sync, partial(_sync_agent_pool, account, scale_set))


def _sync_agent_pool(account: Contents, scale_set: ScaleSet) -> None:
    """AKS notices the capacity that its scale set got from others; while it changes the pool itself, it looks later."""
    pool = scale_set.agent_pool
    if pool is None or pool.count == scale_set.capacity:
        scale_set.sync_due = False
    elif pool.operation is not None and pool.operation.running:
        account.put(account.time + max(1.0, account.conditions.aks_sync), partial(_sync_agent_pool, account, scale_set))
    else:
        scale_set.sync_due = False
        pool.count = scale_set.capacity
        pool.version += 1


def record_list(account: Contents, scale_set: ScaleSet, *, at: float | None = None) -> None:
    """Keep the list of a scale set's machines for reads that lag, as it is since ``at`` (None: now)."""
    del scale_set.lists[:-200]
    scale_set.lists.append((account.time if at is None else at, views.machine_list(account, scale_set)))


# Growing


def _add_machine(account: Contents, scale_set: ScaleSet) -> Machine:
    if scale_set.numbers is not None:
        number = scale_set.numbers()
    else:
        number = scale_set.next_number
        scale_set.next_number += 1
    if scale_set.mode == VIRTUAL_MACHINES:
        key = name = computer = f"{scale_set.name}{number}"
    elif scale_set.mode == FLEXIBLE:
        name = f"{scale_set.name}_{account.number() * 2_654_435_761 % 2**32:08x}"
        key, computer = name, f"{scale_set.name[:9]}{base_36(number).rjust(6, '0').upper()}"
    else:
        key, name = str(number), f"{scale_set.name}_{number}"
        computer = f"{scale_set.profile.get('osProfile', {}).get('computerNamePrefix', scale_set.name)}{base_36(number).rjust(6, '0')}"
    machine = Machine(key, name, computer, scale_set.size, scale_set.market, "", account.time, account.uuid(), state_at=account.time)
    scale_set.machines[key] = machine
    return machine


def _allocate(account: Contents, scale_set: ScaleSet, machines: Sequence[Machine], refused: Failure | None) -> None:
    """Place new machines, each in the zone of its scale set with the fewest machines that has capacity."""
    for machine in machines:
        if scale_set.machines.get(machine.key) is not machine or machine.state != CREATING:
            continue
        result = refused or _place(account, scale_set, machine)
        if isinstance(result, CloudMachine):
            machine.cloud, machine.power = result, "starting"
            account.owners[result.id] = (scale_set, machine)
            where = f"{scale_set.location}-{machine.zone}"
            machine.doomed = account.hardware.bootstrap_failure(machine.market, machine.size, where, machine.name)
            account.put(account.time + account.conditions.provisioning, partial(_finish_machine, account, scale_set, machine))
        else:
            _fail_machine(account, scale_set, machine, result)
    changed(account, scale_set, etag=False)


def _place(account: Contents, scale_set: ScaleSet, machine: Machine) -> CloudMachine | Failure:
    load = dict.fromkeys(scale_set.zones, 0)
    for other in scale_set.counted:
        if other.cloud is not None and other.zone in load:
            load[other.zone] += 1
    maximum = (scale_set.profile.get("billingProfile") or {}).get("maxPrice")
    result: CloudMachine | Failure = Failure("InternalExecutionError", "An internal execution error occurred.")
    for zone in sorted(load, key=lambda zone: load[zone]):
        machine.zone = zone
        where = f"{scale_set.location}-{zone}"
        reserved = reserving.place(account, scale_set, where)
        if reserved is not None:
            machine.reserved = True
            return reserved
        result = account.hardware.place(scale_set.market, scale_set.size, where, account.time, bid=maximum)
        if isinstance(result, CloudMachine):
            return result
    return result


def _fail_machine(account: Contents, scale_set: ScaleSet, machine: Machine, failure: Failure) -> None:
    operation = scale_set.operation
    machine.state, machine.error, machine.state_at = FAILED, failure, account.time
    if account.conditions.failed == "vanish":
        del scale_set.machines[machine.key]
    if operation is not None and machine.key in operation.waiting:
        operation.failures.append(failure)
        operation.waiting.discard(machine.key)
        if account.conditions.fails_fast:
            _end(account, scale_set, operation)
        _end_if_done(account, scale_set, operation)


def _finish_machine(account: Contents, scale_set: ScaleSet, machine: Machine) -> None:
    """A placed machine has been provisioned: it runs, whether its extension succeeded or not."""
    if scale_set.machines.get(machine.key) is not machine or machine.state != CREATING:
        return
    machine.reported = machine.doomed
    machine.state = FAILED if machine.reported is not None else SUCCEEDED
    machine.error, machine.power, machine.state_at = machine.reported, "running", account.time
    operation = scale_set.operation
    if operation is not None and machine.key in operation.waiting:
        operation.waiting.discard(machine.key)
        if machine.reported is not None:
            operation.failures.append(machine.reported)
        _end_if_done(account, scale_set, operation)
    changed(account, scale_set, etag=False)


def _end_if_done(account: Contents, scale_set: ScaleSet, operation: Operation) -> None:
    if operation.running and not operation.waiting:
        _end(account, scale_set, operation)


def _end(account: Contents, scale_set: ScaleSet, operation: Operation) -> None:
    failed = operation.failures
    if scale_set.operation is operation:
        scale_set.state = FAILED if failed else SUCCEEDED
    account.end(operation, FAILED if failed else SUCCEEDED, nested(worst(failed), account.conditions.nesting) if failed else None)


def worst(failures: Sequence[Failure]) -> Failure:
    """The failure that an operation reports: the most frequent one, of those the last."""
    codes = [failure.code for failure in failures]
    code = max(reversed(codes), key=codes.count)
    return next(failure for failure in reversed(failures) if failure.code == code)


def nested(failure: Failure, nesting: str) -> Failure:
    """A failure inside of the errors that ARM and AKS put around it."""
    if nesting == "details":
        text = "At least one resource deployment operation failed. Please list deployment operations for details."
        return Failure("DeploymentFailed", text, details=(failure,))
    if nesting == "text":
        return Failure("ReconcileVMSSAgentPoolFailed", f'Code="{failure.code}" Message="{failure.message}"')
    if nesting == "json":
        return Failure("DeploymentFailed", json.dumps({"error": failure.as_json()}))
    return failure


# Shrinking and deleting


def _shrink(account: Contents, scale_set: ScaleSet, count: int) -> None:
    """Delete machines for a lower capacity, as the default scale-in policy does: balance zones, then the highest instance ids."""
    for _ in range(count):
        left = [machine for machine in scale_set.counted if not machine.protected]
        if not left:
            return
        load: dict[str, int] = {}
        for machine in left:
            load[machine.zone] = load.get(machine.zone, 0) + 1
        unwanted = [machine for machine in left if machine.unwanted]
        failed = [machine for machine in left if machine.state == FAILED and machine.cloud is None]
        choice = unwanted or failed or [machine for machine in left if load[machine.zone] == max(load.values())]
        _begin_deletion(account, scale_set, [choice[-1]], force=False, operation=None, lowers=False)


def delete_machines(account: Contents, scale_set: ScaleSet, machines: Iterable[Machine], *, force: bool) -> Operation:
    """Delete machines by id; the capacity falls with them."""
    operation = account.begin(scale_set.subscription, scale_set.location)
    _begin_deletion(account, scale_set, list(machines), force=force, operation=operation, lowers=True)
    if not operation.waiting:
        account.put(account.time, partial(account.end, operation, SUCCEEDED))
    changed(account, scale_set, etag=account.conditions.etag_of_deletions)
    return operation


def _begin_deletion(
    account: Contents, scale_set: ScaleSet, machines: Sequence[Machine], *, force: bool, operation: Operation | None, lowers: bool
) -> None:
    conditions = account.conditions
    falls_now = lowers and conditions.capacity_falls == "start"
    for machine in machines:
        if machine.state == DELETING:
            continue
        machine.state, machine.state_at, machine.ended_by = DELETING, account.time, operation
        if machine.power:
            machine.power = "stopping"
        if falls_now:
            scale_set.capacity = max(0, scale_set.capacity - 1)
        if operation is not None:
            operation.waiting.add(machine.key)
        growing = scale_set.operation
        if growing is not None and machine.key in growing.waiting:
            growing.waiting.discard(machine.key)
            _end_if_done(account, scale_set, growing)
        seconds = conditions.forced if force or machine.cloud is None else conditions.deleting
        machine.falls_later = lowers and not falls_now
        end = partial(_end_later, account, seconds, partial(_finish_deletion, account, scale_set, machine, operation))
        notice = 0.0 if force or machine.cloud is None else _terminate_notice(scale_set)
        if notice:
            account.announce(machine, "Terminate", account.time + notice).act = end
        else:
            end()


def _end_later(account: Contents, seconds: float, act: Callable[[], None]) -> None:
    account.put(account.time + seconds, act)


def _terminate_notice(scale_set: ScaleSet) -> float:
    """Seconds between the event Terminate and the deletion, 0 without one: scale sets switch it on, and spot machines have none."""
    events = scale_set.profile.get("scheduledEventsProfile") or {}
    settings = events.get("terminateNotificationProfile") or {}
    match = _MINUTES.fullmatch(str(settings.get("notBeforeTimeout") or "PT5M"))
    return 60.0 * int(match[1]) if settings.get("enable") and match is not None and scale_set.market != SPOT else 0.0


def _finish_deletion(account: Contents, scale_set: ScaleSet, machine: Machine, operation: Operation | None) -> None:
    if scale_set.machines.get(machine.key) is not machine or machine.state != DELETING or machine.ended_by is not operation:
        return
    del scale_set.machines[machine.key]
    account.withdraw_events(machine)
    if machine.falls_later:
        scale_set.capacity = max(0, scale_set.capacity - 1)
    if machine.cloud is not None:
        account.hardware.end(machine.cloud, account.time)
        account.owners.pop(machine.cloud.id, None)
    if operation is not None and operation.running:
        operation.waiting.discard(machine.key)
        if not operation.waiting:
            account.end(operation, SUCCEEDED)
    changed(account, scale_set, etag=account.conditions.etag_of_deletions and operation is not None)


def _preempt_deletions(account: Contents, scale_set: ScaleSet) -> None:
    """A later write ends running deletions by id: machines that still exist stay, and count again."""
    deletions = {
        machine.ended_by.id: machine.ended_by
        for machine in scale_set.machines.values()
        if machine.ended_by is not None and machine.ended_by.status == IN_PROGRESS
    }
    if not deletions or not (account.conditions.preempts or account.preempt_deletions > 0):
        return
    account.preempt_deletions = max(0, account.preempt_deletions - 1)
    for machine in scale_set.machines.values():
        if machine.ended_by is not None and machine.ended_by.id in deletions:
            machine.ended_by, machine.falls_later, machine.unwanted = None, False, True
            account.withdraw_events(machine)
            failed = machine.error is not None
            machine.state = FAILED if failed else SUCCEEDED if machine.cloud is not None else FAILED
            machine.power = "running" if machine.cloud is not None else ""
    for operation in deletions.values():
        account.end(operation, FAILED, PREEMPTED)


# Machines that end by themselves


def handle_loss(account: Contents, scale_set: ScaleSet, machine: Machine) -> None:
    """A machine is evicted or lost: with the policy Delete it vanishes and the capacity falls, with Deallocate it stays without power."""
    if scale_set.machines.get(machine.key) is not machine:
        return
    account.withdraw_events(machine)
    operation = scale_set.operation
    if scale_set.profile.get("evictionPolicy") == "Deallocate" and machine.market == SPOT:
        machine.power, machine.deallocated, machine.cloud = "deallocated", True, None
        machine.state = SUCCEEDED
    else:
        del scale_set.machines[machine.key]
        if machine.counted or machine.falls_later:
            scale_set.capacity = max(0, scale_set.capacity - 1)
    ending = machine.ended_by
    if ending is not None and ending.running:
        ending.waiting.discard(machine.key)
        if not ending.waiting:
            account.end(ending, SUCCEEDED)
    if operation is not None and machine.key in operation.waiting:
        operation.waiting.discard(machine.key)
        _end_if_done(account, scale_set, operation)
    changed(account, scale_set, etag=account.conditions.etag_of_deletions)


def start_machines(account: Contents, scale_set: ScaleSet, count: int) -> None:
    """Give a scale set machines that have been running for long."""
    for _ in range(count):
        machine = _add_machine(account, scale_set)
        load = {zone: sum(other.zone == zone for other in scale_set.counted) for zone in scale_set.zones}
        machine.zone = min(load, key=lambda zone: load[zone])
        machine.state, machine.power = SUCCEEDED, "running"
        scale_set.capacity += 1
        hardware = account.hardware.add(scale_set.market, scale_set.size, f"{scale_set.location}-{machine.zone}", account.time)
        machine.cloud = hardware
        account.owners[hardware.id] = (scale_set, machine)
        account.hardware.report(hardware, account.time)
    if account.conditions.read_lag:
        record_list(account, scale_set)
