"""F43, F47, F49 and F50: renewed credentials, other versions of gpuscaler, a very large cluster, and listeners that hang."""

import asyncio
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from tests.control.records.test_service import events
from tests.control.schedules import check_counted_once
from tests.control.world import CountingRecorder, World
from tests.faults.kit import IDLE, all_bound, bought, faulty, recorded
from tests.kube.servers import served, server_context
from tests.kube.test_http import get, transport_to
from tests.planning.building import node, offering, pod, pool, spec

from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.store import FORMAT_KEY, KEY, MemoryStore
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.credentials import TokenFile
from gpuscaler.kube.picture import ClusterState
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.kube.transport import Request
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.provider import SimulatedProvider


@pytest.mark.looptime(False)  # real sockets take real time
async def test_f43_after_a_refusal_the_renewed_token_is_used_at_once_and_the_write_is_repeated(tmp_path: Path) -> None:
    ca, file = trustme.CA(), tmp_path / "token"
    file.write_text("old\n")

    async def picky(request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.headers["authorization"] == "Bearer new" else 401)

    async with served(picky, server_context(ca)) as (url, seen), transport_to(url, ca, TokenFile(file, "user")) as transport:
        assert (await get(transport))[0] == 401
        # While the new token is half written, the old one is used.
        file.write_text("")
        assert (await get(transport))[0] == 401
        file.write_text("new\n")
        async with transport.exchange(Request("POST", "/api/v1/x", body=b"once")) as answer:
            assert answer.status == 200
    assert seen.tokens == ["Bearer old", "Bearer old", "Bearer old", "Bearer new"]
    assert seen.bodies[2:] == [b"once", b"once"]


async def rewrite(here: World, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the memory as another version of the program would have written it."""
    body = msgspec.json.decode(await here.user.get(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system"))
    assert body["data"][FORMAT_KEY] == "1"
    memory = msgspec.json.decode(zlib.decompress(b64decode(body["binaryData"][KEY])))
    change(memory)
    body["binaryData"][KEY] = b64encode(zlib.compress(msgspec.json.encode(memory))).decode()
    await here.user.replace(CONFIG_MAPS, "gpuscaler-state", body, namespace="kube-system")


def newer(memory: dict[str, Any]) -> None:
    """Add fields of a later version to everything."""
    memory["hopes"] = {"of": "the next version"}
    for name in ("ledger", "breakers", "promises", "learned", "boots", "clocks", "refusals"):
        memory.setdefault(name, {})["more"] = 1.5
    for entries in memory["ledger"].values():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                entry["colour"] = "blue"


def older(memory: dict[str, Any]) -> None:
    """Keep what the version before knew: orders, machines, promises and removals, and breakers."""
    for name in memory.keys() - {"ledger", "breakers"}:
        del memory[name]
    for name in memory["ledger"].keys() - {"serial", "orders", "coming", "promises", "leaving", "bought"}:
        del memory["ledger"][name]


@pytest.mark.parametrize("after", [0.0, 5.0, 30.0])
async def test_f47_a_saved_state_of_the_next_or_the_previous_version_is_continued(after: float) -> None:
    async with faulty(IDLE) as here:
        for number in range(3):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/run-for": "20m"})
        await bought(here, 3)
        await here.sleep(after)
        for change in (newer, older, newer):
            await here.kill()
            await rewrite(here, change)
            here.start()
            await here.sleep(4.0)
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 3
        assert here.controller is not None
        assert not here.controller.memory.ledger.coming


class Still:
    """A picture that changes only on request."""

    synced = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.version = cluster, 0

    def apply(self, delta: Delta) -> None:
        self.cluster, self.version = self.cluster.apply(delta), self.version + 1

    def set_offerings(self, inventory: Inventory, ordered: object = None) -> None:
        """Labels alone identify the pool of these nodes."""

    async def take(self) -> ClusterState:
        return ClusterState(self.cluster, self.version)

    def stale_for(self, _now: float) -> float:
        return 0.0

    def listen(self, _listener: Callable[[Batch], None]) -> Callable[[], None]:
        return lambda: None


async def stalls(worst: list[float]) -> None:
    """Record the processor time, in seconds, that each turn of other tasks takes on the event loop's thread."""
    while True:
        before = time.thread_time()
        await asyncio.sleep(0.005)
        worst.append(time.thread_time() - before)


@pytest.mark.looptime(False)  # real durations are measured
async def test_f49_with_5000_nodes_and_100000_pods_a_turn_is_quick_and_does_not_delay_lease_renewals() -> None:
    kind = offering("g.8", 8.0, gpus=8, cpu=256, memory=1024)
    policy = Policy((pool(kind, idle_after=60.0),))
    nodes = [node(f"n{number}", kind, provider_id=f"simulated:///z1/n{number}") for number in range(5_000)]
    busy, small = spec(gpus=8, cpu=100, memory=100), spec(cpu=4, memory=8)
    running = [pod(f"b{number}", busy, on=f"n{number}") for number in range(5_000)]
    running += [pod(f"r{number}", small, on=f"n{number % 5_000}") for number in range(95_000)]
    picture = Still(Cluster.of((*nodes, *running)))
    began = time.time()
    core = SimulatedCloud(policy.pools)
    provider = SimulatedProvider(core, policy.pools, now=time.time, listener=lambda _: None)
    machines = tuple(Instance(node.provider_id, *kind.key) for node in nodes)

    async def inventory() -> Inventory:
        return Inventory(time.time(), machines)

    provider.inventory = inventory  # type: ignore[method-assign]
    client = Client(MemoryTransport(ApiServer(time.time)))
    controller = Controller(
        picture=picture,  # type: ignore[arg-type]
        client=client,
        provider=provider,
        store=MemoryStore(client, namespace="kube-system"),
        policy=policy,
        recorder=CountingRecorder(),
        now=time.time,
        attempts=Attempts(client),
    )
    await controller.cloud.refresh()
    worst: list[float] = []
    watching = asyncio.create_task(stalls(worst))
    took = []
    waiting = spec(gpus=1)
    for turn in range(10):
        news = [pod(f"w{turn}-{number}", waiting, created=began) for number in range(5)]
        moved = [pod(f"r{number}", small, on=f"n{(number + turn) % 5_000}") for number in range(100 * turn, 100 * turn + 50)]
        picture.apply(Delta(upserts=(*news, *moved)))
        controller._alarm.plan_by(0.0)
        before = time.process_time()
        await controller.turn()
        took.append(time.process_time() - before)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    assert controller.plans == 10
    assert worst, "the event loop had no turn while plans were made"
    # The first two passes read everything, and each later one reads the changes.
    assert max(took[2:]) < 1.0
    assert max(took[:2]) < 6.0
    assert max(worst) < 0.2
    check_counted_once(controller.memory.ledger)


async def test_f50_machines_are_bought_and_opened_although_every_listener_for_records_hangs() -> None:
    times = []
    for hangs in (False, True):
        async with recorded() as (here, service):
            if hangs:
                here.cluster.api.faults.add(Fault(path="/events.k8s.io/", delay=1e6))
                here.cluster.api.faults.add(Fault(path="/gpuscaler-status", delay=1e6))
            began = here.now()
            for number in range(3):
                await here.submit(f"p{number}")
            while not await all_bound(here):
                await here.sleep(0.5)
                assert here.now() < began + 300.0
            times.append(here.now() - began)
            if hangs:
                assert "no answer within 2 s" in " ".join(service.troubles())
                here.cluster.api.faults.clear()
                await here.submit("later")
                await here.sleep(90.0)
                assert "Pod later" in {about for about, _, _ in await events(here)}

    assert times[0] == times[1]
