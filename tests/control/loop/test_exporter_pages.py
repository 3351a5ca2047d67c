"""Scheduled events that the controller reads from exporters' pages, over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests import objects

from gpuscaler.control.loop.exporter_pages import MOST_BYTES, ExporterPages
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import NAMESPACES, PODS
from gpuscaler.model.scheduled_events import ScheduledEvent

pytestmark = pytest.mark.looptime(False)

LABELS = {"app.kubernetes.io/name": "gpuscaler", "app.kubernetes.io/component": "exporter"}
PREEMPT = {"kind": "Preempt", "id": "e-1", "at": "2027-01-15T08:00:30Z", "description": ""}
EVENT = ScheduledEvent("Preempt", "e-1", 1_800_000_030.0)


@dataclass
class Cluster:
    """Exporters that answer on addresses of this machine, and what reads them. ``pages`` has the answer of each address."""

    api: ApiServer
    user: Client
    reader: ExporterPages
    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    changes: list[dict[str, ScheduledEvent]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        address = transport.get_extra_info("sockname")[0]
        self.asked.append(address)
        status, body = self.pages.get(address, (404, b""))
        return web.Response(status=status, body=body)

    def shows(self, address: str, event: object, *, written: bool = False, status: int = 200) -> None:
        self.pages[address] = status, json.dumps({"written": written, "event": event}).encode()

    async def exporter(self, node: str, address: str, *, owner: str = "DaemonSet", **labels: str) -> None:
        body = objects.pod(f"exporter-{node}", 0)
        body["spec"]["nodeName"] = node
        body["metadata"]["labels"] = {**LABELS, **labels}
        body["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": "u", "controller": True}]
        await self.user.create(PODS, body, namespace="gpu-exporter")
        status: dict[str, Any] = {"status": {"podIP": address}}
        await self.user.merge_patch(PODS, f"exporter-{node}", status, namespace="gpu-exporter", subresource="status")

    async def read(self, session: aiohttp.ClientSession) -> None:
        await self.reader.read(session, lambda: self.changes.append(dict(self.reader.events)))


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Cluster, aiohttp.ClientSession]]:
    api = ApiServer(lambda: 1_800_000_000.0)
    client = Client(MemoryTransport(api))
    runner = web.AppRunner(app := web.Application(), access_log=None, shutdown_timeout=0.1)
    listener = socket.create_server(("0.0.0.0", 0))
    made = Cluster(api, client, ExporterPages(client, "gpu-exporter", listener.getsockname()[1], 2.0))
    app.router.add_get("/scheduled-events", made.answer)
    await client.create(NAMESPACES, {"metadata": {"name": "gpu-exporter"}})
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        async with aiohttp.ClientSession() as session:
            yield made, session
    finally:
        await runner.cleanup()


async def test_events_are_read_from_pages_and_each_exporter_is_believed_about_its_own_node() -> None:
    async with cluster() as (here, session):
        await here.exporter("a", "127.0.0.1")
        await here.exporter("b", "127.0.0.2")
        here.shows("127.0.0.1", {**PREEMPT, "node": "b"})
        here.shows("127.0.0.2", None)
        await here.read(session)
        await here.read(session)

        assert here.reader.events == {"a": EVENT}
        assert here.changes == [{"a": EVENT}]
        assert here.reader.trouble == ""
        here.shows("127.0.0.1", None)
        await here.read(session)
        assert here.changes[1:] == [{}]


async def test_pods_that_are_not_of_a_daemon_set_or_have_other_labels_are_not_asked() -> None:
    async with cluster() as (here, session):
        await here.exporter("a", "127.0.0.1", owner="ReplicaSet")
        await here.exporter("b", "127.0.0.2", **{"app.kubernetes.io/component": "controller"})
        await here.read(session)

        assert here.asked == []


@pytest.mark.parametrize(
    ("shown", "times"), [((200, True), 1), ((404, False), 1), ((200, False), 3)], ids=["writes", "no page", "cannot write"]
)
async def test_exporters_that_write_on_their_nodes_or_read_no_events_are_asked_rarely(shown: tuple[int, bool], times: int) -> None:
    async with cluster() as (here, session):
        await here.exporter("a", "127.0.0.1")
        here.shows("127.0.0.1", None, status=shown[0], written=shown[1])
        for _ in range(3):
            await here.read(session)

        assert len(here.asked) == times
        assert here.reader.trouble == ""


@pytest.mark.parametrize(
    "break_it",
    [
        lambda here: here.shows("127.0.0.1", {**PREEMPT, "kind": "Vanish"}),
        lambda here: here.shows("127.0.0.1", "soon"),
        lambda here: here.shows("127.0.0.1", PREEMPT, status=500),
        lambda here: here.pages.update({"127.0.0.1": (200, b"<html>")}),
        lambda here: here.pages.update({"127.0.0.1": (200, b" " * (MOST_BYTES + 1))}),
        lambda here: here.pages.update({"127.0.0.1": (200, b'{"event":"\xff"}')}),
    ],
)
async def test_an_exporter_that_cannot_be_read_is_reported_and_the_others_count(break_it: Callable[[Cluster], None]) -> None:
    async with cluster() as (here, session):
        await here.exporter("a", "127.0.0.1")
        await here.exporter("b", "127.0.0.2")
        here.shows("127.0.0.2", PREEMPT)
        break_it(here)
        await here.read(session)

        assert here.reader.events == {"b": EVENT}
        assert here.reader.trouble.startswith("1 of 2 exporters cannot be read for scheduled events, such as http://127.0.0.1:")


async def test_an_event_stays_while_its_exporter_does_not_answer_for_a_moment_and_goes_with_its_pod() -> None:
    async with cluster() as (here, session):
        await here.exporter("a", "127.0.0.1")
        here.shows("127.0.0.1", PREEMPT)
        await here.read(session)
        here.shows("127.0.0.1", PREEMPT, status=503)
        await here.read(session)
        assert here.reader.events == {"a": EVENT}
        await here.user.delete(PODS, "exporter-a", namespace="gpu-exporter", grace=0)
        here.reader.list_seconds = 0.0
        await here.read(session)

        assert here.reader.events == {}


async def test_without_a_list_of_pods_the_reason_is_reported() -> None:
    async with cluster() as (here, session):
        here.api.faults.add(Fault(path="/pods", refusal=Failure(403, "Forbidden", "no")))
        await here.read(session)

        assert here.reader.trouble.startswith("the exporters in namespace gpu-exporter cannot be listed: ")


async def test_it_reads_until_it_is_cancelled() -> None:
    async with cluster() as (here, _):
        await here.exporter("a", "127.0.0.1")
        here.shows("127.0.0.1", PREEMPT)
        changed = asyncio.Event()
        task = asyncio.create_task(here.reader.run(changed.set))
        async with asyncio.timeout(10.0):
            await changed.wait()
        task.cancel()

        assert here.reader.events == {"a": EVENT}
