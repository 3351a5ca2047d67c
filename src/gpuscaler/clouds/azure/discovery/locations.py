"""Reads what is known of a subscription in one location: sizes, quotas, capacity reservations. Failures are noted, and the rest is read."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import RESERVATIONS, SKUS, USAGES, Arm
from gpuscaler.clouds.azure.api.ids import resource_id
from gpuscaler.clouds.azure.discovery.offerings import LocationData
from gpuscaler.clouds.azure.documents.reservations import Reservation, reservations_of
from gpuscaler.clouds.azure.documents.skus import Sku, skus_of
from gpuscaler.clouds.azure.documents.usages import Usage, usages_of
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.quantities import shorten_value

#: How long the answer about sizes is used, in seconds: it has thousands of entries, and restrictions change rarely.
SKUS_SECONDS: Final = 6 * 3600.0
_GROUP_KIND: Final = "microsoft.compute/capacityreservationgroups"


class _Sizes(Struct):
    """The answer about the ``wanted`` sizes, at ``at``; a wanted size that is not there is not offered."""

    at: float
    wanted: frozenset[str]
    skus: dict[str, Sku]
    unreadable: dict[str, str]


class LocationReader:
    """Knowledge of one location, kept from pass to pass. ``now`` is the wall clock."""

    def __init__(self, arm: Arm, subscription: str, location: str, *, now: Callable[[], float]) -> None:
        self.subscription, self.location = subscription, location
        self._arm, self._now = arm, now
        self._sizes: _Sizes | None = None
        self._usages: dict[str, Usage] = {}
        self._reservations: dict[str, tuple[Reservation, ...]] = {}
        #: What could not be read in the last pass, by what it is.
        self.notes: dict[str, str] = {}

    async def read(self, sizes: Collection[str], groups: Collection[str]) -> LocationData:
        """Data about ``sizes`` and the capacity reservation ``groups``, by id. Raises CloudError if nothing is known about the sizes."""
        self.notes = {}
        refused, *_ = await asyncio.gather(self._read_sizes(sizes), self._read_usages(), *(self._read_group(group) for group in groups))
        if refused is not None:
            raise refused
        known = self._sizes
        assert known is not None
        kept = {fold_id(group) for group in groups}
        self._reservations = {ident: listed for ident, listed in self._reservations.items() if ident in kept}
        return LocationData(self.location, known.skus, known.unreadable, self._usages, self._reservations)

    async def _read_sizes(self, sizes: Iterable[str]) -> CloudError | None:
        """Read the sizes if the last answer is old or lacks some; the error if nothing is known about them."""
        wanted = frozenset(map(fold_id, sizes))
        known = self._sizes
        if known is not None and wanted <= known.wanted and self._now() < known.at + SKUS_SECONDS:
            return None
        path = f"/subscriptions/{self.subscription}/providers/Microsoft.Compute/skus"
        try:
            documents = await self._arm.pages(path, version=SKUS, parameters={"$filter": f"location eq '{self.location}'"})
        except CloudError as error:
            if known is None or not wanted <= known.wanted:
                return error
            self.notes["sizes"] = f"{error.detail}; the last known sizes are used"
            return None
        skus, unreadable = skus_of(documents, self.location, wanted)
        self._sizes = _Sizes(self._now(), wanted, skus, unreadable)
        return None

    async def _read_usages(self) -> None:
        path = f"/subscriptions/{self.subscription}/providers/Microsoft.Compute/locations/{self.location}/usages"
        try:
            self._usages = usages_of(await self._arm.pages(path, version=USAGES))
        except CloudError as error:
            self.notes["quotas"] = f"{error.detail}; sizes that exceed a quota are not known before Azure refuses them"

    async def _read_group(self, group: str) -> None:
        """Read the reservations of a group, which may be another subscription's."""
        ident, name = resource_id(group), shorten_value(group.rpartition("/")[2])
        if ident is None or ident.kind != _GROUP_KIND or ident.rest:
            self.notes[f"capacity reservation group {name}"] = f"saw the id {shorten_value(group)}, expected one of {_GROUP_KIND}"
            return
        try:
            view, documents = await asyncio.gather(
                self._arm.read(group, version=RESERVATIONS, parameters={"$expand": "instanceView"}),
                self._arm.pages(f"{group}/capacityReservations", version=RESERVATIONS),
            )
            self._reservations[fold_id(group)] = reservations_of(view.body, documents)
        except (CloudError, ReadingError) as error:
            detail = error.detail if isinstance(error, CloudError) else str(error)
            # What was free earlier is not known to be free now, but there may be machines in it.
            known = self._reservations.get(fold_id(group), ())
            self._reservations[fold_id(group)] = tuple(replace(reservation, capacity=0) for reservation in known)
            self.notes[f"capacity reservation group {name}"] = detail
