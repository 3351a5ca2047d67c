"""A cluster in virtual time, its user and its background tasks. The test worlds share this base."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.kube.resources import NODES, PODS, Resource

Json = dict[str, Any]


class RunningCluster:
    """A cluster that runs until :meth:`close`. ``_lives`` has the controller processes that a test starts and ends."""

    #: Seconds between two checks of :meth:`until`.
    pause = 0.5

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.user = cluster.client("user")
        self._tasks: list[asyncio.Task[None]] = []
        self._lives: list[asyncio.Task[None]] = []
        self.support(cluster.run())

    def support(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run further background tasks of the world."""
        self._tasks += [asyncio.get_running_loop().create_task(part) for part in parts]

    def check(self) -> None:
        """Raise the error of a background task that ended although it should run."""
        for task in (*self._tasks, *self._lives):
            if task.done() and not task.cancelled():
                task.result()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.check()

    async def until(self, condition: Callable[[], Any], within: float = 600.0) -> None:
        """Let time pass until ``condition()`` is true. It may be a coroutine function."""
        end = asyncio.get_running_loop().time() + within
        while not (await found if asyncio.iscoroutine(found := condition()) else found):
            assert asyncio.get_running_loop().time() < end, f"not true within {within:g} s: {condition.__doc__ or condition}"
            await self.sleep(self.pause)

    async def kill(self) -> None:
        """Kill all controller processes between two of their steps."""
        await _end(self._lives)

    async def close(self) -> None:
        await self.kill()
        await _end(self._tasks)

    # The user's view

    async def all(self, resource: Resource = PODS, *, namespace: str = "") -> list[Json]:
        return [msgspec.json.decode(data) for data in await self.user.list_all(resource, namespace=namespace)]

    async def nodes(self) -> list[Json]:
        return await self.all(NODES)

    async def pods(self) -> list[Json]:
        return await self.all(PODS, namespace="default")

    async def bound(self) -> dict[str, str]:
        """The node of each pod by pod name; empty for pending pods."""
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in await self.pods()}


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
