"""What names one way to buy a machine: its key, and the markets."""

from typing import NamedTuple

SPOT, ON_DEMAND, RESERVED = "spot", "on-demand", "reserved"
#: All markets, in the order in which they are preferred at the same price.
MARKETS = (RESERVED, SPOT, ON_DEMAND)


class OfferingKey(NamedTuple):
    """An offering by its pool, market, instance type and zone."""

    pool: str
    market: str
    instance_type: str
    zone: str


NO_OFFERING = OfferingKey("", "", "", "")
