"""The Retail Prices API."""

from typing import Any

import pytest
from tests.embedded.azure.conftest import SIZE, Azure


async def items(azure: Azure, text: str) -> list[dict[str, Any]]:
    assert azure.http is not None
    found: list[dict[str, Any]] = []
    url, params = f"{azure.url}/api/retail/prices", {"$filter": text}
    while url:
        async with azure.http.get(url, params=params) as response:
            assert response.status == 200
            page = await response.json()
        assert page["Count"] == len(page["Items"]) <= 100
        found += page["Items"]
        url, params = page["NextPageLink"], {}
    return found


async def test_a_size_has_prices_for_linux_windows_spot_low_priority_and_reservations(azure: Azure) -> None:
    text = f"serviceName eq 'Virtual Machines' and armRegionName eq 'eastus' and armSkuName eq '{SIZE}'"
    rows = {(row["productName"].endswith("Windows"), row["type"], row["skuName"]): row["retailPrice"] for row in await items(azure, text)}
    name = "NC24ads A100 v4"
    assert len(rows) == 6
    assert rows[False, "Consumption", name] == pytest.approx(3.673)
    assert 0 < rows[False, "Consumption", f"{name} Spot"] < rows[False, "Consumption", name] < rows[True, "Consumption", name]
    assert (False, "Consumption", f"{name} Low Priority") in rows
    assert (False, "Reservation", name) in rows


async def test_long_lists_come_in_pages(azure: Azure) -> None:
    rows = await items(azure, "serviceName eq 'Virtual Machines' and priceType eq 'Consumption'")
    assert len(rows) > 900
    assert {row["type"] for row in rows} == {"Consumption"}


async def test_filters_can_combine_sizes_and_pick_spot(azure: Azure) -> None:
    text = f"(armSkuName eq '{SIZE}' or armSkuName eq 'Standard_D4s_v5') and contains(skuName, 'Spot') and type eq 'Consumption'"
    rows = await items(azure, text)
    assert {(row["armSkuName"], row["skuName"].endswith("Spot")) for row in rows} == {(SIZE, True), ("Standard_D4s_v5", True)}


async def test_a_wrong_filter_is_refused(azure: Azure) -> None:
    status, _, _ = await azure.call("GET", "/api/retail/prices?$filter=armSkuName is 'x'", version="")
    assert status == 400


async def test_prices_change_by_hand(azure: Azure) -> None:
    change = {"size": SIZE, "location": "eastus", "market": "spot", "price": 99.0}
    assert (await azure.call("PUT", "/_control/prices", change))[0] == 200
    rows = await items(azure, f"armSkuName eq '{SIZE}' and endswith(skuName, 'Spot') and type eq 'Consumption'")
    assert 99.0 in [row["retailPrice"] for row in rows]
