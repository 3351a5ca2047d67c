"""Calls about machines: of Uniform and Flexible scale sets, and of agent pools without scale sets."""

import re
from collections.abc import Iterator
from typing import Any, Final

from gpuscaler.embedded.azure.compute import capacity
from gpuscaler.embedded.azure.compute.guarding import check_lock
from gpuscaler.embedded.azure.compute.interrupting import simulate_eviction
from gpuscaler.embedded.azure.compute.operating import accepted
from gpuscaler.embedded.azure.compute.scale_sets import find
from gpuscaler.embedded.azure.compute.views import instance_view, lagging_list, machine_json, without_view
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import UNIFORM, Machine, ScaleSet
from gpuscaler.embedded.azure.wire.errors import bad_request, no_resource
from gpuscaler.embedded.azure.wire.pages import page
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route
from gpuscaler.embedded.azure.wire.spellings import respell
from gpuscaler.model.azure_names import fold_id

_FILTER: Final = re.compile(r"'virtualMachineScaleSet/id'\s+eq\s+'(?P<id>[^']*)'", re.IGNORECASE)


# Uniform scale sets


def _list_uniform(account: Contents, call: Call) -> Reply:
    scale_set = find(account, call)
    if scale_set.mode != UNIFORM:
        text = "The operation 'virtualMachineScaleSets/virtualMachines' is not supported for scale sets with orchestration mode Flexible."
        raise bad_request(text, code="OperationNotAllowed")
    return _shown(account, call, lagging_list(account, scale_set))


def _shown(account: Contents, call: Call, machines: list[Any]) -> Reply:
    if "instanceview" not in call.query.get("$expand", "").lower():
        machines = [without_view(machine) for machine in machines]
    return page(call, respell(machines, account.conditions.spelling, account.dice), account.conditions.page)


def _uniform(account: Contents, call: Call) -> tuple[ScaleSet, Machine]:
    scale_set = find(account, call)
    machine = scale_set.machines.get(call.names["instance"])
    if machine is None or scale_set.mode != UNIFORM:
        raise no_instance(call.names["instance"])
    return scale_set, machine


def no_instance(instance: str) -> Exception:
    """An instance id of a Uniform scale set that is not in use."""
    text = f"The provided instanceId {instance} is not an active Virtual Machine Scale Set VM instanceId."
    return bad_request(text, target="instanceIds")


def _get_uniform(account: Contents, call: Call) -> Reply:
    scale_set, machine = _uniform(account, call)
    return Reply(machine_json(scale_set, machine, view="instanceview" in call.query.get("$expand", "").lower()))


def _uniform_view(account: Contents, call: Call) -> Reply:
    return Reply(instance_view(_uniform(account, call)[1]))


def _put_uniform(account: Contents, call: Call) -> Reply:
    """Only protection from scale-in can be changed."""
    scale_set, machine = _uniform(account, call)
    check_lock(
        account,
        account.group(scale_set.subscription, scale_set.group),
        "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write",
        scale_set.id,
    )
    policy = (call.json().get("properties") or {}).get("protectionPolicy") or {}
    machine.protected = bool(policy.get("protectFromScaleIn"))
    capacity.changed(account, scale_set)
    return Reply(machine_json(scale_set, machine, view=False))


def _delete_uniform(account: Contents, call: Call) -> Reply:
    scale_set, machine = _uniform(account, call)
    return _delete(account, call, scale_set, [machine])


def _delete_instances(account: Contents, call: Call) -> Reply:
    scale_set = find(account, call)
    wanted = call.json().get("instanceIds")
    if not isinstance(wanted, list) or not wanted:
        raise bad_request("Required parameter 'instanceIds' is missing (null).", target="instanceIds")
    machines = []
    by_key = {key.lower(): machine for key, machine in scale_set.machines.items()}
    for instance in dict.fromkeys(str(item) for item in wanted):
        machine = by_key.get(instance.lower())
        if machine is None:
            raise no_instance(instance)
        machines.append(machine)
    return _delete(account, call, scale_set, machines)


