"""A whole cluster beside a simulated account of a cloud, with the real controller, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.control.world import BEGAN, CountingRecorder
from tests.objects import pod

from gpuscaler.clouds.protocol import Provider
from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.store import MemoryStore
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.cluster import Conditions as ClusterConditions
from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: Machines boot in a minute and show their GPUs half a minute later.
BOOT = Delays(boot=Delay(60.0, 60.0, 60.0), device_plugin=Delay(30.0, 30.0, 30.0), image_pull=Delay(0.0, 0.0, 0.0))
#: Interval at which the account's clock advances, in seconds.
ADVANCE_SECONDS = 0.1


class LoggedTransport(MemoryTransport):
    """A transport that records each write: (moment, method, path, body)."""

    def __init__(self, api: ApiServer, now: Callable[[], float]) -> None:
        super().__init__(api)
        self._now = now
        self.log: list[tuple[float, str, str, bytes]] = []

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        if request.method != "GET":
            self.log.append((self._now(), request.method, request.path, request.body or b""))
        async with super().exchange(request) as answer:
            yield answer


class CloudWorld:
    """A cluster; ``now`` is its clock and the account's. The controller leads from :meth:`lead` on."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.now: Callable[[], float] = lambda: BEGAN + loop.time() - began
        self.cluster = EmbeddedCluster(Policy(pools=()), now=self.now, conditions=ClusterConditions(delays=BOOT))
        self.user = self.cluster.client("user")
        self.network = LoggedTransport(self.cluster.api, self.now)
        self.network_client = Client(self.network, field_manager="gpuscaler")
        self.recorder = CountingRecorder()
        self.controller: Controller
        self._tasks: list[asyncio.Task[Any]] = []
        self.run_beside(self.cluster.run())

    def run_beside(self, *parts: Coroutine[Any, Any, Any]) -> None:
        self._tasks += [asyncio.get_running_loop().create_task(part) for part in parts]

    async def advance(self, step: Callable[[], object]) -> None:
        """Call ``step`` again and again."""
        while True:
            step()
            await asyncio.sleep(ADVANCE_SECONDS)

    async def lead(self, provider: Provider, region: str) -> None:
        """Read the pools of ``provider``, and run the controller."""
        picture, attempts = self.cluster.picture(self.network_client), Attempts(self.network_client)
        self.controller = Controller(
            picture=picture,
            client=self.network_client,
            provider=provider,
            store=MemoryStore(self.network_client, namespace="kube-system"),
            policy=Policy(pools=tuple(await provider.pools()), region=region),
            recorder=self.recorder,
            now=self.now,
            attempts=attempts,
        )
        self.run_beside(picture.run(), attempts.run(), self.controller.run())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for task in self._tasks:
            if task.done():
                task.result()

    async def submit(self, names: Iterable[str], gpus: int = 1, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
        for name in names:
            document = pod(name, gpus, annotations)
            document["spec"] |= spec
            await self.user.create(PODS, document, namespace="default")

    async def count_bound(self) -> int:
        return sum(bool(msgspec.json.decode(body)["spec"].get("nodeName")) for body in await self.user.list_all(PODS, namespace="default"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
