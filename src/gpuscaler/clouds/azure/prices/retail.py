"""Prices of virtual machines in items of the Retail Prices API.

Several items have the name of one size: with a Windows licence, of Cloud Services (at the same price as Windows, without the word), of
dedicated hosts, spot, the discontinued low priority, and past and future prices. Source: Azure Retail Prices overview, and items of 2026.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gpuscaler.clouds.pricing import is_possible

#: Words in names of products, without spaces and in lower case, that are not plain virtual machines with Linux.
_OTHER_PRODUCTS: Final = ("windows", "cloudservices", "dedicatedhost")
#: Ends of names of meters that nothing is bought at.
_OTHER_METERS: Final = ("low priority", "expired", "free")


class ListedPrice(Struct, frozen=True):
    """A price in US dollars per hour, or why it cannot be used, such as "is in EUR"."""

    price: float = 0.0
    problem: str = ""


class SizePrices(Struct, frozen=True):
    """The prices of a size in a location, None for those that are not listed."""

    on_demand: ListedPrice | None = None
    spot: ListedPrice | None = None


class _Candidate(NamedTuple):
    """A price, with what it takes precedence by: usable, the newest, of a product named as all others are, the highest."""

    usable: bool
    since: float
    plain: bool
    price: float
    problem: str


def prices_in(items: Iterable[Any], location: str, now: float) -> dict[str, SizePrices]:
    """The prices that apply at ``now``, by the size's name in lower case. Items that are something else are left out."""
    best: dict[tuple[str, bool], _Candidate] = {}
    for item in items:
        if not isinstance(item, Mapping) or not _is_machine(item, location):
            continue
        candidate = _candidate(item, now)
        key = (item["armSkuName"].lower(), _ends(item, ("spot",)))
        if candidate is not None and (key not in best or best[key] < candidate):
            best[key] = candidate
    sizes = dict.fromkeys(size for size, _ in best)
    return {size: SizePrices(_listed(best.get((size, False))), _listed(best.get((size, True)))) for size in sizes}


def _listed(candidate: _Candidate | None) -> ListedPrice | None:
    return None if candidate is None else ListedPrice(candidate.price, candidate.problem)


def _is_machine(item: Mapping[str, Any], location: str) -> bool:
    """Whether the item is a price per use of a virtual machine with Linux in ``location``."""
    texts = [item.get(key) for key in ("armSkuName", "armRegionName", "productName", "skuName", "meterName")]
    if not all(isinstance(text, str) and text for text in texts):
        return False
    product = item["productName"].replace(" ", "").lower()
    return (
        item["armRegionName"].lower() == location.lower()
        and item.get("type", "Consumption") == "Consumption"
        and item.get("serviceName", "Virtual Machines") == "Virtual Machines"
        and not item.get("reservationTerm")
        and not item.get("tierMinimumUnits")
        and not any(word in product for word in _OTHER_PRODUCTS)
        and not _ends(item, _OTHER_METERS)
    )


def _ends(item: Mapping[str, Any], words: tuple[str, ...]) -> bool:
    return any(item[key].lower().endswith(f" {word}") for key in ("skuName", "meterName") for word in words)


def _candidate(item: Mapping[str, Any], now: float) -> _Candidate | None:
    """The item's price, None if it applies at another time."""
    since, until = _seconds(item.get("effectiveStartDate")), _seconds(item.get("effectiveEndDate"))
    if (since is not None and since > now) or (until is not None and until <= now):
        return None
    problem = _problem(item)
    plain = item["productName"].lower().startswith("virtual machines")
    return _Candidate(not problem, since or 0.0, plain, 0.0 if problem else float(item["retailPrice"]), problem)


def _problem(item: Mapping[str, Any]) -> str:
    price, currency, unit = item.get("retailPrice"), item.get("currencyCode"), item.get("unitOfMeasure")
    if currency != "USD":
        return f"is in {str(currency)[:20]}"
    if unit != "1 Hour":
        return f"is per {str(unit)[:20]}"
    if isinstance(price, bool) or not isinstance(price, int | float):
        return "is no number"
    if not is_possible(price):
        return f"is ${price:g}" if math.isfinite(price) else "is no number"
    return ""


def _seconds(moment: Any) -> float | None:
    """Seconds since the epoch of an ISO 8601 time, None if it is none."""
    try:
        parsed = datetime.fromisoformat(moment)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
