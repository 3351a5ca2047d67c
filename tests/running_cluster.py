"""A cluster in virtual time, its user, and what lives beside it: what the worlds of the tests have in common."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.kube.resources import NODES, PODS, Resource

Json = dict[str, Any]


class RunningCluster:
    """A cluster that runs until :meth:`close`; processes of a controller, which a test starts and ends, are among ``_lives``."""

    #: Seconds between two looks of :meth:`until`.
    pause = 0.5

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.user = cluster.client("user")
        self._tasks: list[asyncio.Task[None]] = []
        self._lives: list[asyncio.Task[None]] = []
        self.support(cluster.run())

    def support(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Let more of the world live."""
        self._tasks += [asyncio.get_running_loop().create_task(part) for part in parts]

    def check(self) -> None:
        """Raise what ended a part of the world that should live."""
        for task in (*self._tasks, *self._lives):
            if task.done() and not task.cancelled():
                task.result()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.check()

    async def until(self, so: Callable[[], Any], within: float = 600.0) -> None:
        """Let time pass until ``so()``, awaited where it is to be, is true."""
        end = asyncio.get_running_loop().time() + within
        while not (await found if asyncio.iscoroutine(found := so()) else found):
            assert asyncio.get_running_loop().time() < end, f"it did not come within {within:g} s: {so.__doc__ or so}"
            await self.sleep(self.pause)

    async def kill(self) -> None:
        """All processes of the controller are gone between two of their steps."""
        await _end(self._lives)

    async def close(self) -> None:
        await self.kill()
        await _end(self._tasks)

    # What the user sees

    async def all(self, resource: Resource = PODS, *, namespace: str = "") -> list[Json]:
        return [msgspec.json.decode(one) for one in await self.user.list_all(resource, namespace=namespace)]

    async def nodes(self) -> list[Json]:
        return await self.all(NODES)

    async def pods(self) -> list[Json]:
        return await self.all(PODS, namespace="default")

    async def bound(self) -> dict[str, str]:
        """The nodes of pods by their names, empty for those that wait."""
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in await self.pods()}


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
