"""Steps that start no machine: descriptions, refusals, empty scale sets, ETags. Calls are those of gpuscaler."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from tests.embedded.azure.contract.bodies import capacity_body, scale_set_body
from tests.embedded.azure.contract.observing import VIEW, list_flexible, moves, numbers
from tests.embedded.azure.contract.sides import RESOURCES, TAG, Side

from gpuscaler.catalogue import types
from gpuscaler.clouds.azure.api.arm import SKUS, USAGES

OPERATION_SECONDS: Final = 600.0
_NONE: Final = "00000000-0000-4000-8000-000000000000"
#: Capabilities that gpuscaler reads.
_CAPABILITIES: Final = frozenset({"vCPUs", "vCPUsAvailable", "MemoryGB", "GPUs", "CpuArchitectureType", "LowPriorityCapable"})


class Step(NamedTuple):
    """A few calls, and the parts of their answers that are compared.

    ``answers`` in the result are answers to questions that only a subscription has; they are also shown where both sides agree.
    """

    name: str
    play: Callable[[Side], Awaitable[Any]]


# Descriptions


async def subscription(side: Side) -> Any:
    shown = await side.get(f"/subscriptions/{side.subscription}", version=RESOURCES)
    return {"status": shown.status, "state": shown.fields.get("state"), "id": shown.fields.get("id")}


async def skus(side: Side) -> list[dict[str, Any]]:
    """All sizes of machines that the location lists."""
    parameters = {"$filter": f"location eq '{side.location}'"}
    shown = await side.get(f"/subscriptions/{side.subscription}/providers/Microsoft.Compute/skus", version=SKUS, parameters=parameters)
    items = list(shown.values)
    while link := shown.fields.get("nextLink"):
        shown = await side.get(link)
        items += shown.values
    return [item for item in items if item.get("resourceType") == "virtualMachines"]


async def sizes(side: Side) -> Any:
    """The size of the machines, and the quota families of all sizes that the catalogue knows in this location."""
    known = {size.name for size in types("azure")}
    found = {item["name"]: item for item in await skus(side)}
    shown = dict(found.get(side.size, {}))
    capabilities = {item["name"]: item["value"] for item in shown.pop("capabilities", ()) if item["name"] in _CAPABILITIES}
    shown.pop("restrictions", None)
    for place in shown.get("locationInfo", ()):
        place["zones"] = sorted(place.get("zones", ()))
        place.pop("zoneDetails", None)
    return {
        "size": shown,
        "capabilities": capabilities,
        "families": {name: item.get("family") for name, item in sorted(found.items()) if name in known},
    }


async def usages(side: Side) -> Any:
    """Quotas by name, as far as sizes of the catalogue have them; numbers differ between subscriptions."""
    known = {size.name for size in types("azure")}
    families = {str(item.get("family")).lower() for item in await skus(side) if item["name"] in known}
    wanted = families | {"cores", "lowprioritycores", "virtualmachines", "virtualmachinescalesets"}
    path = f"/subscriptions/{side.subscription}/providers/Microsoft.Compute/locations/{side.location}/usages"
    shown = await side.get(path, version=USAGES)
    items = [item for item in shown.values if item["name"]["value"].lower() in wanted]
    return {
        "status": shown.status,
        "names": {item["name"]["value"]: item["name"].get("localizedValue") for item in items},
        "keys": sorted({key for item in items for key in item}),
    }


# Refusals


async def no_version(side: Side) -> Any:
    return (await side.call("GET", side.group_path, version="")).shown()


async def unknown_group(side: Side) -> Any:
    path = f"/subscriptions/{side.subscription}/resourceGroups/{side.run}-none/providers/Microsoft.Compute/virtualMachineScaleSets"
    return {"list": (await side.get(path)).shown(), "one": (await side.get(f"{path}/none")).shown()}


async def unknown_set(side: Side) -> Any:
    path = side.scale_set("none")
    side.later("scale set that must not be created", path)
    return {
        "get": (await side.get(path)).shown(),
        "machines": (await side.get(f"{path}/virtualMachines")).shown(),
        "delete": (await side.call("POST", f"{path}/delete", {"instanceIds": ["0"]})).shown(),
        "with an ETag": (await side.call("PUT", path, scale_set_body(side), headers={"if-match": '"1"'})).shown(),
    }


async def unknown_operation(side: Side) -> Any:
    path = f"/subscriptions/{side.subscription}/providers/Microsoft.Compute/locations/{side.location}/operations/{_NONE}"
    return (await side.get(path)).shown()


async def bad_sets(side: Side) -> Any:
    """Scale sets that Azure refuses: each lacks one thing."""
    good, path = scale_set_body(side), side.scale_set("bad")
    side.later("scale set that must be refused", path)
    bodies = {
        "no location": {key: value for key, value in good.items() if key != "location"},
        "no size": {**good, "sku": {"capacity": 0}},
        "an unknown size": {**good, "sku": {"name": "Standard_NX96_v9", "tier": "Standard", "capacity": 0}},
        "a negative capacity": {**good, "sku": {**good["sku"], "capacity": -1}},
        "a capacity that is no number": {**good, "sku": {**good["sku"], "capacity": "two"}},
    }
    return {name: (await side.call("PUT", path, body)).shown() for name, body in bodies.items()}


# Scale sets without machines


async def create(side: Side, name: str, **options: Any) -> Any:
    """Create the scale set of the run called ``name``."""
    side.later(f"scale set {name}", side.scale_set(name), parameters={"forceDeletion": "true"})
    made = await side.call("PUT", side.scale_set(name), scale_set_body(side, **options))
    return {"write": made.shown(), "operation": await side.follow(made, OPERATION_SECONDS)}


async def uniform(side: Side) -> Any:
    made = await create(side, "uniform")
    shown = await side.get(side.scale_set("uniform"))
    places = {"header": "etag" in shown.headers, "body": "etag" in shown.fields}
    return {**made, "shown": shown.shown(), "answers": {"a scale set's ETag is in": [name for name, there in places.items() if there]}}


async def flexible(side: Side) -> Any:
    made = await create(side, "flexible", flexible=True)
    path = side.scale_set("flexible")
    by_set = await side.get(f"{path}/virtualMachines", parameters=VIEW)
    return {
        **made,
        "shown": (await side.get(path)).shown(),
        "machines": (await list_flexible(side, path)).shown(),
        "machines below the set": by_set.shown(),
        "answers": {"machines of a Flexible scale set are listed below it": by_set.status == 200},
    }


async def views(side: Side) -> Any:
    path = side.scale_set("uniform")
    listed = await side.get(f"{side.group_path}/providers/Microsoft.Compute/virtualMachineScaleSets")
    mine = [item for item in listed.values if item.get("tags", {}).get(TAG) == side.run]
    return {
        "list": {"status": listed.status, "names": sorted(item["name"] for item in mine), "keys": sorted({*mine[0]} if mine else ())},
        "view": (await side.get(f"{path}/instanceView")).shown(),
        "machines": (await side.get(f"{path}/virtualMachines", parameters=VIEW)).shown(),
    }


async def limits(side: Side) -> Any:
    """The limits that answers show: which policies, not how much is left."""
    path = side.scale_set("uniform")
    return {
        "get": (await side.get(path)).shown(body=False, limits=True),
        "list": (await side.get(f"{path}/virtualMachines")).shown(body=False, limits=True),
        "write": (await side.call("PUT", path, capacity_body(side, 0))).shown(body=False, limits=True),
    }


async def etags(side: Side) -> Any:
    """A write that changes nothing but a tag, with the right and with old ETags."""
    path = side.scale_set("uniform")
    before = await numbers(side, path)
    tags = {TAG: side.run, "kept": "yes", "changed": "yes"}
    right = await side.call("PATCH", path, {"tags": tags}, headers={"if-match": str(before["etag"])})
    during = await numbers(side, path)
    followed = await side.follow(right, OPERATION_SECONDS)
    after = await numbers(side, path)
    old = await side.call("PUT", path, capacity_body(side, 0), headers={"if-match": str(before["etag"])})
    exists = await side.call("PUT", path, capacity_body(side, 0), headers={"if-none-match": "*"})
    return {
        "before": before,
        "right": right.shown(body=False),
        "during": during,
        "operation": followed,
        "after": after,
        "old": old.shown(),
        "if-none-match": exists.shown(),
        "at last": await numbers(side, path),
        "answers": {
            "a write's own answer has the ETag that is valid after it": _etag(right.headers, right.fields) == after["etag"],
            "a write of tags changes the ETag": moves(before, during, after, "etag"),
            "a write with an old ETag is answered": old.status,
        },
    }


def _etag(headers: Any, fields: dict[str, Any]) -> Any:
    return fields.get("etag") or headers.get("etag")


async def same_capacity(side: Side) -> Any:
    """The smallest write, as gpuscaler makes it: whether all properties that it leaves out stay."""
    path = side.scale_set("uniform")
    before = await side.get(path)
    etag = {"if-match": str(_etag(before.headers, before.fields))}
    written = await side.call("PUT", path, capacity_body(side, 0), headers=etag)
    followed = await side.follow(written, OPERATION_SECONDS)
    after = await side.get(path)

    def lasting(fields: dict[str, Any]) -> dict[str, Any]:
        properties = {key: value for key, value in (fields.get("properties") or {}).items() if key != "provisioningState"}
        return {**{key: value for key, value in fields.items() if key != "etag"}, "properties": properties}

    lost = sorted(key for key, value in lasting(before.fields).items() if lasting(after.fields).get(key) != value)
    return {
        "write": written.shown(body=False),
        "operation": followed,
        "answers": {"what a PUT of location and size alone changes": lost},
    }


async def fixed(side: Side) -> Any:
    """Properties that cannot change."""
    path = side.scale_set("uniform")
    mode = {**capacity_body(side, 0), "properties": {"orchestrationMode": "Flexible"}}
    priority = {**capacity_body(side, 0), "properties": {"virtualMachineProfile": {"priority": "Regular"}}}
    return {
        "orchestrationMode": (await side.call("PUT", path, mode)).shown(),
        "priority": (await side.call("PUT", path, priority)).shown(),
    }


async def unknown_machine(side: Side) -> Any:
    """Calls about machines that do not exist, in a scale set without any."""
    path = side.scale_set("uniform")
    return {
        "get": (await side.get(f"{path}/virtualMachines/7")).shown(),
        "view": (await side.get(f"{path}/virtualMachines/7/instanceView")).shown(),
        "delete by id": (await side.call("POST", f"{path}/delete", {"instanceIds": ["7"]})).shown(),
        "delete no text": (await side.call("POST", f"{path}/delete", {"instanceIds": ["seven"]})).shown(),
        # Safe here alone: some actions take an empty list as all machines, and there is none.
        "delete none": (await side.call("POST", f"{path}/delete", {"instanceIds": []})).shown(),
        "delete": (await side.call("DELETE", f"{path}/virtualMachines/7")).shown(),
        "evict": (await side.call("POST", f"{path}/virtualMachines/7/simulateEviction")).shown(),
        "flexible": (await side.get(side.path("Microsoft.Compute/virtualMachines", f"{side.run}-none"))).shown(),
    }


FREE: Final = (
    Step("the subscription", subscription),
    Step("sizes of machines", sizes),
    Step("quotas", usages),
    Step("a call without a version", no_version),
    Step("an unknown resource group", unknown_group),
    Step("an unknown scale set", unknown_set),
    Step("an unknown operation", unknown_operation),
    Step("scale sets that are refused", bad_sets),
    Step("a Uniform scale set", uniform),
    Step("a Flexible scale set", flexible),
    Step("views of scale sets", views),
    Step("headers with limits", limits),
    Step("ETags", etags),
    Step("a write without properties", same_capacity),
    Step("properties that cannot change", fixed),
    Step("unknown machines", unknown_machine),
)
