"""Calls about capacity reservation groups and their reservations, which callers only read."""

from typing import Any, Final

from gpuscaler.embedded.azure.compute.reserving import allocated, group_of
from gpuscaler.embedded.azure.compute.views import machine_id
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import ReservationGroup
from gpuscaler.embedded.azure.wire.errors import no_resource
from gpuscaler.embedded.azure.wire.pages import page
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route
from gpuscaler.model.azure_names import fold_id

_KIND: Final = "Microsoft.Compute/capacityReservationGroups"
_READY: Final = [{"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}]


def _reservation_json(account: Contents, group: ReservationGroup, reservation: dict[str, Any], *, view: bool) -> dict[str, Any]:
    machines = [{"id": machine_id(scale_set, machine)} for scale_set, machine in allocated(account, group, reservation)]
    properties: dict[str, Any] = {"provisioningState": "Succeeded", "virtualMachinesAssociated": machines}
    if view:
        properties["instanceView"] = _view(account, group, reservation)
    return {
        "name": reservation["name"],
        "id": f"{group.id}/capacityReservations/{reservation['name']}",
        "type": f"{_KIND}/capacityReservations",
        "location": group.location,
        "sku": reservation["sku"],
        **({"zones": reservation["zones"]} if reservation.get("zones") else {}),
        "properties": properties,
    }


def _view(account: Contents, group: ReservationGroup, reservation: dict[str, Any]) -> dict[str, Any]:
    machines = [{"id": machine_id(scale_set, machine)} for scale_set, machine in allocated(account, group, reservation)]
    used = {"currentCapacity": reservation["sku"]["capacity"], "virtualMachinesAllocated": machines}
    return {"utilizationInfo": used, "statuses": _READY}


def _group_json(account: Contents, group: ReservationGroup, *, view: bool) -> dict[str, Any]:
    machines = [
        {"id": machine_id(scale_set, machine)}
        for scale_set in account.all_scale_sets()
        if group_of(account, scale_set) is group
        for machine in scale_set.machines.values()
    ]
    properties: dict[str, Any] = {
        "capacityReservations": [{"id": f"{group.id}/capacityReservations/{row['name']}"} for row in group.reservations.values()],
        "virtualMachinesAssociated": machines,
    }
    if view:
        views = [{"name": row["name"], **_view(account, group, row)} for row in group.reservations.values()]
        properties["instanceView"] = {"capacityReservations": views}
    shown = {"name": group.name, "id": group.id, "type": _KIND, "location": group.location}
    return {**shown, **({"zones": list(group.zones)} if group.zones else {}), "properties": properties}


def _wants_view(call: Call) -> bool:
    return "instanceview" in call.query.get("$expand", "").lower()


def _list(account: Contents, call: Call) -> Reply:
    subscription, name = account.check_subscription(call.names["subscription"]), call.names.get("group", "")
    if name:
        account.group(subscription, name)
    found = [
        _group_json(account, reservation_group, view=_wants_view(call))
        for group in account.groups.values()
        if fold_id(group.subscription) == fold_id(subscription) and (not name or fold_id(group.name) == fold_id(name))
        for reservation_group in group.reservation_groups.values()
    ]
    return page(call, found, account.conditions.page)


def _find(account: Contents, call: Call) -> ReservationGroup:
    group = account.group(call.names["subscription"], call.names["group"])
    found = group.reservation_groups.get(call.names["reserved"].lower())
    if found is None:
        raise no_resource(_KIND, call.names["reserved"], group.name)
    return found


def _get(account: Contents, call: Call) -> Reply:
    return Reply(_group_json(account, _find(account, call), view=_wants_view(call)))


def _list_reservations(account: Contents, call: Call) -> Reply:
    """The list has no instance views: they come with a single reservation, or with the group's."""
    group = _find(account, call)
    return page(call, [_reservation_json(account, group, row, view=False) for row in group.reservations.values()], account.conditions.page)


def _get_reservation(account: Contents, call: Call) -> Reply:
    group = _find(account, call)
    row = group.reservations.get(call.names["reservation"].lower())
    if row is None:
        raise no_resource(f"{_KIND}/{group.name}/capacityReservations", call.names["reservation"], group.group)
    return Reply(_reservation_json(account, group, row, view=_wants_view(call)))


_COMPUTE: Final = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"
_GROUPS: Final = f"{_COMPUTE}/capacityReservationGroups"
ROUTES: Final = (
    Route("GET", _GROUPS, _list, "low-get"),
    Route("GET", "/subscriptions/{subscription}/providers/Microsoft.Compute/capacityReservationGroups", _list, "low-get"),
    Route("GET", f"{_GROUPS}/{{reserved}}", _get, "low-get"),
    Route("GET", f"{_GROUPS}/{{reserved}}/capacityReservations", _list_reservations, "low-get"),
    Route("GET", f"{_GROUPS}/{{reserved}}/capacityReservations/{{reservation}}", _get_reservation, "low-get"),
)
