"""A cheaper machine replaces a more expensive one: pods are evicted only after the replacement is open."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.control.world import CallObserver, World, world
from tests.objects import pod, workload

from gpuscaler.kube.resources import PODS, REPLICA_SETS
from gpuscaler.kube.transport import Request
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import ARRIVING_TAINT, LEAVING_TAINT
from gpuscaler.simulation.cloud.markets import Markets, Steps

BOTH = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a]
    idle_after: 2m
"""
SPOT = OfferingKey("gpu", "spot", "g4dn.xlarge", "us-east-1a")
DEAR = "sim-00001"


def without_spot(policy: Policy) -> Policy:
    pools = (msgspec.structs.replace(pool, offerings=tuple(o for o in pool.offerings if o.market != "spot")) for pool in policy.pools)
    return msgspec.structs.replace(policy, pools=tuple(pools))


class EvictionLog(CallObserver):
    """Records which nodes were open and showed GPUs at each eviction."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.open: list[set[str]] = []

    async def write(self, request: Request) -> None:
        if request.path.endswith("/eviction") and "/namespaces/default/" in request.path:
            self.open.append({node["metadata"]["name"] for node in await self.here.nodes() if is_open(node)})


def is_open(node: dict[str, Any]) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    return not taints & {ARRIVING_TAINT, LEAVING_TAINT} and "nvidia.com/gpu" in node["status"]["allocatable"]


async def serve(here: World, replicas: int = 1) -> None:
    """Create a ReplicaSet with pods that state their restart cost."""
    body = workload("ReplicaSet", "web", pod("web", 1, {"gpuscaler.io/restart-cost": "1m"}), replicas=replicas)
    await here.user.create(REPLICA_SETS, body, namespace="default")


async def nodes_of_pods(here: World) -> list[str]:
    """The nodes of the running pods."""
    return list((await here.bound()).values())


@asynccontextmanager
async def on_demand(**more: Any) -> AsyncIterator[tuple[World, EvictionLog]]:
    """A pod on an on-demand machine, at the moment when spot becomes available."""
    async with world(BOTH, **more) as here:
        full, here.policy = here.policy, without_spot(here.policy)
        here.watchman = evictions = EvictionLog(here)
        here.start()
        await serve(here)
        await here.sleep(300.0)
        assert await nodes_of_pods(here) == [DEAR]
        assert here.controller is not None
        here.policy = full
        here.controller.set_policy(full)
        yield here, evictions


def markets(here: World) -> list[str]:
    return [machine.offering.market for machine in here.cluster.core.history()]


async def until_ordered(here: World) -> None:
    for _ in range(200):
        await here.sleep(1.0)
        if len(markets(here)) == 2:
            return
    raise AssertionError("nothing was bought")


async def test_the_replacement_of_a_machine_is_open_before_the_first_eviction() -> None:
    async with on_demand() as (here, evictions):
        await here.sleep(400.0)

        assert markets(here) == ["on-demand", "spot"]
        assert await nodes_of_pods(here) == ["sim-00002"]
        assert evictions.open == [{"sim-00002"}]
        assert [machine.id for machine in here.cluster.core.list()] == ["sim-00002"]
        assert [node["metadata"]["name"] for node in await here.nodes()] == ["sim-00002"]


@pytest.mark.parametrize("after", [1.0, 8.0, 20.0, 30.0, 45.0, 60.0])
async def test_a_replacement_continues_after_the_controller_dies_in_the_middle(after: float) -> None:
    async with on_demand() as (here, evictions):
        await until_ordered(here)
        await here.sleep(after)
        await here.kill()
        await here.sleep(7.0)
        here.start()
        await here.sleep(400.0)

        assert markets(here) == ["on-demand", "spot"]
        assert await nodes_of_pods(here) == ["sim-00002"]
        assert all("sim-00002" in seen for seen in evictions.open)
        assert [machine.id for machine in here.cluster.core.list()] == ["sim-00002"]


async def test_if_the_replacement_is_refused_the_old_machine_reopens_without_evictions() -> None:
    async with on_demand(markets=Markets({SPOT: Steps((0.0,), (0.0,))})) as (here, evictions):
        await here.sleep(100.0)

        assert here.notes.orders[-1].offerings[0] == SPOT
        assert here.notes.kept == [(DEAR, "the replacement machine did not become ready in time")]
        (node,) = await here.nodes()
        assert is_open(node)
        assert await nodes_of_pods(here) == [DEAR]
        assert evictions.open == []


async def test_if_the_replacement_is_lost_before_it_opens_the_old_machine_reopens() -> None:
    async with on_demand() as (here, evictions):
        await until_ordered(here)
        assert not is_open((await here.nodes())[0])
        await here.cluster.provider.remove(["simulated:///us-east-1a/sim-00002"])
        await here.sleep(90.0)

        assert here.notes.kept == [(DEAR, "the replacement machine did not become ready in time")]
        assert evictions.open == []
        assert await nodes_of_pods(here) == [DEAR]


async def test_a_pod_that_may_no_longer_be_moved_keeps_its_machine() -> None:
    async with on_demand() as (here, evictions):
        await until_ordered(here)
        patch = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
        (name,) = await here.bound()
        await here.user.merge_patch(PODS, name, patch, namespace="default")
        await here.sleep(200.0)

        assert [node for node, _ in here.notes.kept] == [DEAR]
        assert "karpenter.sh/do-not-disrupt" in here.notes.kept[0][1]
        assert evictions.open == []
        assert await nodes_of_pods(here) == [DEAR]


async def test_if_all_pods_finish_while_the_replacement_boots_the_old_machine_is_removed_without_evictions() -> None:
    async with on_demand() as (here, evictions):
        await until_ordered(here)
        (name,) = await here.bound()
        await here.user.delete(PODS, name, namespace="default", grace=0)
        await here.sleep(300.0)

        assert evictions.open == []
        assert await nodes_of_pods(here) == ["sim-00002"]
        assert [machine.id for machine in here.cluster.core.list()] == ["sim-00002"]
