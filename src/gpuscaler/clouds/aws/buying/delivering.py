"""Launches that groups owe: the machines missing from their desired capacity, and whether their last launch failed."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.aws.buying.activities import last_failure
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.model.instances import Delivery

#: A failed launch counts if it began at most this long before the group first lacked machines, in seconds: groups retry every minute.
TRIED_SECONDS: Final = 60.0
#: How many of a group's newest activities are read to find its last launch.
_NEWEST: Final = 20


class DeliveryTracker:
    """Follows the missing machines of groups from one inventory to the next."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls
        #: When each group was first seen to lack machines.
        self._since: dict[tuple[str, str], float] = {}

    async def deliveries(self, groups: Iterable[Group], pools: Mapping[tuple[str, str], AwsPool]) -> tuple[Delivery, ...]:
        """A delivery for each group that is a pool.

        If a group's activities cannot be read, the group is assumed to be launching the machines that it lacks.
        """
        here = [(pools[group.region, group.name], group) for group in groups if (group.region, group.name) in pools]
        lacks = {(group.region, group.name): many for aws_pool, group in here if (many := missing_machines(group, aws_pool.weights))}
        now = self._calls.now()
        self._since = {key: self._since.get(key, now) for key in lacks}
        failures = dict(zip(lacks, await asyncio.gather(*(self._failure(*key) for key in lacks)), strict=True))
        return tuple(
            Delivery(
                aws_pool.pool.name, lacks.get(key, 0), failures.get(key, ""), early=group.capacity_rebalance, surplus=max(0, group.surplus)
            )
            for aws_pool, group in here
            for key in [(group.region, group.name)]
        )

    async def _failure(self, region: str, name: str) -> str:
        try:
            reply = await self._calls.read(
                "autoscaling", region, "DescribeScalingActivities", AutoScalingGroupName=name, MaxRecords=_NEWEST
            )
        except CloudError:
            return ""
        return last_failure(reply.get("Activities") or (), since=self._since[region, name] - TRIED_SECONDS)


def missing_machines(group: Group, weights: Mapping[str, int]) -> int:
    """How many machines a group lacks of its desired capacity; 0 if it launches none.

    With weights, this is the smallest number of machines that fills the gap.
    """
    if group.deleting or "Launch" in group.suspended:
        return 0
    return max(0, -(group.surplus // max(weights.values(), default=1)))
