"""Faults around the controller, each while its own workload starts. Nothing may be bought twice, and no machine may be left over."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from tests.e2e.cutting import Wire
from tests.e2e.objects import deployment, job, pod_spec
from tests.e2e.stage import NAMESPACE, Controller, Json, Stage, until

from gpuscaler.control.records.status.reporting import KEY
from gpuscaler.embedded.controlplane.building import API_SERVER, ETCD
from gpuscaler.kube.resources import CONFIG_MAPS, LEASES, NODES
from gpuscaler.model.well_known import ARRIVING_TAINT

#: Pods of each workload. Each pod fills a machine.
PODS = 2
#: Number of controllers that run at a time, except for short periods.
SEVERAL = 2
STATE, STATUS = "gpuscaler-state", "gpuscaler-status"
#: Content that a person writes over the saved state, and the beginning and end of the message that reports it.
SPOILT = b64encode(b"a person was here").decode()
UNREADABLE = (
    f"ConfigMap {NAMESPACE}/{STATE}: saw a memory that cannot be read (",
    "nothing is bought or removed; restore the ConfigMap, or delete it once every machine that the cloud lists is a node",
)


@dataclass
class Broken:
    """What a fault may break: the ``stage`` and the ``wire`` between it and two controllers. It can start further controllers."""

    stage: Stage
    wire: Wire
    run_file: Path
    kubeconfig: Path

    def start(self) -> Controller:
        return self.stage.start(self.run_file, self.kubeconfig)

    def ordered(self, name: str) -> list[Json]:
        """The purchases for a pool, by any controller."""
        return [line for controller in self.stage.controllers for line in controller.logged("ordered", pool=name)]

    def kill(self) -> None:
        """Kill all controllers."""
        for controller in self.stage.controllers:
            controller.kill()

    async def spoil(self, memory: str = SPOILT) -> str:
        """Overwrite the saved state; returns its previous content."""
        state = await self.stage.state(STATE)
        assert state is not None
        await self.stage.admin.merge_patch(CONFIG_MAPS, STATE, {"binaryData": {"memory": memory}}, namespace=NAMESPACE)
        before: str = state["binaryData"]["memory"]
        return before

    async def waits(self) -> None:
        """Start controllers that find an unreadable state, and wait until the leader reports it in its log and in the status.

        Then kill the leader, and wait until the next leader reports it too.
        """
        for _ in range(SEVERAL):
            self.start()
        (await self._says()).kill()
        await self._says()
        self.start()

    async def _says(self) -> Controller:
        leader = await self.leader()

        async def reported() -> bool:
            leader.check()
            status = await self.stage.state(STATUS) or {"data": {}}
            return all(all(words in text for words in UNREADABLE) for text in (leader.log.read_text(), status["data"].get(KEY, "")))

        await until("the unreadable state is reported", reported)
        return leader

    async def leader(self) -> Controller:
        """The running controller that leads."""

        async def observed() -> Controller | None:
            for controller in self.stage.controllers:
                messages = [line["message"] for line in controller.lines() if "lead" in line["message"]]
                if controller.process.poll() is None and messages and messages[-1] == "this process leads":
                    return controller
            return None

        leading: Controller = await until("a controller leads", observed)
        return leading

    async def submit(self, name: str) -> None:
        await self.stage.create(deployment("serve", PODS, pod_spec(name)), name)

    async def asked(self, name: str) -> None:
        """Wait until machines are ordered."""

        async def observed() -> bool:
            return bool(self.ordered(name))

        await until(f"machines for {name} are ordered", observed)

    async def nodes(self, name: str) -> set[str]:
        return {node["metadata"]["name"] for node in await self.stage.nodes(name)}

    async def settles(self, name: str) -> None:
        """Check that the pods run on exactly the machines that they need, and that the machines go when the pods are gone."""
        await self.stage.bound(name, PODS)
        assert len(await self.stage.nodes(name)) == PODS
        assert len(self.ordered(name)) == 1, "nothing is bought twice"
        await self.stage.scale("Deployment", "serve", name, 0)
        await self.stage.empty(name)


async def api_server_restarted(broken: Broken, name: str) -> None:
    await broken.submit(name)
    await broken.asked(name)
    await broken.stage.plane.restart(API_SERVER)
    await broken.settles(name)


async def etcd_slow(broken: Broken, name: str) -> None:
    async with pulses(broken.stage):
        await broken.submit(name)
        await broken.stage.bound(name, PODS)
    await broken.settles(name)


@asynccontextmanager
async def pulses(stage: Stage) -> AsyncIterator[None]:
    """Pause etcd for 0.7 s of every 1.2 s."""
    etcd = stage.plane.processes[ETCD]

    async def beat() -> None:
        try:
            while True:
                etcd.pause()
                await asyncio.sleep(0.7)
                etcd.go_on()
                await asyncio.sleep(0.5)
        finally:
            etcd.go_on()

    life = asyncio.create_task(beat())
    try:
        yield
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def watches_cut(broken: Broken, name: str) -> None:
    cut = broken.wire.cut()
    await broken.submit(name)
    for _ in range(4):
        await asyncio.sleep(0.8)
        cut += broken.wire.cut()
    assert cut > 5, "watches were cut"
    await broken.settles(name)


async def clock_ahead(broken: Broken, name: str) -> None:
    """The clocks of this pool's kubelets are an hour ahead, and so are the times in the conditions of its nodes."""
    stage = broken.stage

    def ours(node: object) -> bool:
        return getattr(node, "labels", {}).get("gpuscaler.io/pool") == name

    async with stage.kubelets(ours, ahead=3600.0):
        await stage.create(job("train", PODS, pod_spec(name), run_for="3s"), name)
        nodes = await until("nodes", lambda: stage.nodes(name))
        ahead = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for node in nodes:
            ready = [{**condition, "lastHeartbeatTime": ahead, "lastTransitionTime": ahead} for condition in node["status"]["conditions"]]
            await stage.admin.merge_patch(NODES, node["metadata"]["name"], {"status": {"conditions": ready}}, subresource="status")
        await stage.done("train", name, PODS)
        await stage.empty(name)
    assert len(broken.ordered(name)) == 1


