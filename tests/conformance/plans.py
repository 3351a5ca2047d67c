"""Replays whole plans through the real filters: every pod of a plan must be accepted where the plan puts it."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.decoding import Interner
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan, PlannedMachine
from gpuscaler.planning.state import State

from . import ours
from .asking import Json, Oracle
from .cases import draw_case
from .cases.world import HOSTNAME, OLD_ZONE, RACK, REGION, ZONE, ZONES

#: Allocatable of the machines that can be bought, and their price.
TYPES: Mapping[str, tuple[dict[str, int], float]] = {
    "small": ({"cpu": 3_900, "memory": 7 * 2**30, "pods": 20, "ephemeral-storage": 10**11}, 0.2),
    "large": ({"cpu": 15_500, "memory": 60 * 2**30, "pods": 110, "ephemeral-storage": 10**11, "hugepages-2Mi": 2**30}, 0.7),
    "gpu": ({"cpu": 7_800, "memory": 30 * 2**30, "pods": 58, "ephemeral-storage": 10**11, "nvidia.com/gpu": 4}, 4.0),
    "licensed": ({"cpu": 7_800, "memory": 30 * 2**30, "pods": 58, "ephemeral-storage": 10**11, "example.com/licence": 3}, 1.0),
}


#: Number of orders that are tried before a plan is called broken.
ORDERS = 20


@dataclass(frozen=True)
class Stage:
    """Nodes that join at the same time, and the pods that are placed then, with their nodes."""

    nodes: list[Json]
    pods: dict[str, str]


@dataclass(frozen=True)
class Broken:
    """A pod that the scheduler would not put where the plan does, even when tried again after all the others."""

    case: int
    pod: str
    node: str
    plugins: tuple[str, ...]

    def __str__(self) -> str:
        return f"case {self.case}: the plan puts {self.pod} on {self.node}, which {', '.join(self.plugins)} refuse"


@dataclass
class Replayed:
    plans: int = 0
    machines: int = 0
    pods: int = 0


def replay_plans(oracle: Oracle, seed: int, numbers: range, seen: Replayed) -> Iterator[Broken]:
    """Plan for random clusters and pools, count in ``seen``, and yield every pod that is refused."""
    for number in numbers:
        rng = random.Random(f"plans {seed}/{number}")
        case, policy = waiting_case(seed, number), draw_policy(rng)
        made = planned(case, policy)
        stages = staged(made, policy, rng)
        where = {pod: place for stage in stages for pod, place in stage.pods.items()}
        seen.plans += 1
        seen.machines += len(made.machines)
        seen.pods += len(where)
        for pod, plugins in best(oracle, case, stages, rng).items():
            yield Broken(number, pod, where[pod], plugins)


def best(oracle: Oracle, case: Json, stages: Sequence[Stage], rng: random.Random) -> dict[str, tuple[str, ...]]:
    """The pods that are refused in the best of several orders: the result for a pod depends on which others were scheduled first."""
    left = refused(oracle, case, stages)
    for turn in range(ORDERS):
        if not left:
            break
        again = refused(oracle, case, [Stage(stage.nodes, shuffled(stage.pods, rng, alike=turn % 2 == 0)) for stage in stages])
        left = min(left, again, key=len)
    return left


def shuffled(pods: Mapping[str, str], rng: random.Random, *, alike: bool) -> dict[str, str]:
    """Another order of ``pods``. With ``alike``, similar pods follow each other, as when a scheduler takes the pods of one controller."""
    chance = {pod.rsplit("-", 1)[0] if alike else pod: rng.random() for pod in pods}
    return dict(sorted(pods.items(), key=lambda item: chance[item[0].rsplit("-", 1)[0] if alike else item[0]]))


def waiting_case(seed: int, number: int) -> Json:
    """A case in which all pods are pending, with several copies of each, since plans for many identical pods are more interesting."""
    case = draw_case(seed, number)
    case.pop("replay", None)
    waiting = [pod for pod in case["pending"] if not pod["spec"].get("nodeName")]
    case["pending"] = [copy for pod in waiting for copy in copies(pod)]
    return case


def copies(pod: Json) -> list[Json]:
    """Three copies of a pod; only one if it has volumes, which copies cannot always share."""
    names = [pod["metadata"]["name"]] if pod["spec"].get("volumes") else [f"{pod['metadata']['name']}-{letter}" for letter in "abc"]
    return [{**pod, "metadata": {**pod["metadata"], "name": name, "uid": f"uid-{name}"}} for name in names]


def draw_policy(rng: random.Random) -> Policy:
    pools = []
    for name in ("one", "two")[: rng.randint(1, 2)]:
        labels = {RACK: rng.choice(("a", "b")), "tier": rng.choice(("gold", "silver")), "size": rng.choice(("1", "10"))}
        taints = (Taint("dedicated", "gpu"),) if rng.random() < 0.2 else ()
        types = rng.sample(sorted(TYPES), rng.randint(1, len(TYPES)))
        offerings = tuple(offering(name, kind, zone, labels=labels, taints=taints) for kind in types for zone in ZONES)
        chooser = "cloud" if rng.random() < 0.3 else "buyer"
        pools.append(Pool(name, offerings, chooser=chooser, names_zone=chooser == "cloud" and rng.random() < 0.5))
    return Policy(tuple(pools))


def offering(pool: str, kind: str, zone: str, *, labels: dict[str, str], taints: tuple[Taint, ...]) -> Offering:
    allocatable, price = TYPES[kind]
    all_labels = {
        **labels,
        ZONE: zone,
        OLD_ZONE: zone,
        REGION: "r1",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": kind,
    }
    return Offering(pool, "on-demand", kind, zone, price, allocatable, all_labels, taints)


def planned(case: Json, policy: Policy) -> Plan:
    interner = Interner()
    objects = [raw for kind, items in case.items() if kind not in ours.NOT_CLUSTER for raw in (*items,)]
    cluster = Cluster.of(item for raw in (*objects, *case["pending"]) for item in ours.decoded(raw, interner))
    return plan(cluster, State(), policy, 0.0)


def staged(made: Plan, policy: Policy, rng: random.Random) -> list[Stage]:
    """The stages of a plan: first the pods for existing nodes, then machines with their pods, in the order in which they must open.

    Each machine is one of those that its cloud may choose.
    """
    stages = [Stage([], {placement.pod: placement.node for placement in made.placements})]
    level: dict[str, int] = {}
    for machine in made.machines:
        level[machine.id] = 1 + max((level.get(before, 0) for before in machine.opens_after), default=0)
    for number in range(1, max(level.values(), default=0) + 1):
        opening = [machine for machine in made.machines if level[machine.id] == number]
        nodes = [node(machine, bought(machine, policy, rng)) for machine in opening]
        stages.append(Stage(nodes, {pod: machine.id for machine in opening for pod in machine.pods}))
    return stages


def bought(machine: PlannedMachine, policy: Policy, rng: random.Random) -> Offering:
    chosen = rng.choice(machine.choices) if machine.choices else machine
    key = (machine.pool, chosen.market, chosen.instance_type, chosen.zone)
    return next(offering for pool in policy.pools for offering in pool.offerings if offering.key == key)


def node(machine: PlannedMachine, offering: Offering) -> Json:
    amounts = {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in offering.allocatable.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": machine.id, "labels": {**offering.labels, HOSTNAME: machine.id}},
        "spec": {"taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in offering.taints]},
        "status": {"allocatable": amounts},
    }


def refused(oracle: Oracle, case: Json, stages: Sequence[Stage]) -> dict[str, tuple[str, ...]]:
    """The pods that stay refused, with the plug-ins that refuse them: a refused pod is tried again whenever others have been placed."""
    index = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": number for number, pod in enumerate(case["pending"])}
    done: list[Json] = []
    waiting: dict[str, str] = {}
    plugins: dict[str, tuple[str, ...]] = {}
    for stage in stages:
        done.append({"add": stage.nodes})
        waiting |= stage.pods
        while waiting:
            steps = {pod: {"pod": index[pod], "nodes": [where]} for pod, where in waiting.items()}
            verdicts = oracle.ask({**case, "replay": [*done, *steps.values()]})["steps"][len(done) :]
            plugins = {pod: tuple(verdict["rejected"].get(waiting[pod], ())) for pod, verdict in zip(steps, verdicts, strict=True)}
            accepted = [pod for pod in steps if not plugins[pod]]
            done += [steps[pod] for pod in accepted]
            waiting = {pod: where for pod, where in waiting.items() if plugins[pod]}
            if not accepted:
                break
    return {pod: plugins[pod] for pod in waiting}
