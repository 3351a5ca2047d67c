"""What groups launch by themselves: the machines that their desired capacity still lacks, and whether their last launch came to nothing."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from gpuscaler.clouds.aws.api.asking import Asking
from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.aws.buying.activities import last_failure
from gpuscaler.clouds.aws.discovery.pools import FoundPool
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.model.instances import Delivery

#: A launch that failed so long before a group was seen to lack machines is taken for one of these, in seconds: it tries every minute.
TRIED_SECONDS: Final = 60.0
#: The newest activities of a group tell of its last launch.
_NEWEST: Final = 20


class Delivering:
    """Follows what groups lack, from list to list."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask
        #: Since when each group lacks machines.
        self._since: dict[tuple[str, str], float] = {}

    async def of(self, groups: Iterable[Group], pools: Mapping[tuple[str, str], FoundPool]) -> tuple[Delivery, ...]:
        """A delivery for each group that is a pool. A group whose activities cannot be read is taken to launch what it lacks."""
        here = [(pools[group.region, group.name], group) for group in groups if (group.region, group.name) in pools]
        lacks = {(group.region, group.name): many for found, group in here if (many := missing(group, found.weights))}
        now = self._ask.now()
        self._since = {key: self._since.get(key, now) for key in lacks}
        failures = dict(zip(lacks, await asyncio.gather(*(self._failure(*key) for key in lacks)), strict=True))
        return tuple(
            Delivery(
                found.pool.name, lacks.get(key, 0), failures.get(key, ""), early=group.capacity_rebalance, surplus=max(0, group.surplus)
            )
            for found, group in here
            for key in [(group.region, group.name)]
        )

    async def _failure(self, region: str, name: str) -> str:
        try:
            reply = await self._ask.read("autoscaling", region, "DescribeScalingActivities", AutoScalingGroupName=name, MaxRecords=_NEWEST)
        except CloudError:
            return ""
        return last_failure(reply.get("Activities") or (), since=self._since[region, name] - TRIED_SECONDS)


def missing(group: Group, weights: Mapping[str, int]) -> int:
    """How many machines a group lacks of its desired capacity; none where it launches none.

    Where machines have weights they are as few as that may be.
    """
    if group.deleting or "Launch" in group.suspended:
        return 0
    return max(0, -(group.surplus // max(weights.values(), default=1)))
