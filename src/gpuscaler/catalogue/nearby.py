"""Prices where none is known: those of the nearest region that has one, else a guess from types of the same family or size.

A guess is never mistaken for a price: whoever takes one says from where it is.
"""

from collections.abc import Iterable
from functools import cache
from statistics import median
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuscaler.catalogue import InstanceType, Price, lookup, types
from gpuscaler.model.accelerators import gpus_in

#: Where the price is looked for first, by what a region's name begins with, the longest that fits. The same continent first; for continents
#: without any price, the one with which their regions share most of their cables.
_NEAREST: Final = {
    "us-west": ("us-west-2", "us-east-1"),
    "us-gov-west": ("us-west-2", "us-east-1"),
    "us-": ("us-east-1", "us-west-2"),
    "ca-west": ("us-west-2", "us-east-1"),
    "ca-": ("us-east-1", "us-west-2"),
    "mx-": ("us-east-1", "us-west-2"),
    "sa-": ("us-east-1", "us-west-2"),
    "eu": ("eu-west-1", "us-east-1"),
    "il-": ("eu-west-1", "us-east-1"),
    "me-": ("eu-west-1", "us-east-1"),
    "af-": ("eu-west-1", "us-east-1"),
    "ap-": ("ap-northeast-1", "us-west-2"),
    "cn-": ("ap-northeast-1", "us-west-2"),
}


class Nearby(NamedTuple):
    """A price, and the region that has it."""

    region: str
    price: Price


def nearest(instance_type: str, region: str) -> Nearby | None:
    """The price of a type in the region nearest to ``region`` that has one, ``region`` itself first; None where no region has one.

    Where a region further away has it, the price is raised, or lowered, as those of other types differ between the two: types that are
    priced by different regions stay in their order.
    """
    known = lookup(instance_type)
    if known is None or not known.prices:
        return None
    beginning = max((one for one in _NEAREST if region.startswith(one)), key=len, default="")
    order = (region, *_NEAREST.get(beginning, ()), *sorted(known.prices))
    found = next(name for name in order if name in known.prices)
    price = known.prices[found]
    anchor = next((name for name in order if name in _priced(known.cloud)), found)
    level = _level(known.cloud, found, anchor)
    if level == 1.0:
        return Nearby(found, price)
    spot = None if price.spot is None else round(price.spot * level, 4)
    return Nearby(found, replace(price, on_demand=round(price.on_demand * level, 4), spot=spot))


@cache
def _priced(cloud: str) -> frozenset[str]:
    """The regions of a cloud in which anything has a price."""
    return frozenset(region for one in types(cloud) for region in one.prices)


@cache
def _level(cloud: str, region: str, other: str) -> float:
    """How many times as dear ``other`` is as ``region``, by the types that both have: the median; 1 where they have none in common."""
    both = [one.prices for one in types(cloud) if region in one.prices and other in one.prices] if region != other else []
    return median(prices[other].on_demand / prices[region].on_demand for prices in both) if both else 1.0


def guessed(kind: InstanceType, region: str) -> float | None:
    """Dollars per hour of a type that no region has a price for: by its accelerators, or its CPUs, at what the dearest of its family costs.

    A family that nobody knows counts as the dearest of its cloud, so that it is bought last. None where the type has neither.
    """
    gpus, cpus = gpus_in(kind.allocatable), kind.vcpu
    units = gpus or cpus
    if not units:
        return None
    family = kind.name.partition(".")[0]
    rates = _rates(kind.cloud, region, by_gpu=bool(gpus))
    known = [rate for name, rate in rates if name == family] or [rate for _, rate in rates]
    return round(max(known) * units, 4) if known else None


@cache
def _rates(cloud: str, region: str, *, by_gpu: bool) -> tuple[tuple[str, float], ...]:
    """By family what each of its types costs for a GPU, or for a CPU, near ``region``."""
    return tuple(_of(types(cloud), region, by_gpu=by_gpu))


def _of(some: Iterable[InstanceType], region: str, *, by_gpu: bool) -> Iterable[tuple[str, float]]:
    for one in some:
        gpus = gpus_in(one.allocatable)
        found = nearest(one.name, region) if bool(gpus) == by_gpu else None
        if found is not None:
            yield one.name.partition(".")[0], found.price.on_demand / (gpus or one.vcpu)
