"""Offerings of a pool: its sizes in its zones and markets, what is reserved for it, and machines that it has but no longer gets. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol

import msgspec
from msgspec import Struct

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.documents.reservations import Reservation, reservations_for
from gpuscaler.clouds.azure.documents.resources import ON_DEMAND, RESERVED, SPOT, zone_key
from gpuscaler.clouds.azure.documents.skus import Sku, sku_in_catalogue
from gpuscaler.clouds.azure.documents.usages import Usage
from gpuscaler.clouds.azure.templates.node_templates import NodeTemplate
from gpuscaler.clouds.pricing import PriceToUse
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.pools import BY_SIZE, Offering


class PriceSource(Protocol):
    """Prices in US dollars per hour. ``kind`` is the basis of a guess, whose origin is as in an offering."""

    def price_of(self, size: str, market: str, location: str, kind: InstanceType | None = None) -> PriceToUse: ...


class LocationData(Struct, frozen=True):
    """What is known of a subscription in one location. ``skus`` and ``unreadable`` (reasons) are by folded name of a size.

    ``reservations`` is by folded id of the group, and lacks groups that could not be read; ``usages`` is by folded name.
    """

    location: str
    skus: Mapping[str, Sku] = {}
    unreadable: Mapping[str, str] = {}
    usages: Mapping[str, Usage] = {}
    reservations: Mapping[str, tuple[Reservation, ...]] = {}


class OfferingBuilder:
    """Builds the offerings of a pool; ``warnings`` are sentences about what is left out, ``incomplete`` that something was not read.

    ``skus`` is by name of a size as the pool spells it: nodes carry that spelling.
    """

    def __init__(self, resources: PoolResources, location_data: LocationData, template: NodeTemplate, prices: PriceSource) -> None:
        self._resources, self._data, self._template, self._prices = resources, location_data, template, prices
        self.warnings: list[str] = []
        self.incomplete = False
        self.skus: dict[str, Sku] = {}
        self.reservations: tuple[Reservation, ...] = ()
        for size in resources.all_sizes:
            sku = location_data.skus.get(fold_id(size))
            if sku is not None:
                self.skus[size] = sku
        if resources.reservation_group:
            self._read_reservations(resources.reservation_group)

    def sold_offerings(self) -> tuple[Offering, ...]:
        """What can be bought: reserved machines first; nothing while AKS upgrades the pool."""
        offerings: list[Offering] = []
        for size in self._resources.sizes:
            sku = self.skus.get(size)
            if sku is None:
                self._warn(self._missing_size(size))
                continue
            for zone in self._zones_selling(size, sku):
                offerings += self._reserved(size, sku, zone)
                for market in self._resources.markets:
                    if market == SPOT and not sku.spot:
                        self._warn(f"{size} has no spot machines; it is not bought")
                        continue
                    offerings.append(self._offering(size, sku, market, zone))
        if self._resources.is_upgrading and offerings:
            state = self._resources.agent_pool.state if self._resources.agent_pool is not None else ""
            self._warn(f"its provisioningState is {state}: nothing is bought until that is over")
            return ()
        for other, names in sorted(_guessed_from(offerings).items()):
            self._warn(
                f"no price of {', '.join(names)} in {self._data.location} is known; the price in {other} is used: add it to azure.prices"
            )
        return tuple(offerings)

    def retired_offerings(self, sold: Sequence[Offering]) -> Iterator[Offering]:
        """Offerings of machines that the pool may have but does not get now: of sizes and zones that are restricted, or no longer its own.

        They are counted at their price while they exist, and ended when idle.
        """
        if not self._resources.capacity and not self._resources.is_upgrading:
            return
        selling = {(offering.instance_type, offering.zone, offering.market) for offering in sold}
        for size in self._resources.all_sizes:
            sku = self.skus.get(size) or sku_in_catalogue(size)
            if sku is None:
                continue
            for zone, market in product(self._resources.zones or ("",), self._resources.markets):
                if (size, zone_key(self._data.location, zone), market) not in selling:
                    yield msgspec.structs.replace(self._offering(size, sku, market, zone), count=0)

    def _offering(self, size: str, sku: Sku, market: str, zone: str) -> Offering:
        price = self._prices.price_of(sku.name, market, self._data.location, sku.instance_type())
        self._warn(price.warning)
        offering = self._template.offering(msgspec.structs.replace(sku, name=size), market=market, zone=zone, price=price.price)
        return msgspec.structs.replace(offering, price_from=price.price_from)

    def _reserved(self, size: str, sku: Sku, zone: str) -> Iterator[Offering]:
        """Capacity that is already paid for. Azure places machines there first; what exceeds it is bought on demand."""
        reservations = reservations_for(self.reservations, sku.name, zone)
        if reservations and ON_DEMAND in self._resources.markets:
            offering = self._template.offering(msgspec.structs.replace(sku, name=size), market=RESERVED, zone=zone, price=0.0)
            yield msgspec.structs.replace(offering, count=sum(reservation.available for reservation in reservations))

    def _read_reservations(self, group: str) -> None:
        reservations = self._data.reservations.get(fold_id(group))
        name = group.rpartition("/")[2]
        self.reservations = reservations or ()
        if not any(reservation.capacity for reservation in self.reservations):
            self._warn(f"its capacity reservation group {name} could not be read, or is empty, so nothing of it is used")
            return
        sizes = {fold_id(size) for size in self._resources.sizes}
        if not any(reservation.is_usable and fold_id(reservation.size) in sizes for reservation in self.reservations):
            self._warn(
                f"its capacity reservation group {name} reserves no machine of {', '.join(self._resources.sizes)}; add a reservation"
            )

    def _zones_selling(self, size: str, sku: Sku) -> tuple[str, ...]:
        """The pool's zones in which the subscription may use the size; a pool without zones has one, which is empty."""
        zones = self._resources.zones or ("",)
        reason = f" ({sku.reason})" if sku.reason else ""
        if sku.restricted_everywhere:
            self._warn(
                f"the subscription may not use {size} in {self._data.location}{reason}, so every purchase would fail with SkuNotAvailable; "
                "request access to the size, or make a pool of another one"
            )
            return ()
        missing = [zone for zone in zones if zone and sku.zones and zone not in sku.zones]
        if missing or (zones != ("",) and not sku.zones):
            self._warn(f"{size} is not offered in zone {', '.join(missing or zones)} of {self._data.location}; it is not bought there")
        restricted = [zone for zone in zones if zone in sku.restricted and zone not in missing]
        if restricted:
            place = f"zone {', '.join(restricted)} of {self._data.location}"
            self._warn(f"the subscription may not use {size} in {place}{reason}; it is not bought there")
        return tuple(zone for zone in zones if zone not in sku.restricted and (not zone or zone in sku.zones))

    def _missing_size(self, size: str) -> str:
        if reason := self._data.unreadable.get(fold_id(size)):
            self.incomplete = True
            return f"its size {size} could not be read: {reason}"
        return f"{self._data.location} does not offer the size {size} to the subscription; it is not bought: correct the pool's size"

    def _warn(self, warning: str) -> None:
        if warning and warning not in self.warnings:
            self.warnings.append(warning)


def _guessed_from(offerings: Sequence[Offering]) -> dict[str, dict[str, None]]:
    """Sizes with a price of another location, by that location."""
    by_location: dict[str, dict[str, None]] = {}
    for offering in offerings:
        if offering.price_from not in ("", BY_SIZE):
            by_location.setdefault(offering.price_from, {})[offering.instance_type] = None
    return by_location
