"""Random workloads on a real scheduler: do planned pods come to run where the plan put them, and without a second purchase?"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

from tests.e2e.objects import Json, pod
from tests.e2e.rights import Installed, Right
from tests.e2e.stage import CLOUD, Controller, Stage, free_port, stage, until
from tests.e2e.storage import claim, provisioner

from gpuscaler.kube.errors import ApiError
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PODS, PRIORITY_CLASSES
from gpuscaler.model.pods import Pod
from gpuscaler.planning.keeping import ARRIVING_TAINT

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
POOL: Json = {
    "types": ["g4dn.xlarge", "g4dn.12xlarge", "g5.12xlarge", "g5.48xlarge"],
    "zones": ["us-east-1a", "us-east-1b"],
    "idle_after": "10m",
}
KINDS = ("plain", "plain", "spread", "apart", "gang", "volume", "urgent")
#: So many workloads are under way at once, and so many are played in one cluster: their machines stay.
ABREAST, TOGETHER = 10, 25
#: Of each workload's pool, so many pods at most that need no GPU.
UNRELATED = 2
#: One nomination is taken away about every so many seconds, where there is one.
CLEARING = 4.0
#: The scheduler and the controller have so many seconds for each workload once its machines could be there.
BINDING = 150.0


@dataclass
class Tally:
    """Pods that were planned and those that run, purchases after the first machine of a workload opened, and what became of promises.

    ``meant`` and ``came`` are planned pods that were nominated, and those of them that run where they were nominated to last; ``first`` run
    where they were nominated to first. ``unnamed`` were bound before anybody nominated them, to room that others left. ``cleared`` is how
    often somebody else took a nomination away. ``kept``, ``stray`` and ``broken`` are what the controller itself counts, of unrelated pods
    too.
    """

    planned: int = 0
    bound: int = 0
    further: int = 0
    meant: int = 0
    came: int = 0
    first: int = 0
    unnamed: int = 0
    cleared: int = 0
    kept: int = 0
    stray: int = 0
    broken: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __str__(self) -> str:
        counted = self.kept + self.stray + self.broken
        shares = f"{self.came / max(1, self.meant):.1%}", f"{self.kept / max(1, counted):.1%}"
        return (
            f"{self.bound} of {self.planned} planned pods bound, {self.further} further purchases; {self.came} of {self.meant} on the "
            f"machine that was promised ({shares[0]}), {self.first} on the first that was, {self.unnamed} on others before they were "
            f"promised one; as the controller counts, {self.kept} of {counted} promises kept ({shares[1]}), {self.broken} that filters "
            f"kept away; {self.cleared} nominations taken away"
        )


class Nominations:
    """What pods were nominated to last, and first, before they were bound, and those that are nominated ``now``, by ``namespace/name``."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.first: dict[str, str] = {}
        self.now: dict[str, str] = {}

    def hear(self, batch: Batch) -> None:
        for key, one in batch.changes.items():
            self.now.pop(key, None)
            # The scheduler itself nominates those that wait for a disk, to the node that it has chosen.
            if isinstance(one, Pod) and one.nominated_node and not one.node_name and not one.spec.volumes:
                self.nodes[key] = self.now[key] = one.nominated_node
                self.first.setdefault(key, one.nominated_node)

    async def clear(self, made: Stage, dice: Random, found: Tally) -> None:
        """Take a nomination away now and then, as somebody else may."""
        while True:
            await asyncio.sleep(dice.uniform(0, 2 * CLEARING))
            if self.now:
                namespace, name = dice.choice(sorted(self.now)).split("/")
                patch: Json = {"status": {"nominatedNodeName": None}}
                with suppress(ApiError):
                    await made.admin.merge_patch(PODS, name, patch, namespace=namespace, subresource="status")
                    found.cleared += 1


