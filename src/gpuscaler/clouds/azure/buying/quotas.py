"""The room that quotas leave, read before machines are ordered, so that no order is sent that cannot fit."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from gpuscaler.clouds.azure.api.arm import USAGES, Arm
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.resources import RESERVED
from gpuscaler.clouds.azure.documents.skus import Sku
from gpuscaler.clouds.azure.documents.usages import Usage, quota_name, quotas_of, room_of, usages_of
from gpuscaler.clouds.protocol import CloudError

_LOG = structlog.get_logger(__name__)
#: How long usages are used before they are read again, in seconds.
FRESH_SECONDS: Final = 60.0
#: How long an order waits for the usages, in seconds.
READ_SECONDS: Final = 2.5


class Quotas:
    """The usages of subscriptions by location, read when they are needed and old."""

    def __init__(self, arm: Arm, *, now: Callable[[], float]) -> None:
        self._arm, self._now = arm, now
        self._usages: dict[tuple[str, str], tuple[float, Mapping[str, Usage]]] = {}

    async def room(self, azure_pool: AzurePool, sku: Sku | None, market: str) -> tuple[int | None, str]:
        """How many machines of ``sku`` still fit, None if that is unknown, and the quota that leaves the least room, in words.

        Reserved machines are counted when they are reserved.
        """
        if sku is None or market == RESERVED:
            return None, ""
        usages = await self._read(azure_pool.subscription, azure_pool.location)
        quotas = quotas_of(sku, market, usages)
        if not quotas:
            return None, ""
        least = min(quotas, key=lambda usage: usage.left)
        words = f"quota {quota_name(least)} in {azure_pool.location}: limit {least.limit}, used {least.current}; request an increase"
        return room_of(sku, market, usages), words

    def forget(self, azure_pool: AzurePool) -> None:
        """Read the usages again before the next order: Azure refused one because of a quota."""
        self._usages.pop((azure_pool.subscription, azure_pool.location), None)

    async def _read(self, subscription: str, location: str) -> Mapping[str, Usage]:
        at, usages = self._usages.get((subscription, location), (float("-inf"), {}))
        if self._now() < at + FRESH_SECONDS:
            return usages
        path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/usages"
        try:
            async with asyncio.timeout(READ_SECONDS):
                usages = usages_of(await self._arm.pages(path, version=USAGES))
        except (CloudError, TimeoutError) as error:
            # Then, and without the right to read usages, Azure's answers to orders say what does not fit.
            _LOG.debug("quotas could not be read", subscription=subscription, location=location, problem=str(error) or "no answer in time")
            usages = {}
        self._usages[subscription, location] = self._now(), usages
        return usages
