"""F8 to F10, F44 and F48: API servers that are away, silent, without history, forbid things, or answer every write with 409."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from tests.control.world import World
from tests.faults.guarding import Watch
from tests.faults.kit import IDLE, SPOT_FIRST, all_bound, bought, faulty, markets, status, taints, watch_of
from tests.objects import pod

from gpuscaler.clouds.protocol import UNAUTHORISED, BuyResult, CloudError, Order
from gpuscaler.control.loop.controller import FRESH_PICTURE
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.resources import NODES
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.lifecycle.pacing import Pace


async def test_f08_a_machine_that_registers_during_an_api_server_outage_is_not_ended() -> None:
    async with faulty(pace=Pace(register=90.0, ready=90.0)) as here:
        await here.submit("p")
        await bought(here, 1)
        assert here.network is not None
        here.network.cut()
        await here.sleep(600.0)
        here.network.mend()
        await here.sleep(90.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1


async def test_f08_nothing_is_removed_based_on_data_from_before_an_api_server_outage() -> None:
    async with faulty(IDLE) as here:
        await here.submit("p", 1, **{"gpuscaler.io/run-for": "60s"})
        await here.sleep(70.0)
        assert here.network is not None
        here.network.cut()
        await here.sleep(600.0)

        assert [machine.ended_at for machine in here.cluster.core.history()] == [None]
        here.network.mend()
        await here.sleep(180.0)
        assert here.cluster.core.list() == ()


async def test_f48_a_minute_of_write_conflicts_on_a_node_loses_no_taint() -> None:
    async with faulty() as here:
        await here.submit("p")
        conflict = Failure(409, "Conflict", "the object has been modified")
        here.cluster.api.faults.add(Fault(method="PATCH", path="/nodes/", refusal=conflict))
        await here.sleep(90.0)
        here.cluster.api.faults.clear()
        await here.sleep(60.0)

        assert await all_bound(here)
        (node,) = await here.nodes()
        assert [taint["key"] for taint in node["spec"].get("taints") or () if taint["effect"] == "NoSchedule"] == []


@dataclass
class Stall:
    """Silences the watches of ``path`` that are open at :meth:`begin`, but keeps them open; others work."""

    here: World
    path: str = ""
    stalls: int = 0

    def __post_init__(self) -> None:
        assert self.here.network is not None
        self._exchange = self.here.network.exchange
        self.here.network.exchange = self.exchange  # type: ignore[method-assign]

    def begin(self) -> None:
        self.stalls += 1

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        async with self._exchange(request) as answer:
            watches = "watch" in request.query and self.path in request.path
            yield replace(answer, pieces=self._heard(answer.pieces, self.stalls)) if watches else answer

    async def _heard(self, pieces: AsyncIterator[bytes], opened: int) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if self.stalls > opened:
                await asyncio.Event().wait()
            yield piece


async def test_f09_stalled_watches_are_detected_and_pods_created_in_the_meantime_get_machines() -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        await here.sleep(90.0)
        stall = Stall(here)
        await here.sleep(700.0)
        assert here.cluster.core.list() == ()
        await here.submit("second", 1, **{"gpuscaler.io/run-for": "60s"})
        await here.sleep(60.0)
        stall.begin()
        began = here.now()
        # A controller that sees no changes does not end a machine that is in use.
        await here.submit("third", 1, **{"gpuscaler.io/run-for": "10m"})
        await here.submit("fourth")
        assert here.controller is not None
        oldest = 0.0
        while not (await here.bound())["fourth"]:
            await here.sleep(5.0)
            oldest = max(oldest, here.controller._picture.stale_for(asyncio.get_running_loop().time()))
            assert here.now() < began + 300.0

        assert 60.0 < oldest <= FRESH_PICTURE
        await here.sleep(120.0)
        assert await all_bound(here)


async def test_f09_a_pod_that_a_stalled_watch_does_not_show_keeps_its_machine() -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        await bought(here, 1)
        await here.kill()
        here.start()
        stall = Stall(here, "/pods")
        while not any(pod["status"].get("phase") == "Succeeded" for pod in await here.pods()):
            await here.sleep(1.0)
        await here.sleep(5.0)
        stall.begin()
        await here.submit("unseen")
        await here.sleep(600.0)

        (node,) = await here.nodes()
        assert (await here.bound())["unseen"] == node["metadata"]["name"]
        assert watch_of(here).ended == []
        assert taints(node) == set()


async def test_f10_after_an_expired_watch_10000_pods_are_listed_within_a_minute_in_bounded_memory() -> None:
    async with faulty(IDLE) as here:
        theirs = {**pod("x"), "status": {"phase": "Pending"}}
        theirs["spec"]["schedulerName"] = "theirs"
        names = [f"theirs-{number}" for number in range(10_000)]
        here.cluster.api.load({**theirs, "metadata": {"name": name, "namespace": "default"}} for name in names)
        await here.sleep(30.0)
        assert here.controller is not None
        assert here.network is not None
        picture = here.controller._picture
        reflector = next(reflector for reflector in picture.reflectors if reflector.resource.plural == "pods")
        sizes = []
        for time_over in range(3):
            lists, began = reflector.lists, time.process_time()
            # Only our watches break, and the history they would resume from is forgotten.
            here.network.cut()
            await here.submit(f"p{time_over}")
            await here.sleep(120.0)
            here.cluster.api.forget()
            here.network.mend()
            await here.sleep(60.0)
            assert time.process_time() - began < 60.0
            assert reflector.lists > lists
            pods = (await picture.take()).cluster.pods.values()
            assert sum(pod.namespace != "kube-system" for pod in pods) == 10_002 + time_over
            sizes.append(sys.getallocatedblocks())

        bound = await here.bound()
        assert all(bound[f"p{number}"] for number in range(3))
        assert sizes[-1] < 1.05 * sizes[0]


async def test_f44_a_revoked_cluster_permission_stops_only_the_acts_that_need_it() -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        await here.sleep(60.0)
        message = 'nodes "sim-00001" is forbidden: User "gpuscaler" cannot patch resource "nodes" in API group "" at the cluster scope'
        here.cluster.api.faults.add(Fault(method="PATCH", path=r"/nodes/[^/?]+\?", refusal=Failure(403, "Forbidden", message)))
        forbidden = here.now()
        await here.submit("second")
        await here.submit("third")
        await here.sleep(600.0)

        # Machines are bought once for the pending pods, and opening them is retried less and less often.
        assert len(here.cluster.core.history()) == 3
        assert any("cannot patch resource" in failure for failure in here.notes.failures)
        tried = [at for at, _ in watch_of(here).to("/nodes/", "PATCH") if at > forbidden]
        assert 5 <= len(tried) <= 30
        assert tried[-1] - tried[-6] >= 100.0
        here.cluster.api.faults.clear()
        await here.sleep(180.0)
        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 3


async def test_f44_a_forbidden_cloud_action_pauses_its_pool_for_minutes_and_is_reported() -> None:
    async with faulty(SPOT_FIRST) as here:
        buy, calls = here.cluster.provider.buy, []

        async def forbidden(_order: Order) -> BuyResult:
            calls.append(here.now())
            raise CloudError(UNAUTHORISED, "User: arn:aws:sts::1:role is not authorized to perform: ec2:CreateFleet")

        here.cluster.provider.buy = forbidden  # type: ignore[method-assign, assignment]
        await here.submit("p")
        await here.sleep(590.0)
        assert len(calls) == 1
        (breaker,) = (await status(here)).breakers
        assert "pool gpu: not permitted" in breaker.text
        assert "ec2:CreateFleet" in breaker.text
        here.cluster.provider.buy = buy  # type: ignore[method-assign]
        await here.sleep(200.0)

        assert await all_bound(here)
        assert markets(here) == ["spot"]


class Rival(Watch):
    """Adds a taint to a node right before ours is written: between our read and our write."""

    async def write(self, request: Request) -> None:
        await super().write(request)
        if request.method == "PATCH" and "/nodes/" in request.path:
            name = request.path.rpartition("/")[2]
            (node,) = [node for node in await self._here.nodes() if node["metadata"]["name"] == name]
            others = [taint for taint in node["spec"].get("taints") or () if taint["key"] != "theirs"]
            if len(others) == len(node["spec"].get("taints") or ()):
                patch = {"spec": {"taints": [*others, {"key": "theirs", "effect": "PreferNoSchedule"}]}}
                await self._here.user.merge_patch(NODES, name, patch)


async def test_f48_a_taint_that_another_client_adds_at_the_same_moment_stays() -> None:
    async with faulty(watch=Rival) as here:
        await here.submit("p")
        await here.sleep(120.0)

        assert await all_bound(here)
        (node,) = await here.nodes()
        assert "theirs" in {taint["key"] for taint in node["spec"].get("taints") or ()}
        assert taints(node) == set()