def workload(dice: Random, pool: str) -> tuple[list[Json], list[Json]]:
    """Pods, and claims, that somebody submits at once."""
    kind = dice.choice(KINDS)
    sizes = [dice.choice((1, 1, 1, 2, 3, 4, 5, 8)) for _ in range(dice.randint(2, 8))]
    pods = [pod(f"p{number}", pool, gpus=gpus) for number, gpus in enumerate(sizes)]
    claims = []
    for number, one in enumerate(pods):
        one["metadata"]["labels"] = {"app": pool}
        match kind:
            case "spread":
                rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                one["spec"]["topologySpreadConstraints"] = [{**rule, "labelSelector": {"matchLabels": {"app": pool}}}]
            case "apart" if number < 3:
                one["metadata"]["labels"]["keeps"] = "apart"
                term = {"labelSelector": {"matchLabels": {"keeps": "apart"}}, "topologyKey": HOST}
                one["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            case "gang":
                one["metadata"]["annotations"] = {"gpuscaler.io/gang": "all", "gpuscaler.io/gang-size": str(len(pods))}
            case "volume" if number == 0:
                claims.append(claim("data"))
                one["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
            case "urgent" if number % 2:
                one["spec"]["priorityClassName"] = "urgent"
    return pods, claims


async def measure_all(workloads: int, *, seed: int, apart: float, steered: bool = True, restart: bool = False) -> Tally:
    """As :func:`measure`, in as many clusters as it takes, one after the other."""
    found = Tally()
    for number in range(0, workloads, TOGETHER):
        together, dice = min(TOGETHER, workloads - number), seed + number // TOGETHER
        found += (one := await measure(together, seed=dice, apart=apart, steered=steered, restart=restart))
        print(f"workloads {number} to {min(number + TOGETHER, workloads)}: {one}", flush=True)
    return found


async def measure(
    workloads: int,
    *,
    seed: int,
    apart: float,
    steered: bool = True,
    restart: bool = False,
    steering: str = "nominate",
    grant: Callable[[Stage], Awaitable[None]] | None = None,
) -> Tally:
    """Play so many workloads, some at a time, whose machines become Ready in any order, up to ``apart`` seconds apart.

    Without ``steered`` machines arrive open and nobody is nominated. ``restart``: the controller is killed half-way. ``grant`` gives the
    controller what ``steering`` needs beside its usual rights.
    """
    found = Tally()
    name = f"{'' if steered else 'un'}steered-{seed}"
    async with stage(name) as made, made.kubelets(), provisioner(made.admin), installed(made), unsteered(made, really=not steered):
        # They come first, and do not drive out others: pods that nobody makes again would be gone.
        urgent = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"}
        await made.admin.create(PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **urgent})
        if grant is not None:
            await grant(made)
        port = free_port()
        pools = [{"name": f"s{number}", **POOL} for number in range(workloads)]
        cloud = {**CLOUD, "boot": ["0s", f"{apart / 2}s", f"{apart}s"]}
        history = {"folder": str(made.folder / "history"), "decisions": 10_000, "bytes": "1Gi"}
        run_file = made.run_file("run", pools, cloud=cloud, port=port, history=history, steering=steering)
        kubeconfig = await made.kubeconfig()
        made.start(run_file, kubeconfig, port=port)
        slots = asyncio.Semaphore(ABREAST)
        heard = Nominations()
        picture = Picture(made.admin, clock=asyncio.get_running_loop().time, random=Random(seed), resources=(PODS,))
        picture.listen(heard.hear)
        listening = asyncio.create_task(picture.run())

        over, half = set[int](), asyncio.Event()

        async def play(number: int) -> None:
            async with slots:
                dice = Random(f"{seed}/{number}")
                await _play(made, found, f"s{number}", dice, within=apart + BINDING)
            over.add(number)
            if len(over) >= workloads // 2:
                half.set()

        async def restarted() -> None:
            await half.wait()
            await _count(made, made.controllers[-1], found)
            made.controllers[-1].kill()
            made.start(run_file, kubeconfig, port=port)

        clearing = asyncio.create_task(heard.clear(made, Random(f"{seed}/cleared"), found))
        plays = [play(number) for number in range(workloads)]
        await asyncio.gather(*plays, *([restarted()] if restart else []))
        clearing.cancel()
        await asyncio.sleep(2)
        await _count(made, made.controllers[-1], found)
        await _promised(made, heard, found)
        listening.cancel()
        await asyncio.gather(listening, clearing, return_exceptions=True)
    return found


async def _promised(made: Stage, heard: Nominations, found: Tally) -> None:
    """Count which planned pods run where they were nominated to; those with a disk are nominated by the scheduler."""
    for one in await made.listed(PODS):
        who, node = f"{one['metadata']['namespace']}/{one['metadata']['name']}", one["spec"].get("nodeName")
        if one["metadata"]["name"].startswith("other") or any("persistentVolumeClaim" in disk for disk in one["spec"].get("volumes", [])):
            continue
        if who not in heard.nodes:
            found.unnamed += 1
            continue
        found.meant += 1
        found.first += heard.first[who] == node
        found.came += heard.nodes[who] == node
        if heard.nodes[who] != node:
            print(f"{who} was meant for {heard.nodes[who]}, and runs on {node}")


async def _play(made: Stage, found: Tally, pool: str, dice: Random, *, within: float) -> None:
    await made.namespace(pool)
    pods, claims = workload(dice, pool)
    for one in claims:
        await made.admin.create(PERSISTENT_VOLUME_CLAIMS, one, namespace=pool)
    for one in pods:
        await made.create(one, pool)
    for number in range(dice.randint(0, UNRELATED)):
        await asyncio.sleep(dice.uniform(0, 4))
        # An unrelated one, that may sit anywhere and must not take the room of those that machines are bought for.
        await made.create(pod(f"other{number}", pool, gpus=0, cpu="100m"), pool)

    async def bound() -> bool:
        return all(one["spec"].get("nodeName") for one in await made.pods(pool))

    try:
        await until(f"the pods of {pool} are bound", bound, within)
    except AssertionError as error:
        print(error)
    names = {one["metadata"]["name"] for one in pods}
    there = [one for one in await made.pods(pool) if one["metadata"]["name"] in names]
    found.planned += len(names)
    found.bound += sum(bool(one["spec"].get("nodeName")) for one in there)
    opened = [line["at"] for one in made.controllers for line in one.told("opened", pool=pool)]
    ordered = [line for one in made.controllers for line in one.told("ordered", pool=pool)]
    found.further += sum(line["at"] > min(opened, default=float("inf")) for line in ordered)


async def _count(made: Stage, controller: Controller, found: Tally) -> None:
    said = await made.metrics(controller)
    found.kept += int(said['gpuscaler_promises_total{outcome="kept"}'])
    found.broken += int(said['gpuscaler_promises_total{outcome="broken"}'])
    found.stray += int(said["gpuscaler_stray_pods_total"])


@asynccontextmanager
async def installed(made: Stage) -> AsyncIterator[None]:
    await made.install()
    yield


@asynccontextmanager
async def unsteered(made: Stage, *, really: bool) -> AsyncIterator[None]:
    """Machines arrive open and pods are not nominated, as with any other autoscaler."""
    if not really:
        yield
        return

    async def lift() -> None:
        while True:
            for node in await made.listed(NODES):
                taints = [one for one in node["spec"].get("taints", []) if one["key"] != ARRIVING_TAINT]
                if len(taints) != len(node["spec"].get("taints", [])):
                    patch = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints or None}}
                    try:
                        await made.admin.merge_patch(NODES, node["metadata"]["name"], patch)
                    except ApiError:
                        continue
            await asyncio.sleep(0.05)

    life = asyncio.create_task(lift())
    try:
        async with Installed(made).without(Right("patch", "pods/status")):
            yield
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
