"""Whatever a server and its network do, the picture ends up equal to the server's state."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trustme
from tests.kube.scripted import pod
from tests.model import realistic

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault, broken, throttled, unavailable
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import JOBS, NODES, PODS, PRIORITY_CLASSES, WATCHED
from gpuscaler.kube.tls import Tls
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner

RESOURCES = (PRIORITY_CLASSES, JOBS, NODES, PODS)


@asynccontextmanager
async def watched(api: ApiServer, resources: Any = RESOURCES) -> AsyncIterator[tuple[Picture, MemoryTransport]]:
    transport = MemoryTransport(api)
    picture = Picture(Client(transport), clock=asyncio.get_running_loop().time, random=Random(2), resources=resources, inline=10**9)
    running = asyncio.create_task(picture.run())
    try:
        yield picture, transport
    finally:
        running.cancel()
        await asyncio.wait([running])


async def server_objects(api: ApiServer) -> Cluster:
    """The server's state, read object by object without any reflector."""
    client = Client(MemoryTransport(api))
    items: list[Item] = []
    for resource in RESOURCES:
        decoder = ObjectDecoder(resource, Interner())
        for data in await client.list_all(resource):
            items += decoder.read(data).items
    return Cluster.of(items)


def is_equal(cluster: Cluster, other: Cluster) -> bool:
    return (cluster.pods, cluster.nodes, cluster.workloads, cluster.priority_classes) == (
        other.pods,
        other.nodes,
        other.workloads,
        other.priority_classes,
    )


async def churn(client: Client, random: Random, changes: int) -> None:
    """Create, bind and delete pods, and relabel nodes."""
    names: list[str] = []
    for number in range(changes):
        dice = random.random()
        if dice < 0.5 or not names:
            names.append(f"p{number}")
            await client.create(PODS, {**pod(names[-1]), "metadata": {"name": names[-1]}}, namespace="team")
        elif dice < 0.7:
            await client.merge_patch(PODS, random.choice(names), {"metadata": {"labels": {"turn": str(number)}}}, namespace="team")
        elif dice < 0.8:
            await client.merge_patch(NODES, "n1", {"metadata": {"labels": {"turn": str(number)}}})
        else:
            await client.delete(PODS, names.pop(random.randrange(len(names))), namespace="team", grace=0)
        await asyncio.sleep(random.uniform(0, 3))


def api_server(*, streams: bool, history: int = 10_000) -> ApiServer:
    api = ApiServer(lambda: 1_780_000_000.0, streaming_lists=streams, history=history)
    api.load(
        [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
        ]
    )
    return api


@pytest.mark.parametrize("streams", [True, False], ids=["streamed lists", "paged lists"])
@pytest.mark.parametrize("seed", range(4))
async def test_the_picture_equals_the_servers_state_after_all_faults(seed: int, streams: bool) -> None:
    random = Random(seed)
    api = api_server(streams=streams, history=20)
    async with watched(api) as (picture, transport):
        working = asyncio.create_task(churn(Client(MemoryTransport(api)), random, 120))
        for _ in range(30):
            await asyncio.sleep(random.uniform(0, 8))
            trouble = random.randrange(6)
            if trouble == 0:
                api.drop_watches(sever=random.random() < 0.5)
            elif trouble == 1:
                api.forget()
                api.drop_watches()
            elif trouble == 2:
                transport.cut()
                await asyncio.sleep(random.uniform(0, 150))
                transport.mend()
            elif trouble == 3:
                api.faults.add(Fault(method="GET", path="watch=true", times=3, cut=random.randrange(5000)))
                api.drop_watches()
            elif trouble == 4:
                refusal = random.choice([throttled(5), broken(), unavailable()])
                api.faults.add(Fault(method="GET", path="watch=true", times=random.randrange(1, 5), refusal=refusal))
                api.drop_watches()
            else:
                api.faults.add(Fault(method="GET", path="watch=true", times=2, delay=random.uniform(0, 60)))
                api.drop_watches()
        await working
        api.faults.clear()
        await asyncio.sleep(400)
        assert is_equal((await picture.take()).cluster, await server_objects(api))
        assert picture.troubles == ()
        now = asyncio.get_running_loop().time()
        assert picture.stale_for(now) <= 100


async def test_every_watched_resource_is_listed_or_absent() -> None:
    api = api_server(streams=True)
    async with watched(api, WATCHED) as (picture, _):
        await asyncio.sleep(5)
        assert picture.synced
        assert picture.troubles == ()
        assert all(reflector.synced for reflector in picture.reflectors)


async def test_the_age_of_the_picture_grows_while_the_server_is_unreachable() -> None:
    api = api_server(streams=True)
    async with watched(api) as (picture, transport):
        await asyncio.sleep(10)
        transport.cut()
        await asyncio.sleep(300)
        assert picture.stale_for(310.0) >= 290
        assert len(picture.troubles) == len(RESOURCES)
        transport.mend()
        await asyncio.sleep(70)
        assert picture.stale_for(380.0) < 70
        assert picture.troubles == ()


async def test_a_long_watch_of_a_quiet_cluster_costs_a_few_requests_per_hour() -> None:
    api = api_server(streams=True)
    async with watched(api) as (picture, _):
        client = picture.reflectors[0]._client
        await asyncio.sleep(3600)
        requests = sum(client.metrics.requests.values())
        assert picture.stale_for(3600.0) <= 61
    assert len(RESOURCES) * 6 <= requests <= len(RESOURCES) * 13


@pytest.mark.looptime(False)
async def test_a_picture_over_tls_shows_existing_and_new_objects() -> None:
    authority = trustme.CA()
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(secured)
    api = ApiServer(time.time)
    api.load(realistic.pod(number) for number in range(500))
    serving = await serve(api, tls=secured)
    access = Access(server=serving.url, source="test", tls=Tls(owner="cluster", user="", authority=authority.cert_pem.bytes()))
    loop = asyncio.get_running_loop()
    try:
        async with HttpTransport(access) as transport, asyncio.timeout(30):
            client = Client(transport)
            picture = Picture(client, clock=loop.time, random=Random(3), resources=(NODES, PODS))
            running = asyncio.create_task(picture.run())
            while not picture.synced:
                await picture.changed.wait()
                picture.changed.clear()
            assert len((await picture.take()).cluster.pods) == 500
            await client.create(PODS, {**pod("late"), "metadata": {"name": "late"}}, namespace="default")
            await picture.changed.wait()
            assert "default/late" in (await picture.take()).cluster.pods
            running.cancel()
            await asyncio.wait([running])
    finally:
        await serving.close()
