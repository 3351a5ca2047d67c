"""A Retail Prices API on a socket, which has the items that a test gives it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

A100, T4 = "Standard_NC24ads_A100_v4", "Standard_NC4as_T4_v3"
PATH = "/api/retail/prices"


def item(size: str = A100, price: Any = 3.6, **more: Any) -> dict[str, Any]:
    """An item as the API has it; ``more`` are other values of its keys."""
    name = size.removeprefix("Standard_").replace("_", " ")
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": "eastus",
        "location": "US East",
        "effectiveStartDate": "2023-01-01T00:00:00Z",
        "meterName": name,
        "productName": "Virtual Machines NCads A100 v4 Series",
        "skuName": name,
        "serviceName": "Virtual Machines",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size,
    } | more


def spot(size: str = A100, price: Any = 0.9, **more: Any) -> dict[str, Any]:
    name = size.removeprefix("Standard_").replace("_", " ") + " Spot"
    return item(size, price, **{"meterName": name, "skuName": name, **more})


class RetailApi:
    """``answer`` replaces the answer to every query; ``page`` is how many items a page has. ``queries`` are the filters that came."""

    def __init__(self, *items: dict[str, Any], page: int = 1000) -> None:
        self.items, self.page = list(items), page
        self.answer: web.Response | None = None
        self.next_link: Any = None
        self.queries: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        query, skip = request.query["$filter"], int(request.query.get("$skip", "0"))
        self.queries.append(query)
        if self.answer is not None:
            return web.Response(status=self.answer.status, body=self.answer.body, headers=self.answer.headers)
        sizes, (location,) = re.findall(r"armSkuName eq '([^']*)'", query), re.findall(r"armRegionName eq '([^']*)'", query)
        found = [item for item in self.items if item["armSkuName"] in sizes and item["armRegionName"] == location]
        more = str(request.url.update_query({"$skip": str(skip + self.page)})) if skip + self.page < len(found) else None
        items = found[skip : skip + self.page]
        return web.json_response({"BillingCurrency": "USD", "Items": items, "NextPageLink": self.next_link or more, "Count": len(items)})


@asynccontextmanager
async def serving(api: RetailApi) -> AsyncIterator[RetailApi]:
    application = web.Application()
    application.router.add_get(PATH, api.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    api.url = f"http://{host}:{port}"
    try:
        yield api
    finally:
        await runner.cleanup()
