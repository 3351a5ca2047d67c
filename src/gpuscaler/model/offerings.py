"""The key of an offering, and the markets."""

from typing import NamedTuple

SPOT, ON_DEMAND, RESERVED = "spot", "on-demand", "reserved"
#: All markets, in order of preference at the same price.
MARKETS = (RESERVED, SPOT, ON_DEMAND)


class OfferingKey(NamedTuple):
    """The pool, market, instance type and zone of an offering."""

    pool: str
    market: str
    instance_type: str
    zone: str


NO_OFFERING = OfferingKey("", "", "", "")
