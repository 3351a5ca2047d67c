"""Compares kube-scheduler with our model of it: for the same arrivals, is the same pod bound, and to the same node?"""

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

import msgspec
from tests.e2e.objects import pod
from tests.e2e.stage import PATIENCE, Stage, stage, until
from tests.objects import Json

from gpuscaler.embedded.nodes.binding import SOFT, Binder
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.resources import NODES, PODS, PRIORITY_CLASSES
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Offering
from gpuscaler.model.well_known import POOL_LABEL
from gpuscaler.simulation.world.scheduler import Scheduler

ZONE, HOST, DISK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "disk"
ZONES, DISKS = ("zone-a", "zone-b", "zone-c"), ("fast", "slow")
#: GPUs, cores and GiB of memory of nodes, with and without GPUs.
SIZES = ((0, 4, 16), (1, 8, 32), (1, 16, 64), (4, 48, 192), (8, 96, 768))
TAINTS = ({"key": "team", "value": "a", "effect": "NoSchedule"}, {"key": "old", "effect": "PreferNoSchedule"})
TOLERATIONS = ({"key": "team", "operator": "Equal", "value": "a"}, {"key": "old", "operator": "Exists"})
KINDS = ("plain", "plain", "bare", "disk", "rather", "zone", "spread", "apart", "together", "tolerant", "urgent")
#: Number of workloads that run at once, each on its own nodes.
ABREAST = 8
#: Kinds of pods whose rules the simulator's model knows completely. Pods of traces have no other rules.
SIMULATED = frozenset({"plain", "bare", "disk", "zone", "urgent"})


@dataclass
class Tally:
    """The number of compared pods, and how often kube-scheduler and the models agreed.

    ``same`` counts pods that both bind or neither binds. ``bound`` counts pods that both bind, and ``best`` those of them on a node that
    the model scores best. ``one`` counts pods that fit on one node only, ``ties`` pods with several best nodes. ``simulated`` counts pods
    whose rules the simulator's model knows completely, and ``agreed`` those that it decides like kube-scheduler. ``differences``
    describes different verdicts, and ``misses`` different nodes.
    """

    pods: int = 0
    same: int = 0
    bound: int = 0
    best: int = 0
    one: int = 0
    ties: int = 0
    simulated: int = 0
    agreed: int = 0
    differences: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.same} of {self.pods} verdicts the same ({share(self.same, self.pods):.1%}); "
            f"{self.best} of {self.bound} bound pods on a node that the model scores best ({share(self.best, self.bound):.1%}; "
            f"{self.one} fit on one node only, {self.ties} had several best ones); "
            f"the simulator's model agrees on {self.agreed} of {self.simulated} ({share(self.agreed, self.simulated):.1%})"
        )


def share(part: int, whole: int) -> float:
    return part / max(1, whole)


def node(dice: Random, pool: str, number: int) -> Json:
    """A random Ready node of a pool."""
    gpus, cores, memory = dice.choice(SIZES)
    name = f"{pool}-n{number}"
    labels = {POOL_LABEL: pool, HOST: name, ZONE: dice.choice(ZONES), DISK: dice.choice(DISKS)}
    room = {"cpu": f"{cores}", "memory": f"{memory}Gi", "pods": f"{dice.choice((4, 30))}", "nvidia.com/gpu": f"{gpus}"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": _now()}
    status = {"capacity": room, "allocatable": room, "conditions": [{**ready, "lastTransitionTime": _now()}]}
    taints = [taint for taint in TAINTS if dice.random() < 0.25]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status}


def arrival(dice: Random, pool: str, number: int) -> tuple[str, Json]:
    """The kind of a random pod, and the pod."""
    kind = dice.choice(KINDS)
    made = pod(f"p{number}", pool, gpus=dice.choice((0, 0, 1, 1, 2, 4, 8)), cpu=dice.choice(("100m", "1", "3", "6", "12")))
    spec: Json = made["spec"]
    resources = spec["containers"][0]["resources"]
    resources["requests"]["memory"] = dice.choice(("256Mi", "3Gi", "10Gi", "40Gi"))
    made["metadata"]["labels"] = {"app": kind}
    own = {"labelSelector": {"matchLabels": {"app": kind}}}
    match kind:
        case "bare":
            resources.update(requests={}, limits={})
        case "disk":
            spec["nodeSelector"][DISK] = dice.choice(DISKS)
        case "rather":
            term = {"matchExpressions": [{"key": DISK, "operator": "In", "values": [dice.choice(DISKS)]}]}
            rule = [{"weight": dice.randint(1, 100), "preference": term}]
            spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": rule}}
        case "zone":
            term = {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": [dice.choice(ZONES)]}]}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        case "spread":
            skew = {"maxSkew": 1, "topologyKey": dice.choice((ZONE, HOST)), "whenUnsatisfiable": "DoNotSchedule"}
            spec["topologySpreadConstraints"] = [{**skew, **own}]
        case "apart" | "together":
            terms = {"requiredDuringSchedulingIgnoredDuringExecution": [{**own, "topologyKey": dice.choice((ZONE, HOST))}]}
            spec["affinity"] = {"podAntiAffinity" if kind == "apart" else "podAffinity": terms}
        case "tolerant":
            spec["tolerations"] = dice.sample(TOLERATIONS, dice.randint(1, 2))
        case "urgent":
            spec["priorityClassName"] = "urgent"
    return kind, made


async def measure(workloads: int, *, seed: int) -> Tally:
    """Run random workloads on a real scheduler, and let the model decide each pod in the same state as the scheduler."""
    tally = Tally()
    async with stage("agreement") as made:
        urgent = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"}
        await made.admin.create(PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **urgent})
        slots = asyncio.Semaphore(ABREAST)

        async def play(number: int) -> None:
            async with slots:
                await _Play(made, tally, f"a{number}", Random(f"{seed}/{number}")).run()

        await asyncio.gather(*(play(number) for number in range(workloads)))
    return tally