def _delete(account: Contents, call: Call, scale_set: ScaleSet, machines: list[Machine]) -> Reply:
    group = account.group(scale_set.subscription, scale_set.group)
    check_lock(account, group, "Microsoft.Compute/virtualMachineScaleSets/delete/action", scale_set.id)
    force = call.query.get("forcedeletion", "").lower() == "true"
    operation = capacity.delete_machines(account, scale_set, machines, force=force)
    return Reply(status=202, headers=accepted(account, call, operation, location=True))


# Virtual machines


def _flexible(account: Contents, subscription: str, group: str = "") -> Iterator[ScaleSet]:
    account.check_subscription(subscription)
    if group:
        account.group(subscription, group)
    for scale_set in account.all_scale_sets():
        in_group = not group or fold_id(scale_set.group) == fold_id(group)
        if scale_set.mode != UNIFORM and in_group and fold_id(scale_set.subscription) == fold_id(subscription):
            yield scale_set


def _list_flexible(account: Contents, call: Call) -> Reply:
    text = call.query.get("$filter", "")
    match = _FILTER.search(text)
    if text and match is None:
        raise bad_request(f"Invalid filter '{text}'.", code="BadRequest", target="$filter")
    machines: list[Any] = []
    for scale_set in _flexible(account, call.names["subscription"], call.names.get("group", "")):
        if match is None or fold_id(match["id"]) == fold_id(scale_set.id):
            machines += lagging_list(account, scale_set)
    return _shown(account, call, machines)


def _one_flexible(account: Contents, call: Call) -> tuple[ScaleSet, Machine]:
    for scale_set in _flexible(account, call.names["subscription"], call.names["group"]):
        for machine in scale_set.machines.values():
            if machine.name.lower() == call.names["machine"].lower():
                return scale_set, machine
    raise no_resource("Microsoft.Compute/virtualMachines", call.names["machine"], call.names["group"])


def _get_flexible(account: Contents, call: Call) -> Reply:
    scale_set, machine = _one_flexible(account, call)
    return Reply(machine_json(scale_set, machine, view="instanceview" in call.query.get("$expand", "").lower()))


def _flexible_view(account: Contents, call: Call) -> Reply:
    return Reply(instance_view(_one_flexible(account, call)[1]))


def _delete_flexible(account: Contents, call: Call) -> Reply:
    scale_set, machine = _one_flexible(account, call)
    return _delete(account, call, scale_set, [machine])


def _evict_uniform(account: Contents, call: Call) -> Reply:
    simulate_eviction(account, *_uniform(account, call))
    return Reply(status=204)


def _evict_flexible(account: Contents, call: Call) -> Reply:
    simulate_eviction(account, *_one_flexible(account, call))
    return Reply(status=204)


_COMPUTE: Final = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"
_SET: Final = f"{_COMPUTE}/virtualMachineScaleSets/{{set}}"
_VM: Final = f"{_COMPUTE}/virtualMachines"
ROUTES: Final = (
    Route("POST", f"{_SET}/delete", _delete_instances, "delete-machines"),
    Route("GET", f"{_SET}/virtualMachines", _list_uniform, "high-get-set"),
    Route("GET", f"{_SET}/virtualMachines/{{instance}}", _get_uniform, "low-get"),
    Route("PUT", f"{_SET}/virtualMachines/{{instance}}", _put_uniform, "put-set"),
    Route("DELETE", f"{_SET}/virtualMachines/{{instance}}", _delete_uniform, "delete-machines"),
    Route("GET", f"{_SET}/virtualMachines/{{instance}}/instanceView", _uniform_view, "low-get"),
    Route("POST", f"{_SET}/virtualMachines/{{instance}}/simulateEviction", _evict_uniform, "write"),
    Route("GET", _VM, _list_flexible, "high-get"),
    Route("GET", "/subscriptions/{subscription}/providers/Microsoft.Compute/virtualMachines", _list_flexible, "high-get"),
    Route("GET", f"{_VM}/{{machine}}", _get_flexible, "low-get"),
    Route("GET", f"{_VM}/{{machine}}/instanceView", _flexible_view, "low-get"),
    Route("DELETE", f"{_VM}/{{machine}}", _delete_flexible, "delete-machines"),
    Route("POST", f"{_VM}/{{machine}}/simulateEviction", _evict_flexible, "write"),
)
