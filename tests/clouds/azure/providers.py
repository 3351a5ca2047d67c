"""A provider for an Azure account in this process, over HTTP: time passes only while the provider waits, or when a test says so."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.discovery.accounts import Account as Place
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.clouds.azure.prices.source import PriceSource
from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.clouds.protocol import BuyResult, Order, UnfilledOrder
from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, Endpoint, making, serve
from gpuscaler.embedded.azure.state import Cluster, ScaleSet
from gpuscaler.model.offerings import OfferingKey

BEGAN = 1_790_000_000.0
SIZE = "Standard_NC24ads_A100_v4"


class AzureHarness:
    """An account with the AKS cluster ``cluster``, and providers for it; the fence allows writes while ``leading``."""

    def __init__(self, url: str, clock: list[float], account: Account, endpoint: Endpoint, cluster: Cluster) -> None:
        self.url, self.clock, self.account, self.endpoint, self.cluster = url, clock, account, endpoint, cluster
        self.leading = True
        self.meanwhile: Callable[[], None] = lambda: None
        self.opened: list[AzureProvider] = []
        self.pool_names: tuple[str, ...] = ()
        self.other_places: tuple[Place, ...] = ()
        self.provider = self.start()

    def start(self, **options: Any) -> AzureProvider:
        """Another process's provider for the same account."""
        http = Http({})
        arm = Arm(FixedToken("token"), fence=self.fence, now=self.now, sleep=self.pass_time, endpoint_url=self.url, http=http)
        place = Place(SUBSCRIPTION, self.cluster.name, self.cluster.group, ("workers",), pools=self.pool_names)
        prices = PriceSource(http, now=self.now, endpoint_url=self.url)
        discovery = Discovery(arm, (place, *self.other_places), now=self.now, prices=prices, **options)
        provider = AzureProvider(arm, discovery, now=self.now, sleep=self.pass_time)
        self.opened.append(provider)
        return provider

    def now(self) -> float:
        return self.clock[0]

    def fence(self, _seconds: float) -> None:
        if not self.leading:
            raise RuntimeError("not the leader")

    async def pass_time(self, seconds: float) -> None:
        self.meanwhile()
        self.later(seconds)
        await asyncio.sleep(0)

    def later(self, seconds: float) -> None:
        self.clock[0] += seconds
        self.account.advance()

    def conditions(self, **changes: Any) -> None:
        self.account.conditions = replace(self.account.conditions, **changes)

    def scale_set(self, pool: str) -> ScaleSet:
        """The scale set of an agent pool, or the self-managed scale set of that name."""
        sets = [scale_set for group in self.account.groups.values() for scale_set in group.scale_sets.values()]
        (found,) = [scale_set for scale_set in sets if pool in (scale_set.name, scale_set.agent_pool.name if scale_set.agent_pool else "")]
        return found

    async def order(self, count: int, pool: str, *, token: str = "order-1", **wanted: str) -> Order:
        """An order of all offerings of ``pool`` with the properties ``wanted``: market, instance_type, zone."""
        (found,) = [candidate for candidate in await self.provider.pools() if candidate.name == pool]
        keys: list[OfferingKey] = [
            offering.key for offering in found.offerings if all(getattr(offering, name) == value for name, value in wanted.items())
        ]
        return Order(token, pool, tuple(keys), count)

    async def follow(
        self, orders: Sequence[UnfilledOrder], *, within: float, provider: AzureProvider | None = None
    ) -> dict[str, BuyResult]:
        """Answers to ``orders``, asked for every three seconds, as the controller does."""
        answers: dict[str, BuyResult] = {}
        until = self.now() + within
        while len(answers) < len(orders) and self.now() < until:
            self.later(3.0)
            answers |= dict(await (provider or self.provider).follow([one for one in orders if one.order.token not in answers]))
        return answers

    def unfilled(self, order: Order, bought: BuyResult) -> UnfilledOrder:
        return UnfilledOrder(order, order.count - len(bought.instances), self.now(), operation=bought.operation)

    def writes(self) -> int:
        """The number of calls that change something."""
        return sum(self.endpoint.count(method, "") for method in ("PUT", "PATCH", "POST", "DELETE"))


@asynccontextmanager
async def azure_account(**conditions: Any) -> AsyncIterator[AzureHarness]:
    """An account in eastus with the cluster ``aks``: the system pool nodepool1, and GPU pools ``spot`` and ``demand`` without machines."""
    clock = [BEGAN]
    account = Account(now=lambda: clock[0], conditions=Conditions(**{"retry_after": 0, **conditions}))
    cluster = making.create_cluster(account, "aks", "rg")
    making.create_group(account, "workers")
    making.create_pool(account, cluster, "spot", SIZE, spot=True)
    making.create_pool(account, cluster, "demand", SIZE)
    endpoint = Endpoint(account)
    serving = await serve(endpoint)
    harness = AzureHarness(serving.url, clock, account, endpoint, cluster)
    try:
        yield harness
    finally:
        for provider in harness.opened:
            await provider.close()
        await serving.close()
