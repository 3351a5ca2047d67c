"""Accounts with several subscriptions and locations, and the endpoint's behaviour for all calls."""

from collections.abc import AsyncIterator

import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import Conditions, Endpoint, making, serve

OTHER = "22222222-2222-4222-8222-222222222222"
FIRST = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
async def wide() -> AsyncIterator[Azure]:
    served = Azure(subscriptions=(FIRST, OTHER), locations=("eastus", "westeurope"), conditions=Conditions(retry_after=0))
    await served.open()
    yield served
    await served.close()


async def test_subscriptions_and_locations_have_contents_quotas_and_prices_of_their_own(wide: Azure) -> None:
    making.create_cluster(wide.account, "here", "rg")
    there = making.create_cluster(wide.account, "there", "rg", location="westeurope", subscription=OTHER)
    making.create_pool(wide.account, there, "gpu", SIZE)
    making.set_quota(wide.account, "cores", 0)
    assert there.node_group == "MC_rg_there_westeurope"
    _, clusters, _ = await wide.call("GET", f"/subscriptions/{OTHER}/providers/Microsoft.ContainerService/managedClusters")
    assert [cluster["name"] for cluster in clusters["value"]] == ["there"]
    _, _, headers = await wide.call("PUT", f"{there.id}/agentPools/gpu", {"properties": {"count": 1}})
    wide.later(60)
    assert (await wide.call("GET", headers["azure-asyncoperation"]))[1]["status"] == "Succeeded"
    usages = f"/subscriptions/{OTHER}/providers/Microsoft.Compute/locations/westeurope/usages"
    rows = {row["name"]["value"]: row["currentValue"] for row in (await wide.call("GET", usages))[1]["value"]}
    assert rows["StandardNCADSA100v4Family"] == 24
    _, skus, _ = await wide.call(
        "GET", f"/subscriptions/{FIRST}/providers/Microsoft.Compute/skus?api-version=x&$filter=location eq 'westeurope'"
    )
    assert {location for sku in skus["value"] for location in sku["locations"]} == {"westeurope"}
    _, listed, _ = await wide.call("GET", f"/subscriptions/{FIRST}/resourceGroups")
    assert sorted(group["name"] for group in listed["value"]) == ["MC_rg_here_eastus", "rg"]
    _, listed, _ = await wide.call("GET", "/subscriptions")
    assert [subscription["subscriptionId"] for subscription in listed["value"]] == [FIRST, OTHER]


async def test_a_location_or_zone_that_the_account_lacks_is_refused(wide: Azure) -> None:
    making.create_group(wide.account, "rg")
    path = f"/subscriptions/{FIRST}/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets/new"
    for body, code in (
        ({"location": "mars", "sku": {"name": SIZE, "capacity": 0}}, "LocationNotAvailableForResourceType"),
        ({"location": "eastus", "zones": ["9"], "sku": {"name": SIZE, "capacity": 0}}, "InvalidZone"),
        ({"location": "eastus", "sku": {"name": "Standard_None", "capacity": 0}}, "InvalidParameter"),
        ({"location": "eastus", "sku": {"name": SIZE, "capacity": -1}}, "InvalidParameter"),
        ({"sku": {"name": SIZE}}, "LocationRequired"),
    ):
        status, refused, _ = await wide.call("PUT", path, body)
        assert (status, refused["error"]["code"]) == (400, code)


async def test_what_cannot_change_is_refused(wide: Azure) -> None:
    scale_set = making.create_scale_set(wide.account, "rg", "own", SIZE, spot=True, zones=("1", "2"))
    for change in (
        {"properties": {"orchestrationMode": "Flexible"}},
        {"properties": {"virtualMachineProfile": {"priority": "Regular"}}},
        {"properties": {"virtualMachineProfile": {"evictionPolicy": "Deallocate"}}},
        {"zones": ["1"]},
    ):
        status, refused, _ = await wide.call("PATCH", scale_set.id, change)
        assert (status, refused["error"]["code"]) == (409, "PropertyChangeNotAllowed")
    assert (await wide.call("PATCH", scale_set.id, {"tags": {"a": "b"}}))[1]["tags"] == {"a": "b"}


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/subscriptions", 405), ("GET", "/nothing/here", 404)])
async def test_paths_and_methods_that_azure_lacks_are_refused(wide: Azure, method: str, path: str, status: int) -> None:
    seen, refused, _ = await wide.call(method, path)
    assert seen == status
    assert refused["error"]["code"] in {"UnsupportedHttpVerb", "InvalidResourceType"}


async def test_a_body_that_is_no_json_object_is_refused(wide: Azure) -> None:
    scale_set = making.create_scale_set(wide.account, "rg", "own", SIZE)
    assert wide.http is not None
    for body in ("{", "[]", '"text"'):
        async with wide.http.patch(f"{wide.url}{scale_set.id}?api-version=x", data=body) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "InvalidRequestContent")


async def test_a_scale_set_is_deleted_with_its_machines(wide: Azure) -> None:
    making.create_scale_set(wide.account, "rg", "own", SIZE, count=2)
    poller = await wide.compute().virtual_machine_scale_sets.begin_delete("rg", "own")
    wide.later(10)
    await poller.result()
    assert wide.account.group(FIRST, "rg").scale_sets == {}
    assert wide.account.hardware.core.list() == ()


async def test_two_endpoints_can_be_served_at_once_but_not_on_one_port(wide: Azure) -> None:
    port = int(wide.url.rpartition(":")[2])
    with pytest.raises(OSError, match=str(port)):
        await serve(Endpoint(wide.account), port=port)
