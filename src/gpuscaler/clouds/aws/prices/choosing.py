"""What machines cost: replies of the Pricing API and of DescribeSpotPriceHistory, and which figures are believed.

Prices are US dollars per hour. A figure that cannot be true would make every plan follow it, so it is replaced, and said.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.nearby import guessed, nearest
from gpuscaler.clouds.aws.api.groups import Reply
from gpuscaler.model.overrides import OfferingPrice, price_told
from gpuscaler.model.pools import BY_SIZE

#: A price so many times the one that is known, or so small a part of it, is a mistake: of a unit, of a currency.
FACTOR = 20.0
#: Spot is never so small a part of on demand.
SPOT_PART = 100.0
#: Spot prices older than this, in seconds, are beyond what the history holds.
REACH = 90 * 86_400.0
#: A type of which neither price nor size is known costs so much: it is asked last, and no plan takes it for free.
UNKNOWN = 1_000.0
#: Amazon's regions in China have prices in yuan. Plans, limits and reports are in dollars: so many yuan count as one.
YUAN_PER_DOLLAR = 7.0

#: (instance type, zone).
Place = tuple[str, str]


class SpotPrice(NamedTuple):
    """``since`` is in seconds since the epoch."""

    price: float
    since: float


class Judged(NamedTuple):
    """The price to plan with; ``warning`` is empty where it is the one that was given. ``price_from`` is as that of an offering."""

    price: float
    warning: str = ""
    price_from: str = ""


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
        prices = [_dollars(one["pricePerUnit"]) for one in dimensions if one.get("unit") == "Hrs"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [price for price in prices if price > 0 and math.isfinite(price)]


def _dollars(told: Mapping[str, str]) -> float:
    """A price per unit, which is in one currency."""
    return float(told["USD"]) if "USD" in told else float(told["CNY"]) / YUAN_PER_DOLLAR


def in_yuan(region: str) -> bool:
    """Whether prices of ``region`` are in yuan."""
    return region.startswith("cn-")


def spot_of(entries: Iterable[Reply], *, per_dollar: float = 1.0) -> dict[Place, SpotPrice]:
    """The newest price of each instance type and zone in ``SpotPriceHistory``; entries that cannot be read are left out.

    Prices are ``per_dollar`` of the region's currency.
    """
    found: dict[Place, SpotPrice] = {}
    for entry in entries:
        try:
            place = (str(entry["InstanceType"]), str(entry["AvailabilityZone"]))
            one = SpotPrice(float(entry["SpotPrice"]) / per_dollar, _seconds(entry["Timestamp"]))
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

    def of(self, instance_type: str, market: str, zone: str, kind: catalogue.InstanceType | None = None) -> Judged:
        """The price of one offering. ``reserved`` is paid already. ``kind`` is what a guess is made from where no price is known."""
        said = price_told(self.own, instance_type=instance_type, market=market, zone=zone)
        if said is not None:
            return Judged(said)
        if market == "reserved":
            return Judged(0.0)
        on_demand = self._on_demand(instance_type, zone, kind)
        return on_demand if market == "on-demand" else self._spot(instance_type, zone, on_demand)

    def _on_demand(self, instance_type: str, zone: str, kind: catalogue.InstanceType | None) -> Judged:
        said = price_told(self.own, instance_type=instance_type, market="on-demand", zone=zone)
        told, references = self.on_demand.get(instance_type), _references(instance_type)
        if said is not None:
            return Judged(said)
        if told is None:
            return self._otherwise(instance_type, kind)
        if _plausible(told, references):
            return Judged(told)
        instead = self._otherwise(instance_type, kind)
        text = f"is ${told:g}, expected about ${instead.price:g}; ${instead.price:g} is planned with"
        return instead._replace(warning=f"the on-demand price of {instance_type} in {self.region} {text}")

    def _otherwise(self, instance_type: str, kind: catalogue.InstanceType | None) -> Judged:
        """What AWS does not tell: the catalogue's price here, that of the nearest region, or a guess that no spot price is above."""
        near = nearest(instance_type, self.region)
        if near is not None:
            return Judged(near.price.on_demand, price_from="" if near.region == self.region else near.region)
        guess = guessed(kind, self.region) if kind is not None else None
        spot = [one.price for (name, _), one in self.spot.items() if name == instance_type and _possible(one.price)]
        price = max([guess or 0.0, *spot]) or UNKNOWN
        what = f"prices unknown: no region has a price of {instance_type}"
        return Judged(price, f"{what}; ${price:g} is guessed, and no pod is moved to save money there: add it to aws.prices", BY_SIZE)

    def _spot(self, instance_type: str, zone: str, on_demand: Judged) -> Judged:
        what, told = f"the spot price of {instance_type} in {zone or self.region}", self.spot.get((instance_type, zone))
        near = nearest(instance_type, self.region)
        listed = near.price.spot if near is not None else None
        estimate = min(listed, on_demand.price) if listed is not None else on_demand.price
        if told is None:
            return Judged(estimate, price_from=near.region if near is not None and near.region != self.region else on_demand.price_from)
        # A guess never says that what AWS tells is wrong; what this type costs anywhere may.
        known = _references(instance_type)
        known += (on_demand.price,) if not on_demand.price_from else ()
        if not _possible(told.price) or told.price < min(known, default=0.0) / SPOT_PART:
            return Judged(estimate, f"{what} is ${told.price:g}, expected about ${estimate:g}; ${estimate:g} is planned with")
        if known and told.price > max(known) * FACTOR:
            instead = on_demand.price
            return Judged(instead, f"{what} is ${told.price:g}, expected at most the on-demand price; ${instead:g} is planned with")
        if self.now - told.since > REACH:
            days = (self.now - told.since) / 86_400
            return Judged(
                max(estimate, told.price), f"{what} is {days:.0f} days old, expected at most 90; the dearer of it and ${estimate:g} counts"
            )
        return Judged(told.price)


def _possible(price: float) -> bool:
    return price > 0 and math.isfinite(price)


def _plausible(price: float, references: tuple[float, ...]) -> bool:
    if not _possible(price):
        return False
    return not references or min(references) / FACTOR <= price <= max(references) * FACTOR


def _references(instance_type: str) -> tuple[float, ...]:
    """What a type is known to cost on demand, in any region."""
    known = catalogue.lookup(instance_type)
    return tuple(one.on_demand for one in known.prices.values()) if known else ()
