"""Prices from replies of the Pricing API and of DescribeSpotPriceHistory, and checks of their plausibility.

Prices are US dollars per hour.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.nearby import nearest_price
from gpuscaler.clouds.aws.api.groups import Reply
from gpuscaler.clouds.pricing import IMPLAUSIBLE_FACTOR, SPOT_DIVISOR, PriceToUse, is_possible, known_prices, on_demand_price
from gpuscaler.model.overrides import OfferingPrice, override_price

#: The history covers this many seconds; an older spot price is implausible.
HISTORY_SECONDS = 90 * 86_400.0
#: Amazon's regions in China have prices in yuan. Plans, limits and reports are in dollars: this many yuan count as one.
YUAN_PER_DOLLAR = 7.0

#: (instance type, zone).
Place = tuple[str, str]


class SpotPrice(NamedTuple):
    """A spot price; ``since`` is in seconds since the epoch."""

    price: float
    since: float


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
    return [price for price in prices if is_possible(price)]


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
        if own_price is not None:
            return PriceToUse(own_price)
        # A generator: the prices are needed only for a guess.
        spot = (spot_price.price for (name, _), spot_price in self.spot.items() if name == instance_type)
        listed = self.on_demand.get(instance_type)
        return on_demand_price(instance_type, self.region, listed, kind=kind, spot_prices=spot, setting="aws.prices")

    def _spot(self, instance_type: str, zone: str, on_demand: PriceToUse) -> PriceToUse:
        subject, spot_price = f"the spot price of {instance_type} in {zone or self.region}", self.spot.get((instance_type, zone))
        near = nearest_price(instance_type, self.region)
        listed = near.price.spot if near is not None else None
        estimate = min(listed, on_demand.price) if listed is not None else on_demand.price
        if spot_price is None:
            return PriceToUse(estimate, price_from=near.region if near is not None and near.region != self.region else on_demand.price_from)
        # A guess is no reason to reject AWS's price; a known price of this type in any region may be.
        references = known_prices(instance_type)
        references += (on_demand.price,) if not on_demand.price_from else ()
        if not is_possible(spot_price.price) or spot_price.price < min(references, default=0.0) / SPOT_DIVISOR:
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
