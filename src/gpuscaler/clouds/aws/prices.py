"""What machines cost: replies of the Pricing API and of DescribeSpotPriceHistory, and which figures are believed.

Prices are US dollars per hour. A figure that cannot be true would make every plan follow it, so it is replaced, and said.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from gpuscaler import catalogue
from gpuscaler.clouds.aws.groups import Reply
from gpuscaler.model.overrides import OfferingPrice, price_told

#: A price so many times the one that is known, or so small a part of it, is a mistake: of a unit, of a currency.
FACTOR = 20.0
#: Spot is never so small a part of on demand.
SPOT_PART = 100.0
#: Spot prices older than this, in seconds, are beyond what the history holds.
REACH = 90 * 86_400.0
#: An offering without any known price costs so much: it is asked last, and no plan takes it for free.
UNKNOWN = 1_000.0

#: (instance type, zone).
Place = tuple[str, str]


class SpotPrice(NamedTuple):
    """``since`` is in seconds since the epoch."""

    price: float
    since: float


class Judged(NamedTuple):
    """The price to plan with; ``warning`` is empty where it is the one that was given."""

    price: float
    warning: str = ""


def on_demand_of(entries: Iterable[str]) -> float | None:
    """The hourly price in GetProducts' ``PriceList``, whose entries are JSON; None where it tells none.

    The dearest of several: never is a machine cheaper than planned.
    """
    found = [price for entry in entries for price in _hourly(entry)]
    return max(found, default=None)


def _hourly(entry: str) -> list[float]:
    try:
        terms = json.loads(entry)["terms"]["OnDemand"].values()
        dimensions = [one for term in terms for one in term["priceDimensions"].values()]
        prices = [float(one["pricePerUnit"]["USD"]) for one in dimensions if one.get("unit") == "Hrs"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [price for price in prices if price > 0 and math.isfinite(price)]


def spot_of(entries: Iterable[Reply]) -> dict[Place, SpotPrice]:
    """The newest price of each instance type and zone in ``SpotPriceHistory``; entries that cannot be read are left out."""
    found: dict[Place, SpotPrice] = {}
    for entry in entries:
        try:
            place = (str(entry["InstanceType"]), str(entry["AvailabilityZone"]))
            one = SpotPrice(float(entry["SpotPrice"]), _seconds(entry["Timestamp"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if place not in found or found[place].since < one.since:
            found[place] = one
    return found


def _seconds(moment: Any) -> float:
    assert isinstance(moment, datetime)
    return moment.timestamp()


class Tariff(NamedTuple):
    """All that is known of prices in one region; ``own`` are those that a person gives, which are not doubted."""

    region: str
    on_demand: Mapping[str, float] = {}
    spot: Mapping[Place, SpotPrice] = {}
    now: float = 0.0
    own: tuple[OfferingPrice, ...] = ()

    def of(self, instance_type: str, market: str, zone: str) -> Judged:
        """The price of one offering. ``reserved`` is paid already."""
        said = price_told(self.own, instance_type=instance_type, market=market, zone=zone)
        if said is not None:
            return Judged(said)
        if market == "reserved":
            return Judged(0.0)
        listed = _listed(instance_type, self.region)
        on_demand = self._on_demand(instance_type, listed)
        return on_demand if market == "on-demand" else self._spot(instance_type, zone, on_demand.price, listed)

    def _on_demand(self, instance_type: str, listed: catalogue.Price | None) -> Judged:
        what, told = f"the on-demand price of {instance_type} in {self.region}", self.on_demand.get(instance_type)
        reference = listed.on_demand if listed else None
        if told is None:
            if reference is not None:
                return Judged(reference)
            return Judged(UNKNOWN, f"{what} is not known; ${UNKNOWN:g} is planned with, so that it is bought last: add it to aws.prices")
        if _plausible(told, reference):
            return Judged(told)
        instead = UNKNOWN if reference is None else reference
        return Judged(instead, f"{what} is ${told:g}, expected about ${instead:g}; ${instead:g} is planned with")

    def _spot(self, instance_type: str, zone: str, on_demand: float, listed: catalogue.Price | None) -> Judged:
        what, told = f"the spot price of {instance_type} in {zone or self.region}", self.spot.get((instance_type, zone))
        estimate = listed.spot if listed and listed.spot is not None else on_demand
        if told is None:
            return Judged(min(estimate, on_demand))
        if not (told.price > 0 and math.isfinite(told.price)) or told.price < on_demand / SPOT_PART:
            return Judged(estimate, f"{what} is ${told.price:g}, expected about ${estimate:g}; ${estimate:g} is planned with")
        if told.price > on_demand * FACTOR:
            return Judged(on_demand, f"{what} is ${told.price:g}, expected at most the on-demand price; ${on_demand:g} is planned with")
        if self.now - told.since > REACH:
            days = (self.now - told.since) / 86_400
            return Judged(
                max(estimate, told.price), f"{what} is {days:.0f} days old, expected at most 90; the dearer of it and ${estimate:g} counts"
            )
        return Judged(told.price)


def _plausible(price: float, reference: float | None) -> bool:
    if not (price > 0 and math.isfinite(price)):
        return False
    return reference is None or reference / FACTOR <= price <= reference * FACTOR


def _listed(instance_type: str, region: str) -> catalogue.Price | None:
    known = catalogue.lookup(instance_type)
    return known.prices.get(region) if known else None
