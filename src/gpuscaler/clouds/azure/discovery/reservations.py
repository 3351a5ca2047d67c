"""Capacity reservation groups: machines that are already paid for, by size and zone. Pure."""

from collections.abc import Iterable

from msgspec import Struct

from gpuscaler.clouds.azure.discovery.resources import is_word
from gpuscaler.clouds.azure.discovery.wire import ReadingError, Reference, SkuOfSet, decoded
from gpuscaler.model.azure_names import fold_id


class Reservation(Struct, frozen=True, gc=False):
    """A capacity reservation. ``allocated`` are the folded ids of the machines in it; ``zone`` is empty for one without a zone.

    A machine of a scale set is listed by the id that it has in the scale set.
    """

    id: str
    name: str
    size: str
    zone: str
    capacity: int
    allocated: frozenset[str] = frozenset()
    state: str = ""

    @property
    def available(self) -> int:
        """The number of machines that still fit, not negative: a group may hold more machines than it reserves."""
        return max(self.capacity - len(self.allocated), 0)

    @property
    def is_usable(self) -> bool:
        """Whether machines can be placed into it."""
        return is_word(self.state, "Succeeded") or is_word(self.state, "Updating")


class _Utilization(Struct, rename="camel"):
    virtual_machines_allocated: list[Reference] | None = None


class _View(Struct, rename="camel"):
    utilization_info: _Utilization | None = None


class _Properties(Struct, rename="camel"):
    provisioning_state: str | None = None
    instance_view: _View | None = None


class _Document(Struct, rename="camel"):
    id: str | None = None
    name: str | None = None
    zones: list[str] | None = None
    sku: SkuOfSet | None = None
    properties: _Properties | None = None


def reservation_of(document: object) -> Reservation:
    """A reservation from its document with ``$expand=instanceView``. Raises ReadingError.

    Without an instance view it is unknown how many machines are in it: none is counted as free.
    """
    wire = decoded(document, _Document)
    sku, properties = wire.sku or SkuOfSet(), wire.properties or _Properties()
    if not wire.id or not sku.name or sku.capacity is None or sku.capacity < 0:
        raise ReadingError(f"saw size {sku.name} and sku.capacity {sku.capacity}, expected a size and the number of reserved machines")
    utilization = properties.instance_view.utilization_info if properties.instance_view else None
    known = utilization is not None
    allocated = frozenset(fold_id(entry.id) for entry in (utilization.virtual_machines_allocated or () if utilization else ()) if entry.id)
    return Reservation(
        id=wire.id,
        name=wire.name or wire.id.rpartition("/")[2],
        size=sku.name,
        zone=next(iter(wire.zones or ()), ""),
        capacity=sku.capacity if known else 0,
        allocated=allocated,
        state=properties.provisioning_state or "",
    )


def reservations_for(reservations: Iterable[Reservation], size: str, zone: str) -> tuple[Reservation, ...]:
    """The usable reservations of ``size`` in ``zone``, a number as text, or without a zone if that is empty."""
    return tuple(
        reservation
        for reservation in reservations
        if reservation.is_usable and fold_id(reservation.size) == fold_id(size) and reservation.zone == zone
    )
