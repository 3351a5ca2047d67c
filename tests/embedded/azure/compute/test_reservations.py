"""Capacity reservation groups: machines in them come from what is reserved first."""

from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import making


async def test_machines_use_reserved_capacity_first_and_then_the_common_stock(azure: Azure) -> None:
    group = making.create_reservation_group(azure.account, "rg", "gpus", {(SIZE, "1"): 2})
    cluster = making.create_cluster(azure.account)
    making.create_pool(azure.account, cluster, "reserved", SIZE, zones=("1",), capacityReservationGroupID=group.id)
    making.set_limit(azure.account, 0, market="on-demand", size=SIZE)
    path = f"{cluster.id}/agentPools/reserved"
    assert (await azure.call("GET", path))[1]["properties"]["capacityReservationGroupID"] == group.id
    _, _, headers = await azure.call("PUT", path, {"properties": {"count": 3}})
    azure.later(60)
    operation = (await azure.call("GET", headers["azure-asyncoperation"]))[1]
    assert operation["error"]["details"][0]["code"] == "ZonalAllocationFailed"
    client = azure.compute()
    shown = await client.capacity_reservation_groups.get("rg", "gpus", expand="instanceView")
    (view,) = shown.instance_view.capacity_reservations
    assert view.utilization_info.current_capacity == 2
    assert len(view.utilization_info.virtual_machines_allocated) == 2
    (listed,) = [found async for found in client.capacity_reservations.list_by_capacity_reservation_group("rg", "gpus")]
    assert (listed.sku.name, listed.sku.capacity, listed.zones) == (SIZE, 2, ["1"])
    one = await client.capacity_reservations.get("rg", "gpus", listed.name, expand="instanceView")
    assert len(one.instance_view.utilization_info.virtual_machines_allocated) == 2
    assert [found.name async for found in client.capacity_reservation_groups.list_by_subscription()] == ["gpus"]
