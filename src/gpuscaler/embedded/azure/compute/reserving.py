"""Machines in capacity reservations."""

from typing import Any

from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.hardware.hardware import RESERVED
from gpuscaler.embedded.azure.state import Machine, ReservationGroup, ScaleSet
from gpuscaler.model.azure_names import fold_id
from gpuscaler.simulation.cloud.machines import CloudMachine


def group_of(account: Contents, scale_set: ScaleSet) -> ReservationGroup | None:
    """The capacity reservation group that a scale set's machines are associated with."""
    wanted = ((scale_set.profile.get("capacityReservation") or {}).get("capacityReservationGroup") or {}).get("id", "")
    if not wanted:
        return None
    for group in account.groups.values():
        for reservation_group in group.reservation_groups.values():
            if fold_id(reservation_group.id) == fold_id(wanted):
                return reservation_group
    return None


def allocated(account: Contents, group: ReservationGroup, reservation: dict[str, Any]) -> list[tuple[ScaleSet, Machine]]:
    """The machines in a capacity reservation."""
    zone = (reservation.get("zones") or ["0"])[0]
    return [
        (scale_set, machine)
        for scale_set in account.all_scale_sets()
        if group_of(account, scale_set) is group
        for machine in scale_set.machines.values()
        if machine.reserved and machine.zone == zone and machine.size.lower() == reservation["sku"]["name"].lower()
    ]


def place(account: Contents, scale_set: ScaleSet, zone: str) -> CloudMachine | None:
    """Place a machine in a reservation of its scale set's group; None if there is none with room."""
    group = group_of(account, scale_set)
    if group is None:
        return None
    number = zone.rpartition("-")[2]
    for reservation in group.reservations.values():
        if reservation["sku"]["name"].lower() != scale_set.size.lower() or (reservation.get("zones") or ["0"])[0] != number:
            continue
        if len(allocated(account, group, reservation)) < reservation["sku"]["capacity"]:
            result = account.hardware.place(RESERVED, scale_set.size, zone, account.time)
            if isinstance(result, CloudMachine):
                return result
    return None
