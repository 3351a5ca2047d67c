"""Machines that exist before a run: the start sizes of pools."""

from collections import Counter
from collections.abc import Mapping

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy, Pool

#: Preferred market of an existing machine, if a pool has several: the one least likely to be interrupted first.
STEADIEST = ("reserved", "on-demand", "spot")


class StartError(ValueError):
    """A start size that is not possible for the pools; the message says what was seen and what was expected."""


def machines_at_start(policy: Policy, sizes: Mapping[str, int]) -> dict[OfferingKey, int]:
    """The number of machines of every offering that exist when a run begins.

    ``sizes`` are machines by ``pool`` or ``pool/instance type``. A pool alone starts with its cheapest type. Each starts with machines of
    its most stable market, distributed over its zones in turn. Raises :class:`StartError` for unknown names, and for more than a pool may
    have.
    """
    pools = {pool.name: pool for pool in policy.pools}
    counts: Counter[str] = Counter()
    machines: Counter[OfferingKey] = Counter()
    for name, count in sizes.items():
        pool_name, _, instance_type = name.partition("/")
        if pool_name not in pools:
            raise StartError(f"saw the pool {pool_name}, expected one of {', '.join(pools)}")
        pool = pools[pool_name]
        counts[pool_name] += count
        if pool.max is not None and counts[pool_name] > pool.max:
            raise StartError(f"saw {counts[pool_name]} machines of pool {pool_name}, expected at most {pool.max}, which is its max")
        zones = _zones(pool, instance_type)
        machines.update(zones[number % len(zones)].key for number in range(count))
    return dict(sorted(machines.items()))


def _zones(pool: Pool, instance_type: str) -> list[Offering]:
    """The offerings of one type and one market, one per zone."""
    offered = [offering for offering in pool.offerings if instance_type in ("", offering.instance_type)]
    if not offered:
        types = sorted({offering.instance_type for offering in pool.offerings})
        raise StartError(f"saw the type {instance_type}, which pool {pool.name} does not have; expected one of {', '.join(types)}")
    first = min(offered, key=lambda offering: (STEADIEST.index(offering.market), offering.price, offering.instance_type))
    zones = {
        offering.zone: offering for offering in offered if (offering.market, offering.instance_type) == (first.market, first.instance_type)
    }
    return [zones[zone] for zone in sorted(zones)]
