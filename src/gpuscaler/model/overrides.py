"""User settings for a pool that was found in a cloud account. They override what was found."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from gpuscaler.model.offerings import ON_DEMAND, RESERVED, SPOT
from gpuscaler.model.pools import Budget, Pool, Spare
from gpuscaler.model.taints import Taint

#: The name of an override of every pool, which tags of a group and the override with the name of a pool take precedence over.
EVERY_POOL: Final = "*"


class OfferingPrice(Struct, frozen=True, gc=False):
    """US dollars per hour of an instance type. An empty ``zone`` means all.

    An empty ``market`` means the only one in which a pool buys, or on-demand if it buys in several: spot costs something else.
    """

    instance_type: str
    price: float
    market: str = ""
    zone: str = ""


class PoolOverride(Struct, frozen=True, gc=False):
    """Overrides for the pool of that name, or for :data:`EVERY_POOL`; None for no change.

    ``labels`` and ``taints`` are added to those that were found.
    """

    name: str
    min: int | None = None
    max: int | None = None
    spare: Spare | None = None
    idle_after: float | None = None
    unready_after: float | None = None
    steering: str | None = None
    priority: int | None = None
    closed: bool | None = None
    min_gpus_per_pod: int | None = None
    budgets: tuple[Budget, ...] | None = None
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] | None = None
    prices: tuple[OfferingPrice, ...] = ()


#: Fields of both classes, which an override replaces.
_REPLACED = (
    *("min", "max", "spare", "idle_after", "unready_after", "steering", "priority", "closed", "min_gpus_per_pod", "budgets"),
    "startup_taints",
)


def apply_override(pool: Pool, override: PoolOverride) -> Pool:
    """Apply ``override`` to ``pool``."""
    changes = {field: value for field in _REPLACED if (value := getattr(override, field)) is not None}
    if override.min_gpus_per_pod is not None:
        # An explicit value of the pool counts, including 0: then machines are bought for pods without GPUs.
        changes["buys_without_gpus"] = True
    taints = {(taint.key, taint.effect): taint for taint in override.taints}
    offerings, prices = [], _with_markets(override.prices, pool)
    for offering in pool.offerings:
        price = override_price(prices, instance_type=offering.instance_type, market=offering.market, zone=offering.zone)
        priced = offering if price is None else msgspec.structs.replace(offering, price=price, price_from="")
        merged = {(taint.key, taint.effect): taint for taint in offering.taints} | taints
        offerings.append(
            msgspec.structs.replace(
                priced,
                labels={**offering.labels, **override.labels},
                taints=tuple(merged.values()),
            )
        )
    matching = {**pool.match_labels, **override.labels}
    configured = tuple(dict.fromkeys((*pool.configured_labels, *override.labels)))
    return msgspec.structs.replace(pool, offerings=tuple(offerings), match_labels=matching, configured_labels=configured, **changes)


def on_demand_only(prices: Iterable[OfferingPrice]) -> list[str]:
    """Return the instance types with a price on demand and none on spot."""
    priced = {(price.instance_type, price.market) for price in prices}
    return sorted(name for name, market in priced if market == ON_DEMAND and (name, SPOT) not in priced)


def _with_markets(prices: Iterable[OfferingPrice], pool: Pool) -> list[OfferingPrice]:
    """Return ``prices`` with their markets in ``pool``. Reserved machines are already paid for: a price of theirs states the market."""
    markets = {offering.market for offering in pool.offerings} - {RESERVED}
    usual = next(iter(markets)) if len(markets) == 1 else ON_DEMAND
    return [price if price.market else msgspec.structs.replace(price, market=usual) for price in prices]


def override_price(prices: Iterable[OfferingPrice], *, instance_type: str, market: str, zone: str) -> float | None:
    """Return the price of the last entry for that type and market, and for that zone or all zones."""
    price = None
    for offering_price in prices:
        if (offering_price.instance_type, offering_price.market) == (instance_type, market) and offering_price.zone in ("", zone):
            price = offering_price.price
    return price
