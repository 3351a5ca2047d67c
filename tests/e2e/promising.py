"""Machines that become ready at about the same moment, the pods that they are promised to, and many other pods that want the same room."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from random import Random

from tests.e2e.delaying import late_scheduler
from tests.e2e.objects import pod
from tests.e2e.stage import CLOUD, Stage, free_port, stage, until
from tests.objects import Json

from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import NODES, PODS, PRIORITY_CLASSES
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.well_known import ARRIVING_TAINT

GPU = "nvidia.com/gpu"
#: All machines take equally long to boot, to within a second.
TOGETHER: Json = {**CLOUD, "device_plugin_delay": ["500ms", "600ms", "700ms"]}
POOL: Json = {"name": "b", "types": ["g5.48xlarge"], "idle_after": "10m"}
FIRST: Json = {"metadata": {"name": "first"}, "value": 1000, "preemptionPolicy": "Never"}


class Moments:
    """When nodes became ready with their GPUs, and when and where pods were bound, as seen by a watch.

    Nodes are keyed by name, pods by ``namespace/name``. ``waiting`` has the pods for which the scheduler found no node.
    """

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.bound: dict[str, tuple[float, str]] = {}
        self.waiting = set[str]()

    def hear(self, batch: Batch) -> None:
        now = asyncio.get_running_loop().time()
        for key, item in batch.changes.items():
            if isinstance(item, Node) and item.ready and item.allocatable.get(GPU):
                self.ready.setdefault(item.name, now)
            elif isinstance(item, Pod) and item.node_name:
                self.bound.setdefault(key, (now, item.node_name))
            elif isinstance(item, Pod) and item.unschedulable:
                self.waiting.add(key)

    def waits(self, pods: Mapping[str, int]) -> list[float]:
        """For each pod, the seconds from its machine being ready to the pod being bound, shortest first."""
        bound = (self.bound[name] for name in pods if name in self.bound)
        return sorted(max(0.0, at - self.ready.get(node, at)) for at, node in bound)


def overfull(nodes: list[Json], pods: list[Json]) -> list[str]:
    """Nodes whose bound pods request more GPUs than the node has, not counting rejected pods."""
    used = Counter[str]()
    for bound in pods:
        if bound["status"].get("phase") != "Failed":
            requests = (container.get("resources", {}).get("limits", {}).get(GPU, "0") for container in bound["spec"]["containers"])
            used[bound["spec"].get("nodeName", "")] += sum(map(int, requests))
    has = {node["metadata"]["name"]: int(node["status"].get("allocatable", {}).get(GPU, "0")) for node in nodes}
    return sorted(node for node, many in used.items() if many > has.get(node, many))


@asynccontextmanager
async def watched(made: Stage) -> AsyncIterator[Moments]:
    moments = Moments()
    picture = Picture(made.admin, clock=asyncio.get_running_loop().time, random=Random(1), resources=(PODS, NODES))
    picture.listen(moments.hear)
    listening = asyncio.create_task(picture.run())
    try:
        yield moments
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@dataclass(frozen=True)
class Promised:
    """The outcome for ``pods`` that ``machines`` were promised to.

    ``apart`` is the number of seconds between the first and the last machine being ready, and ``late`` the number of seconds from the last
    machine being ready until all pods were bound. ``waits`` has the seconds that each pod waited once its machine was ready. ``overfull``
    lists nodes that more was bound to than they have.
    """

    machines: int
    pods: int
    apart: float
    late: float
    waits: list[float]
    overfull: list[str]
    moved: list[str]
    failed: int

    def __str__(self) -> str:
        p50, p99 = (self.waits[min(len(self.waits) - 1, int(share * len(self.waits)))] for share in (0.5, 0.99))
        return (
            f"{len(self.waits)} of {self.pods} pods on {self.machines} machines that became ready within {self.apart:.1f} s: bound "
            f"{p50:.2f} s after their machine was ready (p50), {p99:.2f} s (p99); all were bound {self.late:.1f} s after the last machine "
            f"was ready; {len(self.overfull)} nodes overfull, {self.failed} pods rejected"
        )


async def promised(
    name: str, *, machines: int = 10, rivals: int = 0, gpus: int = 1, deaf: float = 0.0, margin: float | None = None, boot: float = 8.0
) -> Promised:
    """Create two pods for each of the ``machines``, beside ``rivals`` other pods that request ``gpus`` GPUs each.

    The scheduler's watch of pods lags by ``deaf`` seconds. ``margin`` replaces the number of seconds that the controller gives the
    scheduler before a machine opens.
    """
    cloud = {**TOGETHER, "boot": [f"{boot}s", f"{boot}s", f"{boot + 1}s"]}
    async with stage(name) as made, made.kubelets(), watched(made) as moments, late_scheduler(made, deaf) if deaf else nullcontext():
        await made.install()
        await made.admin.create(PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **FIRST})
        await made.namespace("b")
        names = {f"b/p{number}": 3 if number % 2 else 5 for number in range(2 * machines)}
        for key, many in names.items():
            made_pod = pod(key.partition("/")[2], "b", gpus=many)
            made_pod["spec"]["priorityClassName"] = "first"
            await made.create(made_pod, "b")
        for number in range(rivals):
            await made.create(pod(f"rival{number}", "b", gpus=gpus), "b")

        async def waiting() -> bool:
            return names.keys() <= moments.waiting

        # All pods must be planned at once. Otherwise two pods of 3 GPUs might share a machine, which leaves no room for one of 5.
        await until("the scheduler has found no room for the pods of high priority", waiting, 120.0)
        port = free_port()
        run_file = made.run_file("run", [{**POOL, "max": machines}], cloud=cloud, port=port)
        changed = "" if margin is None else f"from gpuscaler.lifecycle.steering import binding; binding.MARGIN_SECONDS = {margin}"
        made.start(run_file, await made.kubeconfig(), port=port, changed=changed)

        async def ready() -> bool:
            return len(moments.ready) >= machines

        async def bound() -> bool:
            return names.keys() <= moments.bound.keys()

        async def opened() -> bool:
            return not any(taint["key"] == ARRIVING_TAINT for node in await made.listed(NODES) for taint in node["spec"].get("taints", ()))

        await until("all machines show their GPUs", ready, 180.0)
        last = max(moments.ready.values())
        await until("all promised pods are bound", bound, 120.0)
        await until("all machines are open", opened, 120.0)
        await asyncio.sleep(3.0 + 2 * deaf)

        pods = await made.pods("b")
        where = {f"b/{pod['metadata']['name']}": pod["spec"].get("nodeName", "") for pod in pods}
        return Promised(
            machines,
            len(names),
            last - min(moments.ready.values()),
            max(moments.bound[key][0] for key in names) - last,
            moments.waits(names),
            overfull(await made.listed(NODES), await made.listed(PODS)),
            sorted(key for key in names if where.get(key) != moments.bound[key][1]),
            sum(pod["status"].get("phase") == "Failed" for pod in pods),
        )
