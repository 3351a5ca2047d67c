"""Steps in an AKS cluster: a pool of the run's own, without machines, and with one or two if that may cost money."""

from typing import Any, Final

from tests.embedded.azure.contract.bodies import capacity_body
from tests.embedded.azure.contract.failing import GROWTH_SECONDS
from tests.embedded.azure.contract.observing import code_of, error_of, machines, moves, numbers
from tests.embedded.azure.contract.sides import TAG, Exchange, Side, Skipped
from tests.embedded.azure.contract.steps import Step

from gpuscaler.clouds.azure.api.arm import CONTAINERSERVICE
from gpuscaler.model.azure_names import fold_id

#: How long AKS may take until it shows a capacity that its scale set got from others.
_SYNC_SECONDS: Final = 600.0


async def _call(side: Side, method: str, path: str, body: Any = None, etag: str = "") -> Exchange:
    return await side.call(method, path, body, version=CONTAINERSERVICE, headers={"if-match": etag} if etag else {})


async def _numbers(side: Side) -> dict[str, Any]:
    shown = (await _call(side, "GET", side.pool)).properties
    return {"state": shown.get("provisioningState"), "count": shown.get("count"), "etag": shown.get("eTag")}


async def _node_group(side: Side) -> str:
    cluster = await _call(side, "GET", side.cluster)
    return f"/subscriptions/{side.subscription}/resourceGroups/{cluster.properties.get('nodeResourceGroup')}"


async def _scale_set(side: Side) -> str:
    """The path of the pool's scale set."""
    group = await _node_group(side)
    listed = await side.get(f"{group}/providers/Microsoft.Compute/virtualMachineScaleSets")
    name = side.pool.rpartition("/")[2]
    found = [item["id"] for item in listed.values if (item.get("tags") or {}).get("aks-managed-poolName") == name]
    if not found:
        raise Skipped("the pool has no scale set")
    # Lists spell the group as they like.
    return f"{group}/providers/Microsoft.Compute/virtualMachineScaleSets/{found[0].rpartition('/')[2]}"


async def cluster(side: Side) -> Any:
    """What gpuscaler reads of a cluster; the rest belongs to the user."""
    shown = await _call(side, "GET", side.cluster)
    pools = await _call(side, "GET", f"{side.cluster}/agentPools")
    return {
        "status": shown.status,
        "headers": shown.shown(body=False)["headers"],
        "id": fold_id(str(shown.fields.get("id"))) == fold_id(side.cluster),
        "has": [name for name in ("eTag", "identity", "sku", "type") if name in shown.fields],
        "properties": [
            name for name in ("agentPoolProfiles", "nodeResourceGroup", "powerState", "provisioningState") if name in shown.properties
        ],
        "pools": {"status": pools.status, "keys": sorted({key for pool in pools.values for key in pool})},
    }


async def unknown(side: Side) -> Any:
    """Pools, clusters and machines that do not exist."""
    other = f"{side.cluster}-none"
    return {
        "cluster": (await _call(side, "GET", other)).shown(),
        "pool": (await _call(side, "GET", f"{side.cluster}/agentPools/none")).shown(),
        "machines": (await _call(side, "GET", f"{side.cluster}/agentPools/none/machines")).shown(),
    }


async def pool(side: Side) -> Any:
    """An empty pool; a second write while AKS makes it."""
    side.later(f"pool {side.pool}", side.pool, version=CONTAINERSERVICE, inside=False)
    properties = {"vmSize": side.size, "count": 0, "mode": "User", "type": "VirtualMachineScaleSets", "tags": {TAG: side.run}}
    made = await _call(side, "PUT", side.pool, {"properties": properties})
    busy = await _call(side, "PUT", side.pool, {"properties": properties})
    followed = await side.follow(made, GROWTH_SECONDS)
    return {
        "write": made.shown(),
        "while busy": busy.shown(),
        "operation": followed,
        "shown": (await _call(side, "GET", side.pool)).shown(),
        "machines": (await _call(side, "GET", f"{side.pool}/machines")).shown(),
        "answers": {"a write of a pool while another runs": code_of(busy)},
    }


