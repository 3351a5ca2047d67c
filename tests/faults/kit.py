"""A world in which something breaks, and in which the invariants are checked all the time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.control import replicas
from tests.control.records.test_service import running_service
from tests.control.replicas import ReplicaPair, pair
from tests.control.world import ONE_GPU_MACHINES, World, world
from tests.faults.guarding import LIMITS, Watch, guarded

from gpuscaler.clouds.protocol import BuyResult, Order, Refusal
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.service import Service
from gpuscaler.control.records.status.status import Process, Status, status_of
from gpuscaler.kube.resources import NODES
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.plans import Plan

FILE = replicas.FILE + LIMITS
IDLE = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"
SPOT_FIRST = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g5.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a, us-east-1b]
"""


def watch_of(here: World) -> Watch:
    assert isinstance(here.watchman, Watch)
    return here.watchman


@asynccontextmanager
async def faulty(pools: str = ONE_GPU_MACHINES, *, watch: Callable[[World], Watch] = Watch, **more: Any) -> AsyncIterator[World]:
    """A world with limits, foreign objects and a controller that has observed it, in which all invariants are checked."""
    async with world(pools if "limits:" in pools else LIMITS + pools, **more) as here, guarded(here, watch(here)):
        here.start()
        await here.sleep(2.0)
        yield here


@asynccontextmanager
async def recorded(pools: str = ONE_GPU_MACHINES, **more: Any) -> AsyncIterator[tuple[World, Service]]:
    """The same world, with full recording; the watch starts fresh."""
    async with running_service(LIMITS + pools, **more) as (here, service), guarded(here, Watch(here)):
        await here.kill()
        here.start()
        service.led_by(here.controller)
        await here.sleep(2.0)
        yield here, service


@asynccontextmanager
async def replicated(folder: Path, **more: Any) -> AsyncIterator[ReplicaPair]:
    """The same world, with two replicas, whose clocks are minutes apart, instead of one controller."""
    async with pair(folder, text=FILE, **more) as here, guarded(here.here, Watch(here.here)):
        yield here


@asynccontextmanager
async def cloud_outage(here: World, why: str = "the cloud is down") -> AsyncIterator[None]:
    """Block all calls to the cloud within this context."""
    watch = watch_of(here)
    here.cluster.provider.outage, watch.dark = why, here.now()
    yield
    here.cluster.provider.outage, watch.dark = "", None


def refusing(here: World, why: Callable[[OfferingKey], Refusal | None]) -> list[Order]:
    """Make the cloud refuse the offerings for which ``why`` returns a reason, and return the list that its orders are added to."""
    buy, asked = here.cluster.provider.buy, list[Order]()

    async def some(order: Order) -> BuyResult:
        asked.append(order)
        refusals = {key: refusal for key in order.offerings if (refusal := why(key)) is not None}
        left = tuple(key for key in order.offerings if key not in refusals)
        granted = await buy(msgspec.structs.replace(order, offerings=left)) if left else BuyResult()
        return msgspec.structs.replace(granted, refusals=(*refusals.values(), *granted.refusals))

    here.cluster.provider.buy = some  # type: ignore[method-assign]
    return asked


async def bought(here: World, count: int, *, within: float = 900.0) -> None:
    """Wait until so many machines have been bought."""
    until = here.now() + within
    while len(here.cluster.core.history()) < count:
        assert here.now() < until, f"{len(here.cluster.core.history())} machines were bought within {within:g} s, expected {count}"
        await here.sleep(0.5)


async def all_bound(here: World) -> bool:
    return all((await here.bound()).values())


async def set_ready(here: World, name: str, ready: str) -> None:
    """Set the Ready condition of a node as its kubelet would; the node controller's taints follow."""
    node = msgspec.json.decode(await here.user.get(NODES, name))
    others = [taint for taint in node["spec"].get("taints") or () if not taint["key"].startswith("node.kubernetes.io/")]
    theirs = [] if ready == "True" else [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
    await here.user.merge_patch(NODES, name, {"spec": {"taints": [*others, *theirs] or None}})
    node = msgspec.json.decode(await here.user.get(NODES, name))
    node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    await here.user.replace(NODES, name, node, subresource="status")


async def latest(here: World) -> Latest:
    """Return the controller's latest state."""
    assert here.controller is not None
    taken = await here.controller._picture.take()
    return Latest(
        taken.cluster,
        here.controller.memory,
        here.notes.last or Plan(),
        here.policy,
        unpooled=here.notes.unpooled,
        unlisted=here.notes.unlisted,
    )


async def status(here: World, leader: Process | None = None) -> Status:
    """Return what `gpuscaler status` would show with ``leader`` as the leader."""
    assert here.controller is not None
    return status_of(await latest(here), leader or Process(), troubles=[here.controller.cloud.trouble], happened=(), now=here.now())


def taints(node: dict[str, Any]) -> set[str]:
    """Return the keys of the taints that keep pods away."""
    return {taint["key"] for taint in node["spec"].get("taints") or () if taint["effect"] != "PreferNoSchedule"}


def markets(here: World) -> list[str]:
    """Return the markets of all machines ever bought, in their order."""
    return [machine.offering.market for machine in here.cluster.core.history()]
