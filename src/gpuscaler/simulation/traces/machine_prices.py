"""The price of the machine behind a node, from labels, a pools file and the catalogue."""

from typing import NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.zones import region_of
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, REGION_LABELS, ZONE_LABELS
from gpuscaler.planning.capacity.pool_membership import market_of, members


class Offer(NamedTuple):
    """How a machine was bought. ``price`` is US dollars per hour, None if unknown; ``source`` is the origin of the price.

    ``market`` is on-demand if no label says how the node was bought.
    """

    pool: str
    market: str
    instance_type: str
    zone: str
    price: float | None
    source: str


def offer_of(node: Node, policy: Policy | None) -> Offer:
    """The offering of ``policy`` with the node's type, zone and market; its list price if there is none."""
    kind, zone = first_label(node, INSTANCE_TYPE_LABELS), first_label(node, ZONE_LABELS)
    market = market_of(node) or "on-demand"
    member = members({node.name: node}, policy, frozenset()).get(node.name) if policy is not None else None
    pool = member.pool.name if member is not None else ""
    offering = member.offering if member is not None else None
    if offering is not None and offering.market == market and offering.zone in ("", zone):
        return Offer(pool, market, kind, zone, offering.price, "pools file")
    region = first_label(node, REGION_LABELS) or region_of(zone, policy.region if policy is not None else "")
    instance_type = catalogue.lookup(kind, region) if region else None
    price = instance_type.prices[region] if instance_type is not None else None
    if price is None or market not in ("spot", "on-demand"):
        return Offer(pool, market, kind, zone, None, "")
    return Offer(pool, market, kind, zone, price.spot if market == "spot" else price.on_demand, "catalogue")