class _Play:
    """One workload: its nodes, and pods that are created one after the other. Some pods are deleted again."""

    def __init__(self, made: Stage, tally: Tally, pool: str, dice: Random) -> None:
        self._made, self._found, self._pool, self._dice = made, tally, pool, dice
        interner = Interner()
        self._node_reader, self._pod_reader = ObjectDecoder(NODES, interner), ObjectDecoder(PODS, interner)
        self._bound: dict[str, Pod] = {}

    async def run(self) -> None:
        dice, admin = self._dice, self._made.admin
        await self._made.namespace(self._pool)
        nodes = [node(dice, self._pool, number) for number in range(dice.randint(3, 8))]
        for created in nodes:
            await admin.create(NODES, created)
        there = [self._node(await self._ready(node)) for node in nodes]
        for number in range(dice.randint(8, 16)):
            if self._bound and dice.random() < 0.15:
                deleted = dice.choice(sorted(self._bound))
                del self._bound[deleted]
                await admin.delete(PODS, deleted, namespace=self._pool, grace=0)
            await self._compare(*arrival(dice, self._pool, number), there)
        for created in nodes:
            # With more than a hundred nodes at once, kube-scheduler would consider only a sample of them.
            await admin.delete(NODES, created["metadata"]["name"])

    async def _ready(self, made: Json) -> bytes:
        """The node, once it has exactly the taints that it was created with."""
        name, due = made["metadata"]["name"], {taint["key"] for taint in made["spec"]["taints"]}

        async def observed() -> bytes | None:
            there = await self._made.admin.get(NODES, name)
            return there if {taint["key"] for taint in msgspec.json.decode(there)["spec"].get("taints", [])} == due else None

        taken: bytes = await until(f"{name} has the taints {due}", observed)
        return taken

    async def _compare(self, kind: str, body: Json, nodes: list[Node]) -> None:
        admin, tally, name = self._made.admin, self._found, body["metadata"]["name"]
        created = await admin.create(PODS, body, namespace=self._pool)
        arrived = self._pod(created)
        binder = Binder(Cluster.of([*nodes, *self._bound.values(), arrived]))
        best = binder.best(arrived)
        fitting = int(binder.room.verdict(arrived.spec, arrived.labels).mask.sum())
        simulated = self._simulator(nodes).best(arrived.spec) if kind in SIMULATED else None
        decided = await self._decided(name)
        real = msgspec.json.decode(decided)["spec"].get("nodeName")
        tally.pods += 1
        text = f"{self._pool}/{name} ({kind}): on {real}, the model says {', '.join(best) or 'nowhere'}"
        if bool(real) != bool(best):
            tally.differences.append(text)
        else:
            tally.same += 1
        if real and best:
            tally.bound += 1
            tally.one += fitting == 1
            tally.ties += len(best) > 1
            tally.best += real in best
            if real not in best:
                tally.misses.append(text)
        if kind in SIMULATED:
            tally.simulated += 1
            # Among equal nodes the simulator takes the oldest, and kube-scheduler takes any.
            if simulated == real or {simulated, real} <= set(best):
                tally.agreed += 1
            else:
                tally.misses.append(f"{text}, the simulator {simulated}")
        if real:
            self._bound[name] = self._pod(decided)
        else:
            # The scheduler would try it again later, in a different state.
            await admin.delete(PODS, name, namespace=self._pool, grace=0)

    def _simulator(self, nodes: list[Node]) -> Scheduler:
        """The simulator's view of the state. It has one offering for each node, because all nodes differ."""
        books = Scheduler([self._offering(node) for node in nodes])
        for node in nodes:
            books.add(node.name, self._offering(node))
            books.mark(node.name, unneeded=any(taint.effect == SOFT for taint in node.taints))
        for bound in self._bound.values():
            books.place(bound.spec, bound.node_name)
        return books

    def _offering(self, there: Node) -> Offering:
        hard = tuple(taint for taint in there.taints if taint.effect != SOFT)
        return Offering(self._pool, "on-demand", there.name, "", 0.0, there.allocatable, there.labels, taints=hard)

    def _node(self, read: bytes) -> Node:
        node = self._node_reader.read(read).items[0]
        assert isinstance(node, Node)
        return node

    def _pod(self, read: bytes) -> Pod:
        pod = self._pod_reader.read(read).items[0]
        assert isinstance(pod, Pod)
        return pod

    async def _decided(self, name: str) -> bytes:
        """The pod, once it is bound or reported unschedulable."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            there = await self._made.admin.get(PODS, name, namespace=self._pool)
            pod = msgspec.json.decode(there)
            if pod["spec"].get("nodeName") or any(
                condition["reason"] == "Unschedulable" for condition in pod["status"].get("conditions", ())
            ):
                return there
            await asyncio.sleep(0.03)
        raise AssertionError(f"{self._pool}/{name}: kube-scheduler decided nothing in {PATIENCE:g} s")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
