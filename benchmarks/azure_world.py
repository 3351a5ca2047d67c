"""A whole cluster on a simulated Azure account, with the real controller and AzureProvider in virtual time."""

from asyncio import sleep
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.embedded.azure.memory import URL, MemoryHttp

from benchmarks.cloud_world import CloudWorld
from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.discovery.accounts import Account as Place
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.clouds.azure.prices.source import PriceSource
from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, Endpoint, making
from gpuscaler.embedded.azure.nodes.nodes import NodeNames, register_nodes
from gpuscaler.embedded.azure.state import ScaleSet
from gpuscaler.embedded.azure.wire.requests import Answer, Request
from gpuscaler.embedded.nodes.machines import Machines

CLUSTER, GROUP, LOCATION = "bench", "rg", "eastus"


class LoggedEndpoint(Endpoint):
    """An endpoint that records each write of a scale set's capacity: (moment, scale set)."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.log: list[tuple[float, str]] = []

    def handle(self, request: Request) -> Answer:
        if request.method in ("PUT", "PATCH") and "/virtualMachineScaleSets/" in request.path:
            self.log.append((self.account.now(), request.path.rpartition("/")[2]))
        return super().handle(request)


class AzureWorld(CloudWorld):
    """A cluster beside an account with ``conditions`` and an AKS cluster. The controller leads from :meth:`start` on.

    Each answer takes ``delay`` seconds.
    """

    def __init__(self, conditions: Conditions, *, delay: float) -> None:
        super().__init__()
        self.account = Account(now=self.now, locations=(LOCATION,), conditions=conditions)
        self.endpoint = LoggedEndpoint(self.account)
        self.aks = making.create_cluster(self.account, CLUSTER, GROUP, system_size="")
        self._delay = delay
        names = NodeNames()
        machines = Machines(self.cluster.client("azure"), now=self.now, naming=names.naming())
        register_nodes(self.account, machines, names)
        self.run_beside(machines.run(), self.advance(self.account.advance))
        self.provider: AzureProvider

    async def start(self) -> None:
        """Read the account, then lead."""
        http = MemoryHttp(self.endpoint, delay=self._delay)
        arm = Arm(FixedToken("token"), fence=self.network_client.fence, now=self.now, sleep=sleep, endpoint_url=URL, http=http)
        discovery = Discovery(
            arm, (Place(SUBSCRIPTION, CLUSTER, GROUP),), now=self.now, prices=PriceSource(http, now=self.now, endpoint_url=URL)
        )
        self.provider = AzureProvider(arm, discovery, now=self.now)
        await self.lead(self.provider, LOCATION)

    def scale_sets(self) -> list[ScaleSet]:
        return [scale_set for group in self.account.groups.values() for scale_set in group.scale_sets.values()]


@asynccontextmanager
async def azure_world(conditions: Conditions, *, delay: float = 0.1) -> AsyncIterator[AzureWorld]:
    world = AzureWorld(conditions, delay=delay)
    try:
        yield world
    finally:
        await world.close()
