"""Prices that can be planned with: checks of their plausibility, and substitutes for unknown ones.

Prices are US dollars per hour. An impossible price would distort every plan, so it is replaced, with a warning.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.nearby import guess_price, nearest_price
from gpuscaler.model.pools import BY_SIZE

#: A price this many times above or below the known one is a mistake of unit or currency.
IMPLAUSIBLE_FACTOR: Final = 20.0
#: A spot price is never less than this fraction (1/100) of the on-demand price.
SPOT_DIVISOR: Final = 100.0
#: The price of a type with neither a known price nor a known size: it is bought last, and no plan treats it as free.
UNKNOWN_PRICE: Final = 1_000.0


class PriceToUse(NamedTuple):
    """The price to plan with; ``warning`` is empty if that is the given price. ``price_from`` has the same meaning as in an offering."""

    price: float
    warning: str = ""
    price_from: str = ""


def is_possible(price: float) -> bool:
    """Whether a machine can have that price at all."""
    return price > 0 and math.isfinite(price)


def known_prices(instance_type: str) -> tuple[float, ...]:
    """On-demand prices of a type in the catalogue, in all regions."""
    described = catalogue.lookup(instance_type)
    return tuple(price.on_demand for price in described.prices.values()) if described else ()


def on_demand_price(
    instance_type: str,
    region: str,
    listed: float | None,
    *,
    setting: str,
    kind: catalogue.InstanceType | None = None,
    spot_prices: Iterable[float] = (),
) -> PriceToUse:
    """The price to plan with for a machine on demand: the cloud's ``listed`` one if it is plausible.

    Otherwise the catalogue's for the region, that of the nearest region, or a guess from the size of ``kind`` that is at least any of the
    possible ``spot_prices``. ``setting`` is the key of the run file in which users can state the price.
    """
    if listed is not None and _is_plausible(listed, known_prices(instance_type)):
        return PriceToUse(listed)
    substitute = _substitute(instance_type, region, kind, spot_prices, setting)
    if listed is None:
        return substitute
    text = f"is ${listed:g}, expected about ${substitute.price:g}; ${substitute.price:g} is used"
    return substitute._replace(warning=f"the on-demand price of {instance_type} in {region} {text}")


def _is_plausible(price: float, references: tuple[float, ...]) -> bool:
    if not is_possible(price):
        return False
    return not references or min(references) / IMPLAUSIBLE_FACTOR <= price <= max(references) * IMPLAUSIBLE_FACTOR


def _substitute(
    instance_type: str, region: str, kind: catalogue.InstanceType | None, spot_prices: Iterable[float], setting: str
) -> PriceToUse:
    near = nearest_price(instance_type, region)
    if near is not None:
        return PriceToUse(near.price.on_demand, price_from="" if near.region == region else near.region)
    guess = guess_price(kind, region) if kind is not None else None
    price = max([guess or 0.0, *filter(is_possible, spot_prices)]) or UNKNOWN_PRICE
    subject = f"prices unknown: no region has a price of {instance_type}"
    return PriceToUse(price, f"{subject}; ${price:g} is assumed, and no pod is moved to save money there: add it to {setting}", BY_SIZE)
