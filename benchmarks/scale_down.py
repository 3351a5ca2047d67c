"""Scale-down at size: 2,000 nodes with 80,000 pods of 100 classes, 35 % utilised."""

import random
from time import perf_counter

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodSpec
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.planning.limits import fleets, remaining
from gpuscaler.planning.membership import POOL_LABEL, members
from gpuscaler.planning.room import Room
from gpuscaler.planning.scale_down import Down, Situation, scale_down
from gpuscaler.planning.state import State
from gpuscaler.planning.templates import Templates

NOW = 1_700_000_000.0
MI = 2**20
CAPACITY = {"cpu": 32_000, "memory": 128 * 1024 * MI, "pods": 250}
PRICE = 1.536


def classes(number: int, draw: random.Random) -> list[tuple[PodSpec, LabelSet, Owner]]:
    """Pods of 25 m to 2 cores with 1 to 8 Gi a core, many small and few large."""
    found = []
    for index in range(number):
        cpu = int(25 * 2 ** draw.uniform(0, 6.32))
        memory = int(cpu * 2 ** draw.uniform(0, 3)) * MI
        spec = PodSpec(digest=f"class-{index:03}", namespace=f"team-{index % 7}", requests={"cpu": cpu, "memory": memory})
        found.append((spec, LabelSet(app=f"app-{index}"), Owner("ReplicaSet", f"app-{index}", f"uid-{index}")))
    return found


def generate(nodes: int, pods: int, kinds: int, *, utilised: float, seed: int) -> tuple[Cluster, Policy]:
    """A cluster of equal nodes on which pods landed at random; the scarcer of cpu and memory is ``utilised``."""
    draw = random.Random(seed)
    offering = Offering(
        pool="main",
        market="on-demand",
        instance_type="m5.8xlarge",
        zone="us-east-1a",
        price=PRICE,
        allocatable=CAPACITY,
        labels={POOL_LABEL: "main", "node.kubernetes.io/instance-type": "m5.8xlarge", "topology.kubernetes.io/zone": "us-east-1a"},
    )
    policy = Policy((Pool("main", (offering,)),))
    names = [f"node-{index:05}" for index in range(nodes)]
    free = {name: dict(CAPACITY) for name in names}
    shapes = classes(kinds, draw)
    chosen = [shapes[draw.randrange(kinds)] for _ in range(pods)]
    asked = {resource: sum(spec.requests[resource] for spec, _, _ in chosen) for resource in ("cpu", "memory")}
    scale = utilised * nodes / max(asked[resource] / CAPACITY[resource] for resource in asked)
    scaled = {
        spec.digest: PodSpec(
            digest=spec.digest,
            namespace=spec.namespace,
            requests={"cpu": max(1, int(spec.requests["cpu"] * scale)), "memory": int(spec.requests["memory"] * scale / MI) * MI},
        )
        for spec, _, _ in shapes
    }
    bound = []
    for index, (rough, labels, owner) in enumerate(chosen):
        spec = scaled[rough.digest]
        while True:
            name = names[draw.randrange(nodes)]
            if all(free[name][resource] >= amount for resource, amount in spec.requests.items()):
                break
        for resource, amount in spec.requests.items():
            free[name][resource] -= amount
        bound.append(
            Pod(
                namespace=spec.namespace,
                name=f"{owner.name}-{index}",
                spec=spec,
                labels=labels,
                node_name=name,
                phase="Running",
                created=NOW - 7200,
                started=NOW - 7200,
                owner=owner,
            )
        )
    machines = [
        Node(name=name, labels={**offering.labels, "kubernetes.io/hostname": name}, allocatable=CAPACITY, created=NOW - 86400)
        for name in names
    ]
    return Cluster.of([*machines, *bound]), policy


def bound_of(cluster: Cluster) -> float:
    """Dollars per hour that no repacking can save more than: equal nodes, as few as the scarcest resource admits."""
    need = max(int(array.sum()) / CAPACITY[resource] for resource, array in cluster.requested.items())
    return (len(cluster.nodes) - -(-need // 1)) * PRICE


def ask(cluster: Cluster, policy: Policy) -> Down:
    """Scale-down with nothing pending, from the built cluster on."""
    belongs = members(cluster.nodes, policy)
    state = State()
    return scale_down(
        Situation(
            cluster=cluster,
            state=state,
            policy=policy,
            now=NOW,
            room=Room.of(cluster),
            members=belongs,
            taken=frozenset(),
            templates=Templates(cluster, policy, frozenset()),
            limits=remaining(policy, state, fleets(cluster, policy, state, belongs)).for_mix(),
        )
    )


def run() -> dict[str, float]:
    """Seconds and the saving as a share of the bound on it, for the size that the figures name."""
    cluster, policy = generate(2000, 80_000, 100, utilised=0.35, seed=1)
    start = perf_counter()
    down = ask(cluster, policy)
    seconds = perf_counter() - start
    saving = sum(removal.saving_per_hour for removal in down.removals)
    return {
        "scale_down_seconds": seconds,
        "scale_down_saving_of_bound": saving / bound_of(cluster),
        "scale_down_nodes_removed": len(down.removals),
        "scale_down_pods_moved": sum(len(removal.moves) for removal in down.removals),
    }