async def refused(side: Side) -> Any:
    """Writes of the pool that AKS refuses."""
    shown = (await _call(side, "GET", side.pool)).properties
    kept = {key: value for key, value in shown.items() if key not in ("provisioningState", "powerState", "eTag")}
    none = {"machineNames": ["aks-none-12345678-vmss000000"]}
    return {
        "an old ETag": (await _call(side, "PUT", side.pool, {"properties": kept}, etag='"1"')).shown(),
        "a negative count": (await _call(side, "PUT", side.pool, {"properties": {**kept, "count": -1}})).shown(),
        "an unknown machine": (await _call(side, "POST", f"{side.pool}/deleteMachines", none)).shown(),
        "no machine": (await _call(side, "POST", f"{side.pool}/deleteMachines", {"machineNames": []})).shown(),
    }


async def _set_count(side: Side, count: int) -> tuple[Exchange, dict[str, Any]]:
    shown = (await _call(side, "GET", side.pool)).properties
    kept = {key: value for key, value in shown.items() if key not in ("provisioningState", "powerState", "eTag")}
    asked = await _call(side, "PUT", side.pool, {"properties": {**kept, "count": count}}, etag=str(shown.get("eTag") or ""))
    return asked, await side.follow(asked, GROWTH_SECONDS)


async def grown(side: Side) -> Any:
    """One machine, by the pool's count."""
    before = await _numbers(side)
    asked, followed = await _set_count(side, 1)
    path = await _scale_set(side)
    return {
        "write": asked.shown(body=False),
        "operation": followed,
        "before": before,
        "after": await _numbers(side),
        "scale set": {key: value for key, value in (await numbers(side, path)).items() if key != "etag"},
        "machines": (await _call(side, "GET", f"{side.pool}/machines")).shown(),
        "answers": {"a growth of an agent pool ends as": error_of(followed)},
    }


async def beside_aks(side: Side) -> Any:
    """Raise the capacity of the pool's scale set: whether AKS takes it over."""
    path = await _scale_set(side)
    before, pool_before = await numbers(side, path), await _numbers(side)
    asked = await side.call("PUT", path, capacity_body(side, 2), headers={"if-match": str(before["etag"])})
    followed = await side.follow(asked, GROWTH_SECONDS)
    since = side.now()

    async def is_followed() -> bool:
        return bool((await _numbers(side))["count"] == 2)

    taken = await side.until(is_followed, _SYNC_SECONDS)
    side.notes.append(f"AKS showed the capacity {side.now() - since:.0f} s after the scale set's operation ended")
    after = await _numbers(side)
    return {
        "write": asked.shown(body=False),
        "operation": followed,
        "answers": {
            "AKS takes over a capacity that others gave its scale set": taken,
            "the pool's ETag changes with it": pool_before["etag"] != after["etag"],
            "a write of the scale set of AKS": code_of(asked),
        },
    }


async def deleted(side: Side) -> Any:
    """Delete one of the pool's machines by name."""
    path = await _scale_set(side)
    before, names = await _numbers(side), [item["name"] for item in (await _call(side, "GET", f"{side.pool}/machines")).values]
    if not names:
        raise Skipped("no machine came")
    asked = await _call(side, "POST", f"{side.pool}/deleteMachines", {"machineNames": names[:1]})
    during = await _numbers(side)
    followed = await side.follow(asked, GROWTH_SECONDS)
    after = await _numbers(side)
    capacity = (await numbers(side, path))["capacity"]
    return {
        "delete": asked.shown(),
        "operation": followed,
        "before": before,
        "during": during,
        "after": after,
        "left": [len(await machines(side, path)), capacity],
        "answers": {
            "deleteMachines lowers the pool's count": moves(before, during, after, "count"),
            "deleteMachines changes the pool's ETag": moves(before, during, after, "etag"),
        },
    }


async def emptied(side: Side) -> Any:
    asked, followed = await _set_count(side, 0)
    return {"write": asked.shown(body=False), "operation": followed, "after": await _numbers(side)}


CLUSTER_FREE: Final = (
    Step("an AKS cluster", cluster),
    Step("unknown clusters and pools", unknown),
    Step("an agent pool", pool),
    Step("writes of a pool that are refused", refused),
)
CLUSTER_PAID: Final = (
    Step("a machine of an agent pool", grown),
    Step("a capacity that AKS did not write", beside_aks),
    Step("deleteMachines", deleted),
    Step("an agent pool of 0", emptied),
)
