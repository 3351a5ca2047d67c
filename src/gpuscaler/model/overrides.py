"""User settings for a pool that was found in a cloud account. They override what was found."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from gpuscaler.model.pools import Budget, Pool, Spare
from gpuscaler.model.taints import Taint


class OfferingPrice(Struct, frozen=True, gc=False):
    """US dollars per hour of an instance type; an empty ``market`` or ``zone`` means all."""

    instance_type: str
    price: float
    market: str = ""
    zone: str = ""


class PoolOverride(Struct, frozen=True, gc=False):
    """Overrides for the pool of that name, None for no change; ``labels`` and ``taints`` are added to those that were found."""

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
    offerings = []
    for offering in pool.offerings:
        price = override_price(override.prices, instance_type=offering.instance_type, market=offering.market, zone=offering.zone)
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
    return msgspec.structs.replace(pool, offerings=tuple(offerings), match_labels=matching, **changes)


def override_price(prices: Iterable[OfferingPrice], *, instance_type: str, market: str, zone: str) -> float | None:
    """Return the price of the last matching entry. Reserved machines are already paid for: only an entry with that market matches them."""
    price = None
    for offering_price in prices:
        markets = (market,) if market == "reserved" else ("", market)
        if offering_price.instance_type == instance_type and offering_price.market in markets and offering_price.zone in ("", zone):
            price = offering_price.price
    return price