async def memory_edited(broken: Broken, name: str) -> None:
    """Edits of the ConfigMap do not stop the leader, which remembers the state. It writes an unreadable state again."""
    leader = await broken.leader()
    await broken.submit(name)
    await broken.asked(name)
    patch = {"metadata": {"labels": {"edited": "by-hand"}}, "data": {"note": "a person was here"}}
    await broken.stage.admin.merge_patch(CONFIG_MAPS, STATE, patch, namespace=NAMESPACE)
    await broken.stage.bound(name, PODS)
    await broken.spoil()
    await broken.settles(name)
    assert await broken.leader() is leader
    assert UNREADABLE[0] in leader.log.read_text(), "the unreadable state is reported"
    assert (await broken.stage.state(STATE) or {})["binaryData"]["memory"] != SPOILT


async def memory_put_back(broken: Broken, name: str) -> None:
    """No controller is left that remembers the state while machines are starting: none opens, and none is bought instead."""
    stage = broken.stage
    await broken.submit(name)
    await broken.asked(name)
    broken.kill()
    before = await broken.spoil()
    await broken.waits()

    async def arrived() -> bool:
        return len(await stage.nodes(name)) == PODS

    await until("the machines are nodes", arrived)
    assert not any(pod["spec"].get("nodeName") for pod in await stage.pods(name))
    assert len(broken.ordered(name)) == 1
    await broken.spoil(before)
    await broken.settles(name)


async def memory_replaced(broken: Broken, name: str) -> None:
    """No controller is left that remembers the state, and all machines are open nodes.

    The machines are not removed though they are idle. Once the ConfigMap is deleted, they serve as before.
    """
    stage = broken.stage
    await broken.submit(name)
    await stage.bound(name, PODS)
    there = await broken.nodes(name)

    async def opened() -> bool:
        return not any(taint["key"] == ARRIVING_TAINT for node in await stage.nodes(name) for taint in node["spec"].get("taints", ()))

    # Pods already run on closed machines, and without the saved state no controller would open those.
    await until("the machines are open", opened)
    broken.kill()
    await broken.spoil()
    await stage.scale("Deployment", "serve", name, 0)
    await broken.waits()
    assert await broken.nodes(name) == there
    await stage.scale("Deployment", "serve", name, PODS + 1)
    assert set((await stage.bound(name, PODS)).values()) == there
    assert len(broken.ordered(name)) == 1
    await stage.admin.delete(CONFIG_MAPS, STATE, namespace=NAMESPACE)
    await stage.bound(name, PODS + 1)
    assert await broken.nodes(name) > there
    assert [len(await broken.nodes(name)), len(broken.ordered(name))] == [PODS + 1, 2]
    await stage.scale("Deployment", "serve", name, 0)
    await stage.empty(name)


async def objects_deleted(broken: Broken, name: str) -> None:
    await broken.submit(name)
    await broken.stage.bound(name, PODS)
    for resource, obj_name in ((CONFIG_MAPS, STATE), (CONFIG_MAPS, STATUS), (LEASES, "gpuscaler")):
        await broken.stage.admin.delete(resource, obj_name, namespace=NAMESPACE)
    await broken.settles(name)
    for obj_name in (STATE, STATUS):
        await until(f"{obj_name} is written again", partial(broken.stage.state, obj_name))


async def leader_killed(broken: Broken, name: str) -> None:
    leader = await broken.leader()
    await broken.submit(name)
    await broken.asked(name)
    leader.kill()
    assert await broken.leader() is not leader
    await broken.settles(name)


async def two_controllers(broken: Broken, name: str) -> None:
    """Of several controllers, only the leader acts."""
    broken.start()
    leader = await broken.leader()
    await broken.submit(name)
    await broken.settles(name)
    acted = [controller for controller in broken.stage.controllers if controller.logged("ordered", "opened", "ending", pool=name)]
    assert acted == [leader]


Fault = Callable[[Broken, str], Awaitable[None]]
#: Each fault by its description, in the order in which they happen.
FAULTS: dict[str, Fault] = {
    "the API server is killed and comes back while machines are starting": api_server_restarted,
    "etcd is paused for most of the time": etcd_slow,
    "all connections are cut again and again": watches_cut,
    "the clocks of nodes are an hour ahead": clock_ahead,
    "a person edits the saved state and then makes it unreadable": memory_edited,
    "a person makes the saved state unreadable while no controller runs, and restores it": memory_put_back,
    "a person makes the saved state unreadable while no controller runs, and deletes it": memory_replaced,
    "a person deletes the saved state, the status and the lease": objects_deleted,
    "the leader is killed while machines are starting": leader_killed,
    "several controllers run at once": two_controllers,
}
#: The fault whose nodes need kubelets with a different clock.
AHEAD = "the clocks of nodes are an hour ahead"
