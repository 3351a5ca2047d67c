"""Random workloads on a real scheduler: do planned pods run where the plan put them, without further purchases?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import msgspec
from tests.e2e.objects import pod
from tests.e2e.promising import Moments, overfull
from tests.e2e.rights import Installed, Right
from tests.e2e.stage import ACCOUNT, CLOUD, Controller, Stage, free_port, stage, until
from tests.e2e.storage import claim, provisioner
from tests.objects import Json

from gpuscaler.kube.errors import ApiError
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PODS, PRIORITY_CLASSES
from gpuscaler.model.pods import Pod
from gpuscaler.model.well_known import ARRIVING_TAINT

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
POOL: Json = {
    "types": ["g4dn.xlarge", "g4dn.12xlarge", "g5.12xlarge", "g5.48xlarge"],
    "zones": ["us-east-1a", "us-east-1b"],
    "idle_after": "10m",
}
KINDS = ("plain", "plain", "spread", "apart", "gang", "volume", "urgent")
#: Number of workloads that run at once, and number per cluster, where their machines stay.
ABREAST, TOGETHER = 10, 25
#: At most this many pods without a GPU are created for each workload's pool.
UNRELATED = 2
#: Average seconds between two removals of a nomination, as long as there are nominations.
CLEARING = 4.0
#: Seconds within which the pods of a workload must be bound once its machines could be ready.
BINDING = 150.0


@dataclass
class Tally:
    """Counts of planned and bound pods, of purchases after the first machine of a workload had opened (``further``), and of promises.

    ``again`` counts further purchases only for pods that wait for a disk and are therefore left to their scheduler. Such pods are
    nominated. kube-scheduler forgets a nomination when an attempt for the pod fails right before its machine opens, so another pod may take
    the room. ``ours`` counts pods that the controller bound, and ``refused`` its bindings that were refused because the pod was bound
    already. ``waits`` has the seconds that each pod of ``ours`` waited once all machines that it needed were ready. ``nominated`` counts
    planned pods that were nominated, ``arrived`` those that run on the node of their last nomination, and ``first`` those on the node of
    their first one. ``unnamed`` counts other pods that their scheduler bound to free room. ``cleared`` counts nominations that the test
    removed. ``overfull`` counts nodes that more was bound to than they have, ``failed`` rejected pods. ``kept``, ``stray`` and ``broken``
    are the controller's own counts, which include unrelated pods.
    """

    planned: int = 0
    bound: int = 0
    further: int = 0
    again: int = 0
    ours: int = 0
    refused: int = 0
    nominated: int = 0
    arrived: int = 0
    first: int = 0
    unnamed: int = 0
    cleared: int = 0
    overfull: int = 0
    failed: int = 0
    kept: int = 0
    stray: int = 0
    broken: int = 0
    waits: list[float] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def waited(self, share: float) -> float:
        """The quantile ``share`` of the waiting times of the pods that the controller bound."""
        return sorted(self.waits)[min(len(self.waits) - 1, int(share * len(self.waits)))] if self.waits else 0.0

    def __str__(self) -> str:
        counted = self.kept + self.stray + self.broken
        shares = f"{self.arrived / max(1, self.nominated):.1%}", f"{self.kept / max(1, counted):.1%}"
        waited = f"{self.waited(0.5):.2f} s after their machines were ready (p50), {self.waited(0.99):.2f} s (p99)"
        nominated = f"{self.arrived} of {self.nominated} nominated pods on the machine that was promised last ({shares[0]})"
        return (
            f"{self.bound} of {self.planned} planned pods bound, {self.further} further purchases, and {self.again} more for pods that "
            f"are left to their scheduler; {self.ours} bound by gpuscaler, "
            f"{waited}, {self.refused} bindings refused; {nominated}, {self.first} on the one promised first; {self.unnamed} bound by the "
            f"scheduler to other room; {self.overfull} nodes overfull, {self.failed} pods rejected; by the controller's own count, "
            f"{self.kept} of {counted} promises kept ({shares[1]}), {self.broken} refused by filters; {self.cleared} nominations removed"
        )


class Nominations:
    """The last and the first nomination of each pod before it was bound, and current nominations (``now``), by ``namespace/name``."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.first: dict[str, str] = {}
        self.now: dict[str, str] = {}

    def hear(self, batch: Batch) -> None:
        for key, item in batch.changes.items():
            self.now.pop(key, None)
            # Pods that wait for a disk are left out: the scheduler itself nominates them to the node that it has chosen.
            if isinstance(item, Pod) and item.nominated_node and not item.node_name and not item.spec.volumes:
                self.nodes[key] = self.now[key] = item.nominated_node
                self.first.setdefault(key, item.nominated_node)

    async def clear(self, made: Stage, dice: Random, tally: Tally) -> None:
        """Remove a nomination now and then, as another client may."""
        while True:
            await asyncio.sleep(dice.uniform(0, 2 * CLEARING))
            if self.now:
                namespace, name = dice.choice(sorted(self.now)).split("/")
                patch: Json = {"status": {"nominatedNodeName": None}}
                with suppress(ApiError):
                    await made.admin.merge_patch(PODS, name, patch, namespace=namespace, subresource="status")
                    tally.cleared += 1


