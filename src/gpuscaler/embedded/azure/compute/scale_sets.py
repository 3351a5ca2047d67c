"""Calls about scale sets."""

from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.azure.compute import capacity
from gpuscaler.embedded.azure.compute.guarding import check_etag, check_lock
from gpuscaler.embedded.azure.compute.operating import accepted
from gpuscaler.embedded.azure.compute.views import scale_set_json
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.state import CREATING, DELETING, FLEXIBLE, SUCCEEDED, UNIFORM, ScaleSet
from gpuscaler.embedded.azure.wire.errors import bad_request, refusal
from gpuscaler.embedded.azure.wire.pages import page
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route
from gpuscaler.model.azure_names import fold_id

#: The most machines of a scale set: of Uniform ones in a single placement group, of all others.
_SINGLE, _MOST = 100, 1000
#: Properties that cannot change.
_FIXED: Final[tuple[str, ...]] = ("orchestrationMode",)
_FIXED_IN_PROFILE: Final[tuple[str, ...]] = ("priority", "evictionPolicy")
_WRITE: Final = "Microsoft.Compute/virtualMachineScaleSets/write"
_READ_ONLY: Final = frozenset({"provisioningState", "uniqueId", "timeCreated"})


def _get(account: Contents, call: Call) -> Reply:
    scale_set = find(account, call)
    return Reply(scale_set_json(scale_set), headers={"etag": scale_set.etag})


def find(account: Contents, call: Call) -> ScaleSet:
    """The scale set that a call is about."""
    return account.scale_set(call.names["subscription"], call.names["group"], call.names["set"])


def _list(account: Contents, call: Call) -> Reply:
    group = account.group(call.names["subscription"], call.names["group"])
    return page(call, [scale_set_json(scale_set) for scale_set in group.scale_sets.values()], account.conditions.page)


def _list_all(account: Contents, call: Call) -> Reply:
    subscription = account.check_subscription(call.names["subscription"])
    location = call.names.get("location", "").lower()
    found = [
        scale_set_json(scale_set)
        for group in account.groups.values()
        if fold_id(group.subscription) == fold_id(subscription)
        for scale_set in group.scale_sets.values()
        if location in ("", scale_set.location)
    ]
    return page(call, found, account.conditions.page)


def _put(account: Contents, call: Call) -> Reply:
    group = account.group(call.names["subscription"], call.names["group"])
    name = call.names["set"]
    scope = f"{group.id}/providers/Microsoft.Compute/virtualMachineScaleSets/{name}"
    check_lock(account, group, _WRITE, scope)
    existing = group.scale_sets.get(name.lower())
    check_etag(call, existing.etag if existing is not None else "", exists=existing is not None)
    body = call.json()
    if existing is not None:
        return _change(account, call, existing, body)
    scale_set = create(account, group.subscription, group.name, name, body)
    wanted = _wanted(body, 0)
    refused = capacity.check_growth(account, scale_set, wanted)
    add(account, scale_set)
    operation = capacity.set_capacity(account, scale_set, wanted, refused=refused)
    scale_set.state = CREATING
    headers = {**accepted(account, call, operation, location=False), "etag": scale_set.etag}
    return Reply(scale_set_json(scale_set), status=201, headers=headers)


def _patch(account: Contents, call: Call) -> Reply:
    scale_set = find(account, call)
    check_lock(account, account.group(scale_set.subscription, scale_set.group), _WRITE, scale_set.id)
    check_etag(call, scale_set.etag)
    return _change(account, call, scale_set, call.json())


def _change(account: Contents, call: Call, scale_set: ScaleSet, body: Mapping[str, Any]) -> Reply:
    """A PUT or PATCH of an existing scale set: fields that are missing stay as they are."""
    model = _merged(scale_set.model, body)
    _check_fixed(scale_set.model, model)
    wanted = _wanted(body, scale_set.capacity)
    _check_model(account, scale_set.location, model, wanted)
    counted = len(scale_set.counted)
    before, scale_set.model = scale_set.model, model
    try:
        refused = capacity.check_growth(account, scale_set, wanted - counted)
    except Exception:
        scale_set.model = before
        raise
    operation = capacity.set_capacity(account, scale_set, wanted, refused=refused)
    headers = {**accepted(account, call, operation, location=call.method == "PATCH"), "etag": scale_set.etag}
    return Reply(scale_set_json(scale_set), headers=headers)


def create(account: Contents, subscription: str, group: str, name: str, body: Mapping[str, Any]) -> ScaleSet:
    """A new scale set without machines, not yet in its group. Raises :class:`AzureError` for a body that Azure refuses."""
    if not body.get("location"):
        raise bad_request("The location property is required for this definition.", code="LocationRequired")
    location = account.check_location(str(body["location"]))
    if not (body.get("sku") or {}).get("name"):
        raise bad_request("Required parameter 'sku.name' is missing (null).", target="sku.name")
    properties = body.get("properties") or {}
    model = _merged({"sku": {}, "properties": {"orchestrationMode": UNIFORM, "singlePlacementGroup": True}}, body)
    if properties.get("orchestrationMode") == FLEXIBLE:
        model["properties"]["singlePlacementGroup"] = False
    if model["properties"]["orchestrationMode"] == UNIFORM:
        model["properties"].setdefault("overprovision", True)
    _check_model(account, location, model, _wanted(body, 0))
    return ScaleSet(subscription, group, name, location, model, account.time, account.uuid())


