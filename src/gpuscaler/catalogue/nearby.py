"""Substitutes for unknown prices: the price in the nearest region that has one, else a guess from types of the same family or size.

A guess is never mistaken for a price: callers record where it comes from.
"""

import re
from collections.abc import Iterable
from functools import cache
from statistics import median
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuscaler.catalogue import InstanceType, Price, lookup, types
from gpuscaler.model.accelerators import count_accelerators

#: How names of Azure's regions begin in Europe, the Middle East and Africa, and in Asia and Oceania.
_AZURE_EUROPE: Final = (
    *("northeurope", "westeurope", "austria", "belgium", "denmark", "finland", "france", "germany", "greece", "italy", "norway", "poland"),
    *("spain", "sweden", "switzerland", "uk", "israel", "qatar", "southafrica", "uae"),
)
_AZURE_ASIA: Final = (
    *("eastasia", "southeastasia", "australia", "centralindia", "china", "indonesia", "japan", "jioindia", "korea", "malaysia"),
    *("newzealand", "southindia", "taiwan", "westindia"),
)
#: Regions to search first, by the longest matching prefix of a region's name. The same continent comes first; for continents without any
#: price, the continent with most cable connections to them.
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
    # Azure. Regions of America other than these get eastus, the first by name.
    "westus": ("westus3", "eastus"),
    **dict.fromkeys(_AZURE_EUROPE, ("westeurope", "eastus")),
    **dict.fromkeys(_AZURE_ASIA, ("japaneast", "westus3")),
}
#: Azure's names of sizes: the size is inside the family's name.
_AZURE_SIZE: Final = re.compile(r"(Standard_[A-Z]+)[0-9]+(?:-[0-9]+)?(.*)")


class NearbyPrice(NamedTuple):
    """A price and its region."""

    region: str
    price: Price


def nearest_price(instance_type: str, region: str) -> NearbyPrice | None:
    """Return the price of a type in ``region``, else in the nearest region that has one; None if no region has one.

    If the nearest region with prices lacks the type, the price of a more distant region is scaled by the price difference of other types
    between these two regions, so that types with prices from different regions stay in order.
    """
    instance = lookup(instance_type)
    if instance is None or not instance.prices:
        return None
    beginning = max((prefix for prefix in _NEAREST if region.startswith(prefix)), key=len, default="")
    order = (region, *_NEAREST.get(beginning, ()), *sorted(instance.prices))
    priced_region = next(name for name in order if name in instance.prices)
    price = instance.prices[priced_region]
    anchor = next((name for name in order if name in _priced_regions(instance.cloud)), priced_region)
    level = _price_ratio(instance.cloud, priced_region, anchor)
    if level == 1.0:
        return NearbyPrice(priced_region, price)
    spot = None if price.spot is None else round(price.spot * level, 4)
    return NearbyPrice(priced_region, replace(price, on_demand=round(price.on_demand * level, 4), spot=spot))


@cache
def _priced_regions(cloud: str) -> frozenset[str]:
    """Return the regions of a cloud with any price."""
    return frozenset(region for instance_type in types(cloud) for region in instance_type.prices)


@cache
def _price_ratio(cloud: str, region: str, other: str) -> float:
    """Return the price ratio of ``other`` to ``region``: the median over types that both have, 1 if they have none in common."""
    both = (
        [instance_type.prices for instance_type in types(cloud) if region in instance_type.prices and other in instance_type.prices]
        if region != other
        else []
    )
    return median(prices[other].on_demand / prices[region].on_demand for prices in both) if both else 1.0


def guess_price(instance_type: InstanceType, region: str) -> float | None:
    """Guess the dollars per hour of a type without a price in any region: by accelerator, or by CPU, at the highest rate of its family.

    An unknown family gets the highest rate of its cloud, so that it is bought last. None if the type has neither accelerators nor CPUs.
    """
    gpus, cpus = count_accelerators(instance_type.allocatable), instance_type.vcpu
    units = gpus or cpus
    if not units:
        return None
    family = _family(instance_type)
    rates = _rates(instance_type.cloud, region, by_gpu=bool(gpus))
    comparable = [rate for name, rate in rates if name == family] or [rate for _, rate in rates]
    return round(max(comparable) * units, 4) if comparable else None


@cache
def _rates(cloud: str, region: str, *, by_gpu: bool) -> tuple[tuple[str, float], ...]:
    """Return (family, price per GPU or per CPU) of each type, near ``region``."""
    return tuple(_rates_of(types(cloud), region, by_gpu=by_gpu))


def _rates_of(instance_types: Iterable[InstanceType], region: str, *, by_gpu: bool) -> Iterable[tuple[str, float]]:
    for instance_type in instance_types:
        gpus = count_accelerators(instance_type.allocatable)
        nearby = nearest_price(instance_type.name, region) if bool(gpus) == by_gpu else None
        if nearby is not None:
            yield _family(instance_type), nearby.price.on_demand / (gpus or instance_type.vcpu)


def _family(instance_type: InstanceType) -> str:
    """Return ``g5`` for g5.xlarge, ``Standard_NCads_A100_v4`` for Standard_NC24ads_A100_v4."""
    size = _AZURE_SIZE.fullmatch(instance_type.name) if instance_type.cloud == "azure" else None
    return size[1] + size[2] if size else instance_type.name.partition(".")[0]
