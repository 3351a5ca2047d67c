"""Calls about what a subscription may use: Resource SKUs with restrictions, usages with quotas; resource groups and subscriptions."""

import re
from typing import Any, Final

from gpuscaler.catalogue import InstanceType
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.state import ResourceGroup
from gpuscaler.embedded.azure.wire.errors import bad_request
from gpuscaler.embedded.azure.wire.pages import page
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route
from gpuscaler.model.azure_names import fold_id

_LOCATION: Final = re.compile(r"location\s+eq\s+'(?P<location>[^']*)'", re.IGNORECASE)
#: Items in a page of Resource SKUs: the real list comes in pages of about a thousand.
_SKUS: Final = 1000


def _skus(account: Contents, call: Call) -> Reply:
    subscription = account.check_subscription(call.names["subscription"])
    text = call.query.get("$filter", "")
    match = _LOCATION.fullmatch(text.strip())
    if text and match is None:
        raise bad_request(f"Only the location filter is supported, but the filter is '{text}'.", code="InvalidFilter")
    wanted = match["location"].lower().replace(" ", "") if match is not None else ""
    shown = []
    for location in account.locations:
        if wanted in ("", location):
            shown += [_sku(account, subscription, location, size) for size in sizes.sizes().values()]
            shown.append(_disk(account, location))
    return page(call, shown, max(_SKUS, account.conditions.page) if account.conditions.page >= 100 else account.conditions.page)


def _sku(account: Contents, subscription: str, location: str, size: InstanceType) -> dict[str, Any]:
    restricted = account.restrictions.get((subscription.lower(), location, size.name.lower()))
    restrictions: list[dict[str, Any]] = []
    if restricted is not None:
        info: dict[str, Any] = {"locations": [location]}
        if restricted:
            info["zones"] = list(restricted)
        kind = "Zone" if restricted else "Location"
        restrictions.append({"type": kind, "values": [location], "restrictionInfo": info, "reasonCode": "NotAvailableForSubscription"})
    return {
        "resourceType": "virtualMachines",
        "name": size.name,
        "tier": "Standard",
        "size": size.name.removeprefix("Standard_"),
        "family": sizes.family(size.name),
        "locations": [location],
        "locationInfo": [{"location": location, "zones": list(account.zones), "zoneDetails": []}],
        "capabilities": sizes.capabilities(size.name),
        "restrictions": restrictions,
    }


def _disk(account: Contents, location: str) -> dict[str, Any]:
    """Resource SKUs also list disks."""
    where = [{"location": location, "zones": list(account.zones), "zoneDetails": []}]
    disk = {"resourceType": "disks", "name": "Premium_LRS", "tier": "Premium", "size": "P10", "locations": [location]}
    return {**disk, "locationInfo": where, "capabilities": [{"name": "MaxSizeGiB", "value": "128"}], "restrictions": []}


def _usages(account: Contents, call: Call) -> Reply:
    subscription = account.check_subscription(call.names["subscription"])
    location = account.check_location(call.names["location"])
    used = account.usage(subscription, location)
    families = {sizes.family(size.name) for size in sizes.sizes().values()}
    names = {"cores": "Total Regional vCPUs", "lowPriorityCores": "Total Regional Low-priority vCPUs"}
    names |= {name: f"{name.removesuffix('Family').strip()} Family vCPUs" for name in sorted(families)}
    count = sum(1 for _ in account.machines_in(subscription, location))
    rows = [
        _usage("availabilitySets", "Availability Sets", 0, 2500),
        _usage("virtualMachines", "Virtual Machines", count, 25_000),
        _usage("virtualMachineScaleSets", "Virtual Machine Scale Sets", sum(1 for _ in account.all_scale_sets()), 2500),
    ]
    rows += [_usage(name, text, used.get(name, 0), account.limit(subscription, location, name)) for name, text in names.items()]
    return page(call, rows, account.conditions.page)


def _usage(name: str, text: str, current: int, limit: int) -> dict[str, Any]:
    return {"limit": limit, "unit": "Count", "currentValue": current, "name": {"value": name, "localizedValue": text}}


def _group_json(group: ResourceGroup) -> dict[str, Any]:
    shown = {"id": group.id, "name": group.name, "type": "Microsoft.Resources/resourceGroups", "location": group.location}
    managed = {"managedBy": group.managed_by} if group.managed_by else {}
    return {**shown, **managed, "tags": group.tags, "properties": {"provisioningState": "Succeeded"}}


def _groups(account: Contents, call: Call) -> Reply:
    subscription = account.check_subscription(call.names["subscription"])
    groups = [group for group in account.groups.values() if fold_id(group.subscription) == fold_id(subscription)]
    return page(call, [_group_json(group) for group in groups], account.conditions.page)


def _group(account: Contents, call: Call) -> Reply:
    return Reply(_group_json(account.group(call.names["subscription"], call.names["group"])))


def _put_group(account: Contents, call: Call) -> Reply:
    subscription, body = account.check_subscription(call.names["subscription"]), call.json()
    key = (subscription.lower(), call.names["group"].lower())
    new = key not in account.groups
    if new:
        if not body.get("location"):
            raise bad_request("The location property is required for this definition.", code="LocationRequired")
        location = account.check_location(str(body["location"]))
        account.groups[key] = ResourceGroup(subscription, call.names["group"], location)
    account.groups[key].tags = dict(body.get("tags") or {})
    return Reply(_group_json(account.groups[key]), status=201 if new else 200)


def _subscriptions(account: Contents, call: Call) -> Reply:
    return page(call, [_subscription_json(account, name) for name in account.subscriptions], account.conditions.page)


def _subscription(account: Contents, call: Call) -> Reply:
    return Reply(_subscription_json(account, account.check_subscription(call.names["subscription"])))


def _subscription_json(account: Contents, name: str) -> dict[str, Any]:
    shown = {"id": f"/subscriptions/{name}", "subscriptionId": name, "tenantId": account.tenant}
    return {**shown, "displayName": "gpuscaler", "state": "Enabled"}


_COMPUTE: Final = "/subscriptions/{subscription}/providers/Microsoft.Compute"
ROUTES: Final = (
    Route("GET", f"{_COMPUTE}/skus", _skus, "read"),
    Route("GET", f"{_COMPUTE}/locations/{{location}}/usages", _usages, "low-get"),
    Route("GET", "/subscriptions", _subscriptions, "read"),
    Route("GET", "/subscriptions/{subscription}", _subscription, "read"),
    Route("GET", "/subscriptions/{subscription}/resourceGroups", _groups, "read"),
    Route("GET", "/subscriptions/{subscription}/resourceGroups/{group}", _group, "read"),
    Route("PUT", "/subscriptions/{subscription}/resourceGroups/{group}", _put_group, "write"),
)
