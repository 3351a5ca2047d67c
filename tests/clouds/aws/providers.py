"""A provider for an account in this process: calls are made one at a time, and time passes while the provider waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.clouds.aws.accounts import CLUSTER, Aws

from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.clouds.aws.provider import AwsProvider
from gpuscaler.clouds.protocol import Order
from gpuscaler.model.offerings import OfferingKey


class ProviderHarness:
    """``aws`` and its provider; ``fenced`` are the seconds passed to the fence before each write, which ``leading`` allows."""

    def __init__(self, aws: Aws, *, launch: str = "auto", queue_url: str = "") -> None:
        self.aws = aws
        self.fenced: list[float] = []
        self.leading = True
        self.waits = asyncio.Event()
        self.meanwhile: Callable[[], None] = lambda: None
        self.discovery = Discovery(aws.calls, Scope(CLUSTER), regions=aws.regions, now=lambda: aws.time, launch=launch)
        self.provider = AwsProvider(
            aws.calls,
            self.discovery,
            fence=self.fence,
            now=lambda: aws.time,
            sleep=self.pass_time,
            queue_url=queue_url,
            queue_region="us-east-1",
            executor=ThreadPoolExecutor(max_workers=1),
        )

    def fence(self, seconds: float) -> None:
        self.fenced.append(seconds)
        if not self.leading:
            raise RuntimeError("not the leader")

    async def pass_time(self, seconds: float) -> None:
        self.waits.set()
        self.meanwhile()
        self.aws.time += seconds
        self.aws.account.advance()

    async def order(self, count: int, *, pool: str = "gpus", token: str = "order-1", **wanted: str) -> Order:
        """An order of all offerings of ``pool`` with the properties ``wanted``: market, instance_type, zone."""
        (found_pool,) = (candidate for candidate in await self.provider.pools() if candidate.name == pool)
        names = ("market", "instance_type", "zone")
        keys: list[OfferingKey] = [
            offering.key
            for offering in found_pool.offerings
            if all(getattr(offering, name) == wanted[name] for name in names if name in wanted)
        ]
        return Order(token, pool, tuple(keys), count)

    def group(self, name: str = "gpus") -> Any:
        (group,) = self.aws.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return group

    def write_counts(self) -> dict[str, int]:
        """Numbers of write calls, by operation."""
        reading = ("Describe", "Get", "Receive", "Create", "Put")
        return {name: count for name, count in self.aws.session.call_counts.items() if not name.startswith(reading)}
