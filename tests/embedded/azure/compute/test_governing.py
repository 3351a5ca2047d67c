"""Locks, autoscale settings, policies and identities: kept as they were put; locks of groups refuse writes."""

from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, making

WHOLE = f"/subscriptions/{SUBSCRIPTION}"
GROUP = f"{WHOLE}/resourceGroups/workers"
LOCKS = "providers/Microsoft.Authorization/locks"


async def names(azure: Azure, path: str) -> list[str]:
    status, answer, _ = await azure.call("GET", path)
    assert status == 200, answer
    return sorted(item["name"] for item in answer["value"])


async def test_a_lock_of_a_group_refuses_writes_until_it_is_deleted(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "workers", "gpus", SIZE)
    lock = f"{GROUP}/{LOCKS}/keep"
    assert (await azure.call("PUT", lock, {"properties": {"level": "ReadOnly"}}))[0] == 200
    status, answer, _ = await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 1}})
    assert (status, answer["error"]["code"]) == (409, "ScopeLocked")

    assert (await azure.call("DELETE", lock))[0] == 200
    assert (await azure.call("DELETE", lock))[0] == 204
    assert (await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 1}}))[0] == 200


async def test_a_lock_of_a_resource_is_listed_in_its_group_and_refuses_nothing_else(azure: Azure) -> None:
    scale_set = making.create_scale_set(azure.account, "workers", "gpus", SIZE)
    disk = f"{GROUP}/providers/Microsoft.Compute/disks/data"
    await azure.call("PUT", f"{disk}/{LOCKS}/disk", {"properties": {"level": "CanNotDelete"}})
    await azure.call("PUT", f"{WHOLE}/{LOCKS}/whole", {"properties": {"level": "CanNotDelete"}})
    await azure.call("DELETE", f"{WHOLE}/{LOCKS}/whole")

    assert (await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 1}}))[0] == 200
    assert await names(azure, f"{GROUP}/{LOCKS}") == ["disk"]
    assert await names(azure, f"{WHOLE}/{LOCKS}") == ["disk"]
    assert await names(azure, f"{WHOLE}/{LOCKS}?$filter=atScope()") == []


async def test_a_group_shows_the_policies_that_are_assigned_above_it(azure: Azure) -> None:
    making.create_group(azure.account, "workers")
    making.create_group(azure.account, "others")
    kind = "providers/Microsoft.Authorization/policyAssignments"
    for scope, name in ((WHOLE, "all"), (GROUP, "here"), (f"{WHOLE}/resourceGroups/others", "there")):
        await azure.call("PUT", f"{scope}/{kind}/{name}", {"properties": {}})

    assert await names(azure, f"{GROUP}/{kind}") == ["all", "here"]
    assert await names(azure, f"{WHOLE}/{kind}") == ["all", "here", "there"]


async def test_a_patch_merges_and_what_is_missing_is_not_found(azure: Azure) -> None:
    making.create_group(azure.account, "workers")
    setting = f"{GROUP}/providers/Microsoft.Insights/autoscalesettings/cpu"
    assert (await azure.call("GET", setting))[0] == 404
    await azure.call("PUT", setting, {"properties": {"enabled": True, "targetResourceUri": "x"}})
    _, answer, _ = await azure.call("PATCH", setting, {"properties": {"enabled": False}})
    assert answer["properties"] == {"enabled": False, "targetResourceUri": "x"}
