"""Scale sets and machines as JSON."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuscaler.embedded.azure.hardware.refusals import BOOTSTRAP
from gpuscaler.embedded.azure.state import FAILED, FLEXIBLE, UNIFORM, Machine, ScaleSet

if TYPE_CHECKING:
    from gpuscaler.embedded.azure.contents import Contents

_SET: Final = "Microsoft.Compute/virtualMachineScaleSets"
_SECRET: Final = frozenset({"adminPassword", "customData", "protectedSettings"})
_DISPLAYED: Final = {"Creating": "Creating", "Succeeded": "Provisioning succeeded", "Deleting": "Deleting", "Failed": "Provisioning failed"}


def iso(seconds: float) -> str:
    """A time as ARM writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0+00:00")


def scale_set_json(scale_set: ScaleSet) -> dict[str, Any]:
    """A scale set."""
    model = scale_set.model
    return {
        "name": scale_set.name,
        "id": scale_set.id,
        "type": _SET,
        "location": scale_set.location,
        **({"tags": model["tags"]} if model.get("tags") else {}),
        "sku": {"name": scale_set.size, "tier": "Standard", "capacity": scale_set.capacity},
        **{key: model[key] for key in ("identity", "zones", "plan") if model.get(key)},
        "etag": scale_set.etag,
        "properties": {
            **without_secrets(model["properties"]),
            "provisioningState": scale_set.state,
            "uniqueId": scale_set.unique_id,
            "timeCreated": iso(scale_set.created_at),
        },
    }


def without_secrets(value: Any) -> Any:
    """A JSON value without what can be written, but is never shown."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items() if key not in _SECRET}
    return [without_secrets(item) for item in value] if isinstance(value, list) else value


def machine_id(scale_set: ScaleSet, machine: Machine) -> str:
    """The resource id of a scale set's machine."""
    if scale_set.mode != UNIFORM:
        group = f"/subscriptions/{scale_set.subscription}/resourceGroups/{scale_set.group}"
        return f"{group}/providers/Microsoft.Compute/virtualMachines/{machine.name}"
    return f"{scale_set.id}/virtualMachines/{machine.key}"


def machine_json(scale_set: ScaleSet, machine: Machine, *, view: bool) -> dict[str, Any]:
    """A machine of a scale set of either mode, with its instance view if ``view``."""
    shown = machine_id(scale_set, machine)
    properties: dict[str, Any] = {
        "vmId": machine.vm_id,
        "provisioningState": machine.state,
        "timeCreated": iso(machine.created_at),
        "osProfile": {"computerName": machine.computer, "adminUsername": "azureuser", "allowExtensionOperations": True},
        "storageProfile": {
            "osDisk": {
                "osType": "Linux",
                "name": f"{machine.name}_OsDisk_1_{machine.vm_id[-12:]}",
                "createOption": "FromImage",
                "deleteOption": "Delete",
            }
        },
    }
    entry: dict[str, Any] = {"name": machine.name, "id": shown, "location": scale_set.location}
    if scale_set.model.get("tags"):
        entry["tags"] = scale_set.model["tags"]
    if machine.zone not in {"", "0"}:
        entry["zones"] = [machine.zone]
    if scale_set.mode != UNIFORM:
        entry["type"] = "Microsoft.Compute/virtualMachines"
        properties |= {
            "hardwareProfile": {"vmSize": machine.size},
            "networkProfile": {
                "networkInterfaces": [
                    {"id": f"{shown.partition('/providers/')[0]}/providers/Microsoft.Network/networkInterfaces/{machine.name}-nic"}
                ]
            },
        }
        if scale_set.mode == FLEXIBLE:
            properties["virtualMachineScaleSet"] = {"id": scale_set.id}
        if machine.market == "spot":
            properties |= {
                "priority": "Spot",
                "evictionPolicy": scale_set.profile.get("evictionPolicy", "Deallocate"),
                "billingProfile": scale_set.profile.get("billingProfile") or {"maxPrice": -1},
            }
        else:
            properties["priority"] = "Regular"
    else:
        entry |= {"type": f"{_SET}/virtualMachines", "instanceId": machine.key, "sku": {"name": machine.size, "tier": "Standard"}}
        properties |= {
            "latestModelApplied": True,
            "modelDefinitionApplied": "VirtualMachineScaleSet",
            "hardwareProfile": {},
            "networkProfile": {"networkInterfaces": [{"id": f"{shown}/networkInterfaces/{scale_set.name}"}]},
        }
        if machine.protected:
            properties["protectionPolicy"] = {"protectFromScaleIn": True}
    if view:
        properties["instanceView"] = instance_view(machine)
    return {**entry, "properties": properties}


def instance_view(machine: Machine) -> dict[str, Any]:
    """States of a machine: its provisioning, its power if it has hardware, its extension."""
    when = iso(machine.state_at or machine.created_at)
    provisioning: dict[str, Any] = {
        "code": f"ProvisioningState/{machine.state.lower()}",
        "level": "Info",
        "displayStatus": _DISPLAYED.get(machine.state, machine.state),
        "time": when,
    }
    if machine.state == FAILED and machine.error is not None:
        provisioning |= {"code": f"ProvisioningState/failed/{machine.error.code}", "level": "Error", "message": machine.error.message}
    statuses = [provisioning]
    if machine.power:
        statuses.append({"code": f"PowerState/{machine.power}", "level": "Info", "displayStatus": f"VM {machine.power}"})
    view: dict[str, Any] = {"statuses": statuses}
    if machine.power in {"running", "stopping"}:
        view |= {"computerName": machine.computer, "osName": "ubuntu", "osVersion": "22.04", "hyperVGeneration": "V2"}
        view["extensions"] = [_extension(machine, when)]
    return view


def _extension(machine: Machine, when: str) -> dict[str, Any]:
    failed = machine.reported is not None and machine.reported.code in BOOTSTRAP and machine.reported.code.startswith("VMExtension")
    status: dict[str, Any] = {
        "code": "ProvisioningState/succeeded",
        "level": "Info",
        "displayStatus": "Provisioning succeeded",
        "time": when,
    }
    if failed and machine.reported is not None:
        status |= {"code": "ProvisioningState/failed/50", "level": "Error", "displayStatus": "Provisioning failed"}
        status["message"] = machine.reported.message
    kind = {"name": "vmssCSE", "type": "Microsoft.Azure.Extensions.CustomScript", "typeHandlerVersion": "2.1.13"}
    return {**kind, "statuses": [status]}


def machine_list(_account: "Contents", scale_set: ScaleSet) -> list[Any]:
    """All machines of a scale set, with instance views."""
    return [machine_json(scale_set, machine, view=True) for machine in scale_set.machines.values()]


def lagging_list(account: "Contents", scale_set: ScaleSet) -> list[Any]:
    """The machines of a scale set as lists show them: as they were :attr:`Conditions.read_lag` seconds ago."""
    lag = account.conditions.read_lag
    if lag and scale_set.lists:
        earlier = [shown for at, shown in scale_set.lists if at <= account.time - lag]
        return earlier[-1] if earlier else []
    return machine_list(account, scale_set)


def without_view(machine: Mapping[str, Any]) -> dict[str, Any]:
    """A machine without its instance view."""
    properties = {key: value for key, value in machine["properties"].items() if key != "instanceView"}
    return {**machine, "properties": properties}
