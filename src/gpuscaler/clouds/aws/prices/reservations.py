"""Capacity that is already paid for: On-Demand Capacity Reservations and Capacity Blocks that a group's machines are launched into."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from gpuscaler.clouds.aws.api.groups import Reply
from gpuscaler.clouds.aws.api.spelling import is_same_word, respelled

ACTIVE, EXPIRED = "active", "expired"
#: EC2 begins to end the machines of a Capacity Block this long before the block ends, in seconds. For UltraServers, the second value is the
#: time by which the owner must have ended them. Source: Amazon EC2 User Guide, "Capacity Blocks for ML", autumn 2026.
BLOCK_SECONDS, ULTRA_SECONDS = 1800.0, 3600.0
#: Prefixes of the types that come in UltraServers.
ULTRA = ("p6e-gb", "u-p6e-gb")


class Reservation(Struct, frozen=True, gc=False):
    """A reservation with ``available`` free machines; it ends at ``ends``, in seconds since the epoch, None if it does not."""

    id: str
    instance_type: str
    zone: str
    available: int
    state: str = ACTIVE
    ends: float | None = None
    block: bool = False

    def is_usable(self, now: float) -> bool:
        return self.state == ACTIVE and (self.ends is None or (self.ending_begins_at or self.ends) > now)

    @property
    def ending_begins_at(self) -> float:
        """When EC2 begins to end its machines; 0 if they continue on demand, as they do in any reservation other than a block."""
        if not self.block or self.ends is None:
            return 0.0
        return self.ends - (ULTRA_SECONDS if self.instance_type.startswith(ULTRA) else BLOCK_SECONDS)


def reservations_of(entries: Iterable[Reply]) -> dict[str, Reservation]:
    """Reservations by id, from ``CapacityReservations``; entries that cannot be read are left out."""
    reservations = {}
    for entry in entries:
        try:
            reservation = _reservation(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        reservations[reservation.id] = reservation
    return reservations


def _reservation(entry: Reply) -> Reservation:
    ends: datetime | None = entry.get("EndDate") if is_same_word(entry.get("EndDateType"), "limited") else None
    return Reservation(
        id=entry["CapacityReservationId"],
        instance_type=entry["InstanceType"],
        zone=entry["AvailabilityZone"],
        available=int(entry["AvailableInstanceCount"]),
        state=respelled(entry.get("State"), (ACTIVE,)),
        ends=None if ends is None else ends.timestamp(),
        block=is_same_word(entry.get("ReservationType"), "capacity-block"),
    )
