"""A machine that is removed with pods on it: its workloads and its blockers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests import objects
from tests.control.test_replacing import BOTH, without_spot
from tests.control.world import CallObserver, World, world

from gpuscaler.kube.resources import DAEMON_SETS, POD_DISRUPTION_BUDGETS, REPLICA_SETS, Resource
from gpuscaler.kube.transport import Request
from gpuscaler.model.well_known import EXCLUDE_LABEL, LEAVING_TAINT

#: A part of the paths of users' pods that paths of device plugins do not have.
USERS = "/namespaces/default/"
#: The first machine of a world, which is replaced by a cheaper one.
DEAR = "sim-00001"
CHEAP_RESTART = {"gpuscaler.io/restart-cost": "1m"}
LARGE = BOTH.replace("g4dn.xlarge", "g4dn.12xlarge")


class WriteLog(CallObserver):
    """Records the writes to nodes and pods, in order."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()

    async def write(self, request: Request) -> None:
        self.requests.append(request)
        self.arrived.set()

    def evictions(self) -> list[Request]:
        """Evictions of users' pods; pods of device plugins are evicted as well, last."""
        return [request for request in self.requests if request.path.endswith("/eviction") and USERS in request.path]

    def evicted(self) -> list[str]:
        """The names of pods with requested evictions, in order, including repetitions."""
        return [request.path.split("/")[-2] for request in self.evictions()]

    def graces(self) -> list[int | None]:
        """The grace period of each eviction, None for the pod's own."""
        bodies = (msgspec.json.decode(request.body) for request in self.evictions())
        return [body["deleteOptions"].get("gracePeriodSeconds") for body in bodies]

    def deleted(self, what: str) -> list[str]:
        """The names of pods or nodes that were deleted."""
        return [request.path.split("/")[-1] for request in self.requests if request.method == "DELETE" and f"/{what}/" in request.path]

    async def until_evicted(self, number: int = 1) -> None:
        while len(self.evicted()) < number:
            self.arrived.clear()
            await self.arrived.wait()


async def run(
    here: World,
    name: str,
    replicas: int = 1,
    *,
    gpus: int = 1,
    annotations: Mapping[str, str] = CHEAP_RESTART,
    resource: Resource = REPLICA_SETS,
    **more: Any,
) -> None:
    """A ReplicaSet, or a workload of another kind, with pods that are cheap to restart."""
    counted = {} if resource is DAEMON_SETS else {"replicas": replicas}
    made = objects.workload(resource.kind, name, objects.pod(name, gpus, annotations, **more), **counted)
    await here.user.create(resource, made, namespace="default")


async def budget(here: World, app: str, name: str = "", **spec: Any) -> None:
    await here.user.create(POD_DISRUPTION_BUDGETS, objects.budget(name or app, app, **spec), namespace="default")


@asynccontextmanager
async def workloads_on_expensive_machine(
    *workloads: Mapping[str, Any], pools: str = BOTH, **more: Any
) -> AsyncIterator[tuple[World, WriteLog]]:
    """``workloads`` on one on-demand machine, at the moment when spot becomes available."""
    async with world(pools, **more) as here:
        full, here.policy = here.policy, without_spot(here.policy)
        here.watchman = writes = WriteLog()
        here.start()
        await here.sleep(2.0)
        first, *others = workloads or ({"name": "web"},)
        await run(here, **first)
        await here.sleep(160.0)
        for workload in others:
            await run(here, **workload)
        await here.sleep(20.0)
        assert {node for name, node in (await here.bound()).items()} == {DEAR}
        assert here.controller is not None
        here.policy = full
        here.controller.set_policy(full)
        yield here, writes


async def is_marked(here: World, name: str = DEAR) -> bool:
    return any(LEAVING_TAINT in taints(node) for node in await here.nodes() if node["metadata"]["name"] == name)


def taints(node: Mapping[str, Any]) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints") or ()}


async def is_as_before(here: World, name: str = DEAR) -> bool:
    """Whether a node exists without any mark of gpuscaler."""
    nodes = [node for node in await here.nodes() if node["metadata"]["name"] == name]
    return bool(nodes) and LEAVING_TAINT not in taints(nodes[0]) and EXCLUDE_LABEL not in nodes[0]["metadata"].get("labels", {})


async def names(here: World) -> list[str]:
    return [node["metadata"]["name"] for node in await here.nodes()]
