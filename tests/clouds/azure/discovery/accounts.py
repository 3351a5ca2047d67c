"""Subscriptions in this process, their contents, and ways to read them: real HTTP to our own endpoint."""

from collections.abc import Iterable
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.clouds.azure.documents.documents import Prices

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import Credentials, FixedToken
from gpuscaler.clouds.azure.discovery.accounts import Account
from gpuscaler.clouds.azure.discovery.discovery import Discovery, DiscoveryResult
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.embedded.azure import SUBSCRIPTION, Conditions, Endpoint, Serving, serve
from gpuscaler.embedded.azure import Account as Simulated

BEGAN = 1_790_000_000.0
CLUSTER, GROUP = "research", "ml"
NODE_GROUP = f"MC_{GROUP}_{CLUSTER}_eastus"
AKS = Account(SUBSCRIPTION, CLUSTER, GROUP)


class Azure:
    """Subscriptions whose clock stands still until a test moves it. ``waited`` are the pauses between tries."""

    def __init__(self, **options: Any) -> None:
        self.time = BEGAN
        self.account = Simulated(now=lambda: self.time, **{"conditions": Conditions(spelling="kept"), **options})
        self.endpoint = Endpoint(self.account)
        self.prices = Prices()
        self.waited: list[float] = []
        self._serving: Serving | None = None
        self._arms: list[Arm] = []

    async def open(self) -> None:
        self._serving = await serve(self.endpoint)

    async def close(self) -> None:
        for arm in self._arms:
            await arm.close()
        if self._serving is not None:
            await self._serving.close()

    def conditions(self, **changes: Any) -> None:
        self.account.conditions = replace(self.account.conditions, **changes)

    def later(self, seconds: float) -> None:
        self.time += seconds
        self.account.advance()

    def arm(self, credentials: Credentials | None = None) -> Arm:
        assert self._serving is not None
        arm = Arm(
            credentials or FixedToken("token"),
            endpoint_url=self._serving.url,
            fence=lambda _: None,
            now=lambda: self.time,
            sleep=self._sleep,
            random=Random(0),
        )
        self._arms.append(arm)
        return arm

    def discovery(self, *accounts: Account, arm: Arm | None = None, **settings: Any) -> Discovery:
        return Discovery(arm or self.arm(), accounts or (AKS,), now=lambda: self.time, prices=self.prices, **settings)

    async def discover(self, *accounts: Account, **settings: Any) -> DiscoveryResult:
        return await self.discovery(*accounts, **settings).discover()

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


def names(pools: Iterable[AzurePool]) -> list[str]:
    return [azure_pool.pool.name for azure_pool in pools]


def pool(discovered: DiscoveryResult, name: str) -> AzurePool:
    """The pool of that name."""
    return next(azure_pool for azure_pool in discovered.pools if azure_pool.pool.name == name)


def reasons(discovered: DiscoveryResult) -> dict[str, str]:
    """Why objects were skipped, by the last part of their name."""
    return {skipped.object.rpartition("/")[2]: skipped.reason for skipped in discovered.set_aside}
