"""Capacity reservation groups: machines that are already paid for, by size and zone. Pure."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from gpuscaler.clouds.azure.documents.resources import is_word
from gpuscaler.clouds.azure.documents.wire import ReadingError, Reference, SkuOfSet, decoded
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
    name: str | None = None
    utilization_info: _Utilization | None = None


class _GroupView(Struct, rename="camel"):
    capacity_reservations: list[_View] | None = None


class _GroupProperties(Struct, rename="camel"):
    instance_view: _GroupView | None = None


class _Group(Struct, rename="camel"):
    properties: _GroupProperties | None = None


class _Properties(Struct, rename="camel"):
    provisioning_state: str | None = None


class _Document(Struct, rename="camel"):
    id: str | None = None
    name: str | None = None
    zones: list[str] | None = None
    sku: SkuOfSet | None = None
    properties: _Properties | None = None


def reservations_of(group: object, documents: Iterable[object]) -> tuple[Reservation, ...]:
    """The reservations in the list ``documents``, with their machines from the ``group`` with its instance view; odd ones are left out.

    The list has sizes and zones, and only the view has machines. Raises ReadingError if the view cannot be read.
    """
    properties = decoded(group, _Group).properties or _GroupProperties()
    views = (properties.instance_view.capacity_reservations or ()) if properties.instance_view is not None else ()
    by_name = {fold_id(view.name): view for view in views if view.name}
    reservations = []
    for document in documents:
        with suppress(ReadingError):
            reservations.append(_reservation_of(document, by_name))
    return tuple(reservations)


def _reservation_of(document: object, views: Mapping[str, _View]) -> Reservation:
    """One reservation. Without a view of its machines none is counted as free."""
    wire = decoded(document, _Document)
    sku = wire.sku or SkuOfSet()
    if not wire.id or not sku.name or sku.capacity is None or sku.capacity < 0:
        raise ReadingError(f"saw size {sku.name} and sku.capacity {sku.capacity}, expected a size and the number of reserved machines")
    name = wire.name or wire.id.rpartition("/")[2]
    view = views.get(fold_id(name))
    utilization = view.utilization_info if view is not None else None
    machines = (utilization.virtual_machines_allocated or ()) if utilization is not None else ()
    return Reservation(
        id=wire.id,
        name=name,
        size=sku.name,
        zone=next(iter(wire.zones or ()), ""),
        capacity=sku.capacity if utilization is not None else 0,
        allocated=frozenset(fold_id(entry.id) for entry in machines if entry.id),
        state=(wire.properties.provisioning_state or "") if wire.properties is not None else "",
    )


def reservations_for(reservations: Iterable[Reservation], size: str, zone: str) -> tuple[Reservation, ...]:
    """The usable reservations of ``size`` in ``zone``, a number as text, or without a zone if that is empty."""
    return tuple(
        reservation
        for reservation in reservations
        if reservation.is_usable and fold_id(reservation.size) == fold_id(size) and reservation.zone == zone
    )