def add(account: Contents, scale_set: ScaleSet) -> None:
    """Put a new scale set into its group."""
    group = account.group(scale_set.subscription, scale_set.group)
    group.scale_sets[scale_set.name.lower()] = scale_set
    if account.conditions.read_lag:
        capacity.record_list(account, scale_set)


def _merged(before: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """``before`` with the fields of ``body``; objects are merged, without fields that callers cannot set."""
    kept = {key: value for key, value in body.items() if key in {"sku", "properties", "tags", "zones", "identity", "plan"}}
    model = merged_json(before, kept)
    model["sku"].pop("capacity", None)
    for field in _READ_ONLY:
        model["properties"].pop(field, None)
    if "tags" in body:
        model["tags"] = dict(body["tags"] or {})
    return model


def merged_json(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``before`` with ``changes``: objects are merged, and null changes nothing."""
    merged = dict(before)
    for key, value in changes.items():
        inner = merged.get(key)
        if value is None:
            continue
        merged[key] = merged_json(inner if isinstance(inner, dict) else {}, value) if isinstance(value, dict) else value
    return merged


def _wanted(body: Mapping[str, Any], default: int) -> int:
    wanted = (body.get("sku") or {}).get("capacity")
    if wanted is None:
        return default
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
        raise bad_request(f"The value '{wanted}' of parameter 'sku.capacity' is invalid.", target="sku.capacity")
    return wanted


def _check_model(account: Contents, location: str, model: Mapping[str, Any], wanted: int) -> None:
    size = model["sku"]["name"]
    if sizes.size_of(size) is None:
        text = f"The value {size} provided for the VM size is not valid. The valid sizes in the current region are: ..."
        raise bad_request(text, target="vmSize")
    properties = model["properties"]
    most = _SINGLE if properties.get("singlePlacementGroup") else _MOST
    if wanted > most:
        text = f"The requested capacity {wanted} of the scale set exceeds the maximum of {most} virtual machines."
        raise bad_request(text, target="sku.capacity")
    for zone in model.get("zones") or ():
        if zone not in account.zones:
            raise bad_request(f"The zone(s) '{zone}' for resource are not available in location '{location}'.", code="InvalidZone")


def _check_fixed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    profiles = [model["properties"].get("virtualMachineProfile") or {} for model in (before, after)]
    pairs = [(before["properties"], after["properties"], _FIXED), (profiles[0], profiles[1], _FIXED_IN_PROFILE)]
    for old, new, fields in pairs:
        for field in fields:
            if old.get(field) != new.get(field) and {old.get(field), new.get(field)} != {None, "Regular"}:
                raise refusal("PropertyChangeNotAllowed", f"Changing property '{field}' is not allowed.", status=409, target=field)
    if set(before.get("zones") or ()) - set(after.get("zones") or ()):
        raise refusal("PropertyChangeNotAllowed", "Changing property 'zones' is not allowed.", status=409, target="zones")


def _delete(account: Contents, call: Call) -> Reply:
    group = account.group(call.names["subscription"], call.names["group"])
    scale_set = group.scale_sets.get(call.names["set"].lower())
    if scale_set is None:
        return Reply(status=204)
    check_lock(account, group, "Microsoft.Compute/virtualMachineScaleSets/delete", scale_set.id)
    operation = remove(account, scale_set)
    return Reply(status=202, headers=accepted(account, call, operation, location=True))


def remove(account: Contents, scale_set: ScaleSet) -> Any:
    """Delete a scale set and its machines; returns the operation."""
    group = account.group(scale_set.subscription, scale_set.group)

    def finish(_operation: Any) -> None:
        if group.scale_sets.get(scale_set.name.lower()) is scale_set:
            del group.scale_sets[scale_set.name.lower()]

    operation = capacity.delete_machines(account, scale_set, list(scale_set.machines.values()), force=True)
    operation.then = finish
    scale_set.state = DELETING
    return operation


def _instance_view(account: Contents, call: Call) -> Reply:
    scale_set = find(account, call)
    counts: dict[str, int] = {}
    for machine in scale_set.machines.values():
        code = f"ProvisioningState/{machine.state.lower()}"
        counts[code] = counts.get(code, 0) + 1
    code = "succeeded" if scale_set.state == SUCCEEDED else scale_set.state.lower()
    summary = [{"code": code, "count": count} for code, count in counts.items()]
    statuses = [{"code": f"ProvisioningState/{code}", "level": "Info", "displayStatus": scale_set.state}]
    return Reply({"virtualMachine": {"statusesSummary": summary}, "statuses": statuses})


_GROUP: Final = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachineScaleSets"
_ALL: Final = "/subscriptions/{subscription}/providers/Microsoft.Compute"
ROUTES: Final = (
    Route("GET", _GROUP, _list, "low-get"),
    Route("GET", f"{_ALL}/virtualMachineScaleSets", _list_all, "low-get"),
    Route("GET", f"{_ALL}/locations/{{location}}/virtualMachineScaleSets", _list_all, "low-get"),
    Route("GET", f"{_GROUP}/{{set}}", _get, "low-get"),
    Route("PUT", f"{_GROUP}/{{set}}", _put, "put-set"),
    Route("PATCH", f"{_GROUP}/{{set}}", _patch, "put-set"),
    Route("DELETE", f"{_GROUP}/{{set}}", _delete, "delete-set"),
    Route("GET", f"{_GROUP}/{{set}}/instanceView", _instance_view, "low-get"),
)
