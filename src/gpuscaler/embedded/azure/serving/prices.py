"""The Retail Prices API: list prices of machines, with filters and pages."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode
from zlib import crc32

from gpuscaler.catalogue import InstanceType
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.wire.errors import bad_request
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route

#: Items in a page, as in the real API.
_PAGE: Final = 100
#: Windows machines cost this much more for each vCPU, in dollars per hour.
_WINDOWS: Final = 0.046
_TOKEN: Final = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<word>[A-Za-z][A-Za-z0-9/]*)|(?P<sign>[(),]))")
Item = Mapping[str, Any]
Test = Callable[[Item], bool]


def _prices(account: Contents, call: Call) -> Reply:
    test = _Filter(call.query.get("$filter", "")).parse()
    items = [item for item in _items(account) if test(item)]
    start = int(call.query.get("$skip", "0")) if call.query.get("$skip", "0").isdigit() else 0
    shown = items[start : start + _PAGE]
    following = None
    if start + _PAGE < len(items):
        following = f"{call.request.origin}{call.request.path}?{urlencode({**call.query, '$skip': start + _PAGE})}"
    head = {"BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail"}
    return Reply({**head, "Items": shown, "NextPageLink": following, "Count": len(shown)})


def _items(account: Contents) -> Iterator[Item]:
    for location in account.locations:
        for size in sizes.sizes().values():
            yield from _of_size(account, location, size)
        yield _item(location, "Premium SSD Managed Disks", "P10 LRS", "", 19.71, unit="1/Month", service="Storage")


def _of_size(account: Contents, location: str, size: InstanceType) -> Iterator[Item]:
    name = size.name.removeprefix("Standard_").replace("_", " ")
    product = f"Virtual Machines {re.sub('[0-9]+', '', name, count=1)} Series"
    on_demand, spot = price_of(account, size.name, location, "on-demand"), price_of(account, size.name, location, "spot")
    windows = round(on_demand + _WINDOWS * size.vcpu, 6)
    yield _item(location, product, name, size.name, on_demand)
    yield _item(location, product, f"{name} Spot", size.name, spot)
    yield _item(location, product, f"{name} Low Priority", size.name, round(on_demand * 0.2, 6))
    yield _item(location, f"{product} Windows", name, size.name, windows)
    yield _item(location, f"{product} Windows", f"{name} Spot", size.name, round(windows * spot / on_demand, 6))
    reserved = _item(location, product, name, size.name, round(on_demand * 8760 * 0.6, 2))
    yield {**reserved, "type": "Reservation", "reservationTerm": "1 Year", "unitOfMeasure": "1 Hour"}


def price_of(account: Contents, size: str, location: str, market: str) -> float:
    """Dollars per hour, of the catalogue or as they were set by hand."""
    details = sizes.size_of(size)
    listed = sizes.price(details, location, market) if details is not None else 1.0
    return account.prices.get((size.lower(), location, market), listed)


def _item(
    location: str, product: str, sku: str, size: str, price: float, *, unit: str = "1 Hour", service: str = "Virtual Machines"
) -> dict[str, Any]:
    number = crc32(f"{location}/{product}/{sku}".encode())
    ident = f"{number:08x}-0000-4000-8000-000000000000"
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": location,
        "location": location,
        "effectiveStartDate": "2025-01-01T00:00:00Z",
        "meterId": ident,
        "meterName": sku,
        "productId": f"DZH318Z{number % 10**5:05d}",
        "skuId": f"DZH318Z{number % 10**5:05d}/{number % 9973:04d}",
        "productName": product,
        "skuName": sku,
        "serviceName": service,
        "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute" if service == "Virtual Machines" else "Storage",
        "unitOfMeasure": unit,
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size,
    }


class _Filter:
    """A filter in the OData words that the API supports: eq, ne, and, or, contains, startswith, endswith, parentheses."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens = text, list[tuple[str, str]]()
        place = 0
        while place < len(text.rstrip()):
            match = _TOKEN.match(text, place)
            if match is None:
                raise self._wrong()
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            place = match.end()

    def parse(self) -> Test:
        """A test of items. Raises :class:`AzureError` if the text is not a filter."""
        if not self._tokens:
            return lambda _item: True
        test = self._any()
        if self._tokens:
            raise self._wrong()
        return test

    def _any(self) -> Test:
        tests = [self._all()]
        while self._accept("or"):
            tests.append(self._all())
        return lambda item: any(test(item) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._accept("and"):
            tests.append(self._one())
        return lambda item: all(test(item) for test in tests)

    def _one(self) -> Test:
        if self._accept("("):
            test = self._any()
            self._expect(")")
            return test
        word = self._take("word")
        if word in {"contains", "startswith", "endswith"}:
            self._expect("(")
            field = self._take("word")
            self._expect(",")
            value = self._value()
            self._expect(")")
            return lambda item: _matches(word, str(item.get(field, "")).lower(), value)
        operator, value = self._take("word"), self._value()
        if operator not in {"eq", "ne"}:
            raise self._wrong()
        # The API filters by priceType what it shows as type.
        shown = "type" if word == "priceType" else word
        return lambda item: (str(item.get(shown, "")).lower() == value) == (operator == "eq")

    def _accept(self, wanted: str) -> bool:
        if self._tokens and self._tokens[0][0] != "text" and self._tokens[0][1] == wanted:
            self._tokens.pop(0)
            return True
        return False

    def _expect(self, wanted: str) -> None:
        if not self._accept(wanted):
            raise self._wrong()

    def _take(self, kind: str) -> str:
        if not self._tokens or self._tokens[0][0] != kind:
            raise self._wrong()
        return self._tokens.pop(0)[1]

    def _value(self) -> str:
        return self._take("text")[1:-1].replace("''", "'").lower()

    def _wrong(self) -> Exception:
        return bad_request(f"Invalid OData parameters supplied: $filter={self._text}", code="BadRequest")


def _matches(word: str, text: str, value: str) -> bool:
    if word == "contains":
        return value in text
    return text.startswith(value) if word == "startswith" else text.endswith(value)


ROUTES: Final = (Route("GET", "/api/retail/prices", _prices, versioned=False),)
