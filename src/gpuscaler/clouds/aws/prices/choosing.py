"""Prices from replies of the Pricing API and of DescribeSpotPriceHistory, and checks of their plausibility.

Prices are US dollars per hour. An impossible price would distort every plan, so it is replaced, with a warning.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.nearby import guess_price, nearest_price
from gpuscaler.clouds.aws.api.groups import Reply
from gpuscaler.model.overrides import OfferingPrice, override_price
from gpuscaler.model.pools import BY_SIZE

#: A price this many times above or below the known one is a mistake of unit or currency.
IMPLAUSIBLE_FACTOR = 20.0
#: A spot price is never less than this fraction (1/100) of the on-demand price.
SPOT_DIVISOR = 100.0
#: The history covers this many seconds; an older spot price is implausible.
HISTORY_SECONDS = 90 * 86_400.0
#: The price of a type with neither a known price nor a known size: it is bought last, and no plan treats it as free.
UNKNOWN_PRICE = 1_000.0
#: Amazon's regions in China have prices in yuan. Plans, limits and reports are in dollars: this many yuan count as one.
YUAN_PER_DOLLAR = 7.0

#: (instance type, zone).
Place = tuple[str, str]


class SpotPrice(NamedTuple):
    """A spot price; ``since`` is in seconds since the epoch."""

    price: float
    since: float


class PriceToUse(NamedTuple):
    """The price to plan with; ``warning`` is empty if that is the given price. ``price_from`` has the same meaning as in an offering."""

    price: float
    warning: str = ""
    price_from: str = ""


def on_demand_price_of(entries: Iterable[str]) -> float | None:
    """The hourly price in GetProducts' ``PriceList``, whose entries are JSON; None if there is none.

    Of several prices, the highest is used, so that a machine is never more expensive than planned.
    """
    prices = [price for entry in entries for price in _hourly(entry)]
    return max(prices, default=None)


def _hourly(entry: str) -> list[float]:
    try:
        terms = json.loads(entry)["terms"]["OnDemand"].values()
        dimensions = [dimension for term in terms for dimension in term["priceDimensions"].values()]
        prices = [_dollars(dimension["pricePerUnit"]) for dimension in dimensions if dimension.get("unit") == "Hrs"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [price for price in prices if price > 0 and math.isfinite(price)]


def _dollars(amounts: Mapping[str, str]) -> float:
    """A price per unit in dollars, converted from its only currency."""
    return float(amounts["USD"]) if "USD" in amounts else float(amounts["CNY"]) / YUAN_PER_DOLLAR


def in_yuan(region: str) -> bool:
    """Whether prices of ``region`` are in yuan."""
    return region.startswith("cn-")


def spot_prices_of(entries: Iterable[Reply], *, per_dollar: float = 1.0) -> dict[Place, SpotPrice]:
    """The newest price of each instance type and zone in ``SpotPriceHistory``; entries that cannot be read are left out.

    ``per_dollar`` is the exchange rate of the region's currency.
    """
    spot_prices: dict[Place, SpotPrice] = {}
    for entry in entries:
        try:
            place = (str(entry["InstanceType"]), str(entry["AvailabilityZone"]))
            spot_price = SpotPrice(float(entry["SpotPrice"]) / per_dollar, _seconds(entry["Timestamp"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if place not in spot_prices or spot_prices[place].since < spot_price.since:
            spot_prices[place] = spot_price
    return spot_prices


def _seconds(moment: Any) -> float:
    assert isinstance(moment, datetime)
    return moment.timestamp()


class Tariff(NamedTuple):
    """All known prices of one region; ``own`` are the user's, which are not checked."""

    region: str
    on_demand: Mapping[str, float] = {}
    spot: Mapping[Place, SpotPrice] = {}
    now: float = 0.0
    own: tuple[OfferingPrice, ...] = ()

    def price_of(self, instance_type: str, market: str, zone: str, kind: catalogue.InstanceType | None = None) -> PriceToUse:
        """The price of one offering. ``reserved`` is already paid for. ``kind`` is the basis of a guess if no price is known."""
        own_price = override_price(self.own, instance_type=instance_type, market=market, zone=zone)
        if own_price is not None:
            return PriceToUse(own_price)
        if market == "reserved":
            return PriceToUse(0.0)
        on_demand = self._on_demand(instance_type, zone, kind)
        return on_demand if market == "on-demand" else self._spot(instance_type, zone, on_demand)

    def _on_demand(self, instance_type: str, zone: str, kind: catalogue.InstanceType | None) -> PriceToUse:
        own_price = override_price(self.own, instance_type=instance_type, market="on-demand", zone=zone)
        listed, references = self.on_demand.get(instance_type), _references(instance_type)
        if own_price is not None:
            return PriceToUse(own_price)
        if listed is None:
            return self._substitute(instance_type, kind)
        if _is_plausible(listed, references):
            return PriceToUse(listed)
        substitute = self._substitute(instance_type, kind)
        text = f"is ${listed:g}, expected about ${substitute.price:g}; ${substitute.price:g} is used"
        return substitute._replace(warning=f"the on-demand price of {instance_type} in {self.region} {text}")

    def _substitute(self, instance_type: str, kind: catalogue.InstanceType | None) -> PriceToUse:
        """A price in place of AWS's: the catalogue's for the region, that of the nearest region, or a guess at or above any spot price."""
        near = nearest_price(instance_type, self.region)
        if near is not None:
            return PriceToUse(near.price.on_demand, price_from="" if near.region == self.region else near.region)
        guess = guess_price(kind, self.region) if kind is not None else None
        spot = [spot_price.price for (name, _), spot_price in self.spot.items() if name == instance_type and _is_possible(spot_price.price)]
        price = max([guess or 0.0, *spot]) or UNKNOWN_PRICE
        subject = f"prices unknown: no region has a price of {instance_type}"
        return PriceToUse(
            price, f"{subject}; ${price:g} is assumed, and no pod is moved to save money there: add it to aws.prices", BY_SIZE
        )

    def _spot(self, instance_type: str, zone: str, on_demand: PriceToUse) -> PriceToUse:
        subject, spot_price = f"the spot price of {instance_type} in {zone or self.region}", self.spot.get((instance_type, zone))
        near = nearest_price(instance_type, self.region)
        listed = near.price.spot if near is not None else None
        estimate = min(listed, on_demand.price) if listed is not None else on_demand.price
        if spot_price is None:
            return PriceToUse(estimate, price_from=near.region if near is not None and near.region != self.region else on_demand.price_from)
        # A guess is no reason to reject AWS's price; a known price of this type in any region may be.
        references = _references(instance_type)
        references += (on_demand.price,) if not on_demand.price_from else ()
        if not _is_possible(spot_price.price) or spot_price.price < min(references, default=0.0) / SPOT_DIVISOR:
            return PriceToUse(estimate, f"{subject} is ${spot_price.price:g}, expected about ${estimate:g}; ${estimate:g} is used")
        if references and spot_price.price > max(references) * IMPLAUSIBLE_FACTOR:
            substitute = on_demand.price
            return PriceToUse(
                substitute, f"{subject} is ${spot_price.price:g}, expected at most the on-demand price; ${substitute:g} is used"
            )
        if self.now - spot_price.since > HISTORY_SECONDS:
            days = (self.now - spot_price.since) / 86_400
            return PriceToUse(
                max(estimate, spot_price.price),
                f"{subject} is {days:.0f} days old, expected at most 90; the higher of that price and ${estimate:g} is used",
            )
        return PriceToUse(spot_price.price)


def _is_possible(price: float) -> bool:
    return price > 0 and math.isfinite(price)


def _is_plausible(price: float, references: tuple[float, ...]) -> bool:
    if not _is_possible(price):
        return False
    return not references or min(references) / IMPLAUSIBLE_FACTOR <= price <= max(references) * IMPLAUSIBLE_FACTOR


def _references(instance_type: str) -> tuple[float, ...]:
    """Known on-demand prices of a type, in any region."""
    described = catalogue.lookup(instance_type)
    return tuple(price.on_demand for price in described.prices.values()) if described else ()
