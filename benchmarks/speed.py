"""Time of a plan, on clusters of the sizes that peers publish."""

import random
from collections.abc import Iterator

from benchmarks.figures import GIB, Figure, make_pods, time_calls
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Pod, PodAffinityTerm, PodSpec, SpreadConstraint
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.selectors import LabelSelector, NodeSelectorTerm, Requirement
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
ZONES = ("test-zone-1", "test-zone-2", "test-zone-3")


def figures() -> Iterator[Figure]:
    yield plan_karpenter_mix(5_000)
    yield plan_karpenter_mix(20_000)
    yield plan_preferences()
    yield plan_equal_pods()


def linear_types(count: int = 400) -> Policy:
    """Types of 1, 2, 3, … vCPU with 2 GiB and 10 pods each, as in Karpenter's own benchmark, at a proportional price."""
    offerings = []
    for zone in ZONES:
        for number in range(1, count + 1):
            name = f"fake-it-{number}"
            labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", ZONE: zone, "node.kubernetes.io/instance-type": name}
            allocatable = {"cpu": number * 1000 - 100, "memory": number * 2 * GIB - 10 * 2**20, "pods": number * 10}
            cost = 0.025 * number + 0.001 * 2 * number
            offerings.append(
                Offering(
                    pool="default", market="on-demand", instance_type=name, zone=zone, price=cost, allocatable=allocatable, labels=labels
                )
            )
    return Policy(pools=(Pool(name="default", offerings=tuple(offerings)),))


def karpenter_pods(count: int, seed: int = 1) -> list[Pod]:
    """A fifth each: generic, zone spread, hostname spread, zone affinity, hostname anti-affinity; requests and labels drawn per pod."""
    draw = random.Random(seed)
    result = []
    for number in range(count):
        variant = number % 5
        letter = draw.choice("abcdefg")
        cpu, memory = draw.choice((100, 250, 500, 1000, 1500)), draw.choice((100, 256, 512, 1024, 2048, 4096)) * 2**20
        labels = {
            0: {"my-label": letter},
            1: {"my-label": letter},
            2: {"my-label": letter},
            3: {"my-affinity": letter},
            4: {"app": "nginx"},
        }[variant]
        other_letter = draw.choice("abcdefg")
        result.append(karpenter_pod(number, variant, LabelSet(labels), {"cpu": cpu, "memory": memory}, other_letter))
    return result


def karpenter_pod(number: int, variant: int, labels: LabelSet, requests: dict[str, int], other_letter: str) -> Pod:
    own = LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))
    drawn = LabelSelector((Requirement("my-label", "In", (other_letter,)),))
    digest = f"{variant}-{requests['cpu']}-{requests['memory']}-{labels}-{other_letter if variant in (1, 2) else ''}"
    spec = PodSpec(
        digest=digest,
        namespace="bench",
        requests=requests,
        spread=(SpreadConstraint(ZONE if variant == 1 else HOST, selector=drawn),) if variant in (1, 2) else (),
        affinity=(PodAffinityTerm(ZONE, own, ("bench",)),) if variant == 3 else (),
        anti_affinity=(PodAffinityTerm(HOST, own, ("bench",)),) if variant == 4 else (),
    )
    return Pod(namespace="bench", name=f"pod-{number:05}", spec=spec, labels=labels)


def plan_karpenter_mix(count: int) -> Figure:
    rules, cluster = linear_types(), Cluster.of(karpenter_pods(count))
    result, seconds = time_calls(lambda: plan(cluster, State(), rules, 0.0), runs=1 if count > 5000 else 3)
    rate = count / seconds
    return Figure(
        f"Karpenter's benchmark mix, {count:,} pods over 400 types",
        "Karpenter 427-502 pods/s" if count == 5000 else "Karpenter 325 pods/s",
        f"≥ 20,000 pods/s, no pod left, nodes ≤ {count // 5:,}",
        f"{rate:,.0f} pods/s, {len(result.unplaced)} left, {len(result.machines):,} nodes",
        rate >= 20_000 and not result.unplaced and len(result.machines) <= count // 5,
        {"pods_per_second": rate, "left": len(result.unplaced), "nodes": len(result.machines)},
    )


def plan_preferences(count: int = 4_000) -> Figure:
    """Pods that prefer to be apart from each other and prefer one zone."""
    same_app = LabelSelector((Requirement("app", "In", ("nginx",)),))
    pending = make_pods(
        "nginx",
        count,
        cpu=1,
        gib=1,
        labels={"app": "nginx"},
        preferred_anti_affinity=(PodAffinityTerm(HOST, same_app, ("bench",), weight=1),),
        preferred_nodes=((10, NodeSelectorTerm((Requirement(ZONE, "In", (ZONES[0],)),))),),
    )
    cluster, rules = Cluster.of(pending), linear_types()
    result, seconds = time_calls(lambda: plan(cluster, State(), rules, 0.0))
    rate = count / seconds
    return Figure(
        f"{count:,} pods with preferences",
        "Karpenter 58 pods/s and 4,000 nodes, or 3.4k/s and 6-21 nodes",
        "≥ 20,000 pods/s, ≤ 21 nodes",
        f"{rate:,.0f} pods/s, {len(result.machines)} nodes",
        rate >= 20_000 and len(result.machines) <= 21 and not result.unplaced,
        {"pods_per_second": rate, "nodes": len(result.machines)},
    )


def plan_equal_pods(count: int = 50_000) -> Figure:
    allocatable = {"cpu": 50_500, "memory": 210 * GIB, "pods": 110}
    offering = Offering(pool="p", market="on-demand", instance_type="big", zone="z", price=2.0, allocatable=allocatable, labels={})
    cluster, rules = Cluster.of(make_pods("web", count, cpu=1, gib=4)), Policy(pools=(Pool(name="p", offerings=(offering,)),))
    result, seconds = time_calls(lambda: plan(cluster, State(), rules, 0.0), runs=5)
    return Figure(
        f"{count:,} equal pods",
        "Cluster Autoscaler 8-14 s",
        "≤ 0.1 s, 1,000 nodes",
        f"{seconds:.3f} s, {len(result.machines):,} nodes",
        seconds <= 0.1 and len(result.machines) == 1000,
        {"seconds": seconds, "nodes": len(result.machines)},
    )
