"""Components that run beside an API server in each cluster: a scheduler, and the workload controllers, which create DaemonSets' pods."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.nodes.scheduling import Scheduler
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.embedded.workloads.controllers import Workloads
from gpuscaler.kube.client import Client
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit


@asynccontextmanager
async def managed(api: ApiServer, now: Callable[[], float]) -> AsyncIterator[None]:
    """Run the scheduler and the controllers while the context lasts."""
    client = Client(MemoryTransport(api), field_manager="managed", limit=RateLimit(qps=1e9, burst=1_000_000))
    clock = asyncio.get_running_loop().time
    picture = Picture(client, clock=clock, random=Random(1))
    parts = (picture, Scheduler(client, picture, now=now), Workloads(client, now=now, clock=clock, random=Random(1)))
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