def workload(dice: Random, pool: str) -> tuple[list[Json], list[Json]]:
    """The pods and claims of a random workload."""
    kind = dice.choice(KINDS)
    sizes = [dice.choice((1, 1, 1, 2, 3, 4, 5, 8)) for _ in range(dice.randint(2, 8))]
    pods = [pod(f"p{number}", pool, gpus=gpus) for number, gpus in enumerate(sizes)]
    claims = []
    for number, manifest in enumerate(pods):
        manifest["metadata"]["labels"] = {"app": pool}
        match kind:
            case "spread":
                rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                manifest["spec"]["topologySpreadConstraints"] = [{**rule, "labelSelector": {"matchLabels": {"app": pool}}}]
            case "apart" if number < 3:
                manifest["metadata"]["labels"]["keeps"] = "apart"
                term = {"labelSelector": {"matchLabels": {"keeps": "apart"}}, "topologyKey": HOST}
                manifest["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            case "gang":
                manifest["metadata"]["annotations"] = {"gpuscaler.io/gang": "all", "gpuscaler.io/gang-size": str(len(pods))}
            case "volume" if number == 0:
                claims.append(claim("data"))
                manifest["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
            case "urgent" if number % 2:
                manifest["spec"]["priorityClassName"] = "urgent"
    return pods, claims


async def measure_all(
    workloads: int, *, seed: int, apart: float, steered: bool = True, restart: bool = False, steering: str = "bind"
) -> Tally:
    """Run :func:`measure` in as many clusters as the workloads need, one after the other."""
    tally = Tally()
    for number in range(0, workloads, TOGETHER):
        together, dice = min(TOGETHER, workloads - number), seed + number // TOGETHER
        result = await measure(together, seed=dice, apart=apart, steered=steered, restart=restart, steering=steering)
        tally += result
        print(f"workloads {number} to {min(number + TOGETHER, workloads)}: {result}", flush=True)
    return tally


async def measure(
    workloads: int,
    *,
    seed: int,
    apart: float,
    steered: bool = True,
    restart: bool = False,
    steering: str = "bind",
    within: float = BINDING,
) -> Tally:
    """Run random workloads, some at a time. Their machines become Ready in any order, up to ``apart`` seconds apart.

    Without ``steered``, machines arrive open and no pod is nominated. With ``restart``, the controller is killed halfway. The pods of each
    workload must be bound ``within`` seconds once its machines could be ready.
    """
    tally = Tally()
    name = f"{steering if steered else 'unsteered'}-{seed}{'-restart' if restart else ''}"
    started = stage(name, audit=True)
    async with started as made, made.kubelets(), provisioner(made.admin), installed(made), unsteered(made, really=not steered):
        # Urgent pods come first but do not preempt others, because bare pods would be lost.
        urgent = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"}
        await made.admin.create(PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **urgent})
        port = free_port()
        pools = [{"name": f"s{number}", **POOL} for number in range(workloads)]
        cloud = {**CLOUD, "boot": ["0s", f"{apart / 2}s", f"{apart}s"]}
        history = {"folder": str(made.folder / "history"), "decisions": 10_000, "bytes": "1Gi"}
        run_file = made.run_file("run", pools, cloud=cloud, port=port, history=history, steering=steering)
        kubeconfig = await made.kubeconfig()
        made.start(run_file, kubeconfig, port=port)
        slots = asyncio.Semaphore(ABREAST)
        nominations, moments = Nominations(), Moments()
        picture = Picture(made.admin, clock=asyncio.get_running_loop().time, random=Random(seed), resources=(PODS, NODES))
        picture.listen(nominations.hear)
        picture.listen(moments.hear)
        listening = asyncio.create_task(picture.run())

        over, half = set[int](), asyncio.Event()

        async def play(number: int) -> None:
            async with slots:
                dice = Random(f"{seed}/{number}")
                await _play(made, tally, f"s{number}", dice, within=apart + within)
            over.add(number)
            if len(over) >= workloads // 2:
                half.set()

        async def restarted() -> None:
            await half.wait()
            await _count(made, made.controllers[-1], tally)
            made.controllers[-1].kill()
            made.start(run_file, kubeconfig, port=port)

        clearing = asyncio.create_task(nominations.clear(made, Random(f"{seed}/cleared"), tally))
        plays = [play(number) for number in range(workloads)]
        await asyncio.gather(*plays, *([restarted()] if restart else []))
        clearing.cancel()
        await asyncio.sleep(2)
        await _count(made, made.controllers[-1], tally)
        await _promised(made, nominations, moments, tally)
        listening.cancel()
        await asyncio.gather(listening, clearing, return_exceptions=True)
    return tally


async def _promised(made: Stage, nominations: Nominations, moments: Moments, tally: Tally) -> None:
    """Count which planned pods the controller bound, and which run on their nominated node. Pods with a disk are left to the scheduler."""
    ours = await asyncio.to_thread(_bindings, made, tally)
    every = await made.listed(PODS)
    mates: dict[str, list[str]] = {}
    for member in every:
        if _waits_for_all(member):
            mates.setdefault(member["metadata"]["namespace"], []).append(member["spec"].get("nodeName", ""))
    for member in every:
        key, node = f"{member['metadata']['namespace']}/{member['metadata']['name']}", member["spec"].get("nodeName")
        tally.failed += member["status"].get("phase") == "Failed"
        is_foreign = member["metadata"]["name"].startswith("other") or "ownerReferences" in member["metadata"]
        if is_foreign or any("persistentVolumeClaim" in disk for disk in member["spec"].get("volumes", [])):
            continue
        if key in ours:
            tally.ours += 1
            nodes = mates[member["metadata"]["namespace"]] if _waits_for_all(member) else [node]
            if key in moments.bound and (ready := [moments.ready[name] for name in nodes if name in moments.ready]):
                tally.waits.append(max(0.0, moments.bound[key][0] - max(ready)))
            continue
        if key not in nominations.nodes:
            tally.unnamed += 1
            continue
        tally.nominated += 1
        tally.first += nominations.first[key] == node
        tally.arrived += nominations.nodes[key] == node
        if nominations.nodes[key] != node:
            print(f"{key} was nominated to {nominations.nodes[key]}, but runs on {node}")
    tally.overfull += len(overfull(await made.listed(NODES), every))


def _waits_for_all(pod: Json) -> bool:
    """Whether a pod may have to wait for all machines of its workload, as members of a gang and pods that spread over zones do."""
    return "gpuscaler.io/gang" in pod["metadata"].get("annotations", {}) or bool(pod["spec"].get("topologySpreadConstraints"))


def _bindings(made: Stage, tally: Tally) -> set[str]:
    """The pods that the controller bound, from the API server's audit log."""
    ours = set[str]()
    for line in made.plane.layout.audit.read_text().splitlines():
        if '"subresource":"binding"' not in line or ACCOUNT not in line:
            continue
        event = msgspec.json.decode(line)
        reference, code = event["objectRef"], event["responseStatus"]["code"]
        if code < 300:
            ours.add(f"{reference['namespace']}/{reference['name']}")
        else:
            tally.refused += 1
    return ours


async def _play(made: Stage, tally: Tally, pool: str, dice: Random, *, within: float) -> None:
    await made.namespace(pool)
    pods, claims = workload(dice, pool)
    for manifest in claims:
        await made.admin.create(PERSISTENT_VOLUME_CLAIMS, manifest, namespace=pool)
    for manifest in pods:
        await made.create(manifest, pool)
    for number in range(dice.randint(0, UNRELATED)):
        await asyncio.sleep(dice.uniform(0, 4))
        # An unrelated pod may run anywhere, but must not take the room of the pods that machines are bought for.
        await made.create(pod(f"other{number}", pool, gpus=0, cpu="100m"), pool)

    async def bound() -> bool:
        return all(pod["spec"].get("nodeName") for pod in await made.pods(pool))

    try:
        await until(f"the pods of {pool} are bound", bound, within)
    except AssertionError as error:
        print(error)
    names = {pod["metadata"]["name"] for pod in pods}
    there = [pod for pod in await made.pods(pool) if pod["metadata"]["name"] in names]
    tally.planned += len(names)
    tally.bound += sum(bool(pod["spec"].get("nodeName")) for pod in there)
    opened = [line["at"] for controller in made.controllers for line in controller.logged("opened", pool=pool)]
    ordered = [line for controller in made.controllers for line in controller.logged("ordered", pool=pool)]
    late = [line for line in ordered if line["at"] > min(opened, default=float("inf"))]
    left = {f"{pool}/{pod['metadata']['name']}" for pod in pods if pod["spec"].get("volumes")}
    again = sum(set(line["pods"]) <= left for line in late)
    tally.again, tally.further = tally.again + again, tally.further + len(late) - again


async def _count(made: Stage, controller: Controller, tally: Tally) -> None:
    metrics = await made.metrics(controller)
    tally.kept += int(metrics['gpuscaler_promises_total{outcome="kept"}'])
    tally.broken += int(metrics['gpuscaler_promises_total{outcome="broken"}'])
    tally.stray += int(metrics["gpuscaler_stray_pods_total"])


@asynccontextmanager
async def installed(made: Stage) -> AsyncIterator[None]:
    await made.install()
    yield


@asynccontextmanager
async def unsteered(made: Stage, *, really: bool) -> AsyncIterator[None]:
    """Make machines arrive open and leave pods without nominations, as with any other autoscaler."""
    if not really:
        yield
        return

    async def lift() -> None:
        while True:
            for node in await made.listed(NODES):
                taints = [taint for taint in node["spec"].get("taints", []) if taint["key"] != ARRIVING_TAINT]
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
