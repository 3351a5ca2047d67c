"""Capacity that is paid already: On-Demand Capacity Reservations and Capacity Blocks that a group's machines are launched into."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from gpuscaler.clouds.aws.groups import Reply

ACTIVE, EXPIRED = "active", "expired"


class Reservation(Struct, frozen=True, gc=False):
    """``available`` machines of it are free; it ends at ``ends``, in seconds since the epoch, None when it does not."""

    id: str
    instance_type: str
    zone: str
    available: int
    state: str = ACTIVE
    ends: float | None = None
    block: bool = False

    def usable(self, now: float) -> bool:
        return self.state == ACTIVE and (self.ends is None or self.ends > now)


def reservations_of(entries: Iterable[Reply]) -> dict[str, Reservation]:
    """By id, from ``CapacityReservations``; an entry that cannot be read is left out."""
    found = {}
    for entry in entries:
        try:
            one = _reservation(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        found[one.id] = one
    return found


def _reservation(entry: Reply) -> Reservation:
    ends: datetime | None = entry.get("EndDate") if entry.get("EndDateType") == "limited" else None
    return Reservation(
        id=entry["CapacityReservationId"],
        instance_type=entry["InstanceType"],
        zone=entry["AvailabilityZone"],
        available=int(entry["AvailableInstanceCount"]),
        state=entry.get("State", ""),
        ends=None if ends is None else ends.timestamp(),
        block=entry.get("ReservationType") == "capacity-block",
    )
