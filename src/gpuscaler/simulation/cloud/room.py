"""How many machines a simulated cloud can grant, limited by the market's capacity, the pool's maximum and the account's quotas."""

from collections.abc import Iterable

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.simulation.cloud.fleet import Fleet
from gpuscaler.simulation.cloud.machines import NO_CAPACITY, POOL_LIMIT, QUOTA_FULL, Refusal


class Quota(Struct, frozen=True, gc=False):
    """An account may have ``machines`` at a time of ``types`` in ``market``, over all pools and zones; an empty field matches all.

    Real clouds count vCPUs of families of types; machines are easier to reason about.
    """

    machines: int
    types: tuple[str, ...] = ()
    market: str = ""

    def covers(self, key: OfferingKey) -> bool:
        return self.market in ("", key.market) and (not self.types or key.instance_type in self.types)


def grantable(
    offering: Offering, count: int, *, capacity: float, pool: Pool, fleet: Fleet, quotas: Iterable[Quota]
) -> tuple[int, Refusal | None]:
    """How many of ``count`` can be granted, and the tightest limit if not all. The market has ``capacity`` machines in total."""
    key = offering.key
    granted, refusal = count, None
    capacity = min(capacity, float("inf") if offering.count is None else offering.count)
    if (room := max(0.0, capacity - len(fleet.of_offering[key]))) < granted:
        granted = int(room)
        refusal = Refusal(NO_CAPACITY, key, count - granted, f"capacity for {granted} of {count} machines")
    if pool.max is not None and (room := max(0, pool.max - fleet.in_pool[pool.name])) < granted:
        granted = int(room)
        detail = f"pool {pool.name} may have {pool.max} machines and has {pool.max - granted}, {count} more were asked for"
        refusal = Refusal(POOL_LIMIT, key, count - granted, detail)
    for quota in quotas:
        used = sum(len(fleet.of_offering[other]) for other in fleet.in_use if quota.covers(other)) if quota.covers(key) else 0
        if quota.covers(key) and (room := max(0, quota.machines - used)) < granted:
            granted = int(room)
            machines = f"{quota.market or 'all'} machines{f' of {chr(44).join(quota.types)}' if quota.types else ''}"
            detail = f"the account may have {quota.machines} {machines} and has {used}, {count} more were asked for"
            refusal = Refusal(QUOTA_FULL, key, count - granted, detail, bucket=quota.types or (offering.instance_type,))
    return granted, refusal
