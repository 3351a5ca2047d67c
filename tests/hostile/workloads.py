"""Workloads with which a tenant could try to stop the planner: each rule of Kubernetes, used as often and as differently as possible."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.model.pools import Policy
from gpuscaler.settings import parse_policy

Object = dict[str, Any]

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
HUGE = str(2**53)
NOW = 1_795_348_860.0
TYPES = "[g5.xlarge, g5.2xlarge, g5.4xlarge, g5.12xlarge, g5.48xlarge, p4d.24xlarge, g4dn.xlarge, g4dn.12xlarge, g6.xlarge, g6.12xlarge]"
POOLS = f"""
region: us-east-1
pools:
  - name: gpu
    types: {TYPES}
    markets: [spot, on-demand]
    zones: [us-east-1a, us-east-1b, us-east-1c]
"""
LIMITED = POOLS + "limits: {gpus: 64, dollars_per_hour: 120}\n"


def policy(text: str = LIMITED) -> Policy:
    return parse_policy(text)


def pod(
    number: int | str,
    spec: Mapping[str, Any] | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    cpu: str = "1",
    memory: str = "1Gi",
    gpu: str = "1",
    namespace: str = "tenant",
) -> Object:
    """A pod that kube-scheduler could not place, a minute old."""
    requests = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"nvidia.com/gpu": gpu} if gpu != "0" else {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"p{number}" if isinstance(number, int) else number,
            "namespace": namespace,
            "uid": f"{namespace}-{number}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "creationTimestamp": "2026-11-22T12:00:00Z",
        },
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "x", "resources": requests}], **(spec or {})},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-11-22T12:00:01Z"}
            ],
        },
    }


def node(name: str, *, gpus: int = 1, allocatable: Mapping[str, str] | None = None) -> Object:
    amounts = {
        "cpu": "3920m",
        "memory": "15Gi",
        "pods": "110",
        "ephemeral-storage": "40Gi",
        "nvidia.com/gpu": str(gpus),
        **(allocatable or {}),
    }
    labels = {HOST: name, ZONE: "us-east-1a", "node.kubernetes.io/instance-type": "g5.xlarge", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-11-22T10:00:00Z"},
        "spec": {"providerID": f"aws:///us-east-1a/i-{name}"},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def ordinary(count: int, *, namespace: str = "others", distinct: int = 20) -> list[Object]:
    """Pods of typical Deployments and Jobs: few classes, no rules."""
    return [pod(f"o{number}", cpu=f"{500 + 100 * (number % distinct)}m", namespace=namespace) for number in range(count)]


def near(selector: Mapping[str, Any], key: str = HOST) -> Object:
    return {"labelSelector": selector, "topologyKey": key}


def apart(*terms: Object) -> Object:
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def together(*terms: Object) -> Object:
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def chosen(key: str, *values: object) -> Object:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [str(value) for value in values]}]}


def wanting_nodes(*terms: Sequence[Object]) -> Object:
    selector = {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}}


def ports(*numbers: int) -> Object:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    listed = [{"containerPort": 1, "hostPort": number, "protocol": "TCP"} for number in numbers]
    return {"containers": [{"name": "c", "image": "x", "ports": listed, "resources": limits}]}


def containers(count: int, **requests: str) -> Object:
    """A pod with ``count`` containers that request ``requests`` each."""
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    own = {name: amount for name, amount in requests.items() if "/" not in name}
    return {
        "containers": [{"name": f"c{number}", "image": "x", "resources": {"requests": own, "limits": limits}} for number in range(count)]
    }


def distinct(count: int) -> list[Object]:
    return [pod(n, cpu=f"{1000 + 7 * n}m", memory=f"{1000 + 13 * n}Mi") for n in range(count)]


def keep_apart(count: int) -> list[Object]:
    terms = [near({"matchExpressions": [{"key": f"k{j}", "operator": "Exists"}]}) for j in range(50)]
    return [pod(n, apart(*terms), labels={f"k{n % 50}": "v", "x": f"{n}"}) for n in range(count)]


def spread(count: int) -> list[Object]:
    rules = [
        {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": str(j)}}}
        for key in (HOST, ZONE)
        for j in range(50)
    ]
    return [pod(n, {"topologySpreadConstraints": rules}, labels={"a": str(n % 50)}) for n in range(count)]


def chain(count: int) -> list[Object]:
    """Pods with affinity to the next one each, and the last to the first."""
    return [pod(n, together(near({"matchLabels": {"a": str((n + 1) % count)}}, ZONE)), labels={"a": str(n)}) for n in range(count)]


def large_affinity(count: int) -> list[Object]:
    values = [f"v{j:05d}" for j in range(3000)]

    def terms(number: int) -> list[list[Object]]:
        return [[{"key": f"k{t}", "operator": "NotIn", "values": [*values, f"u{number}"]}] for t in range(20)]

    return [pod(n, wanting_nodes(*terms(n))) for n in range(count)]


def many_terms(count: int) -> list[Object]:
    return [pod(n, wanting_nodes(*([{"key": f"k{t}", "operator": "In", "values": [f"{n}"]}] for t in range(5000)))) for n in range(count)]


def preferences(count: int) -> list[Object]:
    terms = [{"weight": 100, "podAffinityTerm": near({"matchLabels": {"a": str(j)}})} for j in range(100)]
    rule = {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}
    return [pod(n, rule, labels={"a": str(n % 100)}) for n in range(count)]


def gangs(count: int, size: int = 2, *, alike: bool = False, topology: str = "zone") -> list[Object]:
    """``count`` pods in gangs of ``size``, with different requests unless they are ``alike``."""
    return [
        pod(
            n,
            annotations={"gpuscaler.io/gang": f"g{n // size}", "gpuscaler.io/gang-size": str(size), "gpuscaler.io/gang-topology": topology},
            cpu="1" if alike else f"{1000 + n}m",
        )
        for n in range(count)
    ]


def single_gangs(count: int) -> list[Object]:
    return gangs(count, 1)


def alike_gangs(count: int) -> list[Object]:
    return gangs(count, 2, alike=True)


def one_gang(count: int) -> list[Object]:
    return gangs(count, count)


def many_ports(count: int) -> list[Object]:
    return [pod(n, ports(*(10000 + (n * 37 + j) % 2000 for j in range(200)))) for n in range(count)]


def random_ports(count: int) -> list[Object]:
    draw = random.Random(3)
    return [pod(n, ports(*draw.sample(range(1, 3000), 20))) for n in range(count)]


def resources(count: int) -> list[Object]:
    limits = {"nvidia.com/gpu": "1", **{f"x.io/r{j}": "1" for j in range(300)}}
    return [pod(n, {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}) for n in range(count)]


def tolerations(count: int) -> list[Object]:
    return [pod(n, {"tolerations": [{"key": f"k{j}", "operator": "Equal", "value": str(n)} for j in range(1000)]}) for n in range(count)]


def mixed(count: int) -> list[Object]:
    """Pods with zone affinity and anti-affinity against random others, each of a different size."""
    draw = random.Random(1)
    objects = []
    for n in range(count):
        against = near(chosen("a", *(draw.randrange(count) for _ in range(10))), draw.choice([HOST, ZONE]))
        beside = near(chosen("b", draw.randrange(20)), ZONE)
        rules = {"affinity": {**apart(against)["affinity"], **together(beside)["affinity"]}}
        objects.append(pod(n, rules, labels={"a": str(n), "b": str(n % 20)}, cpu=f"{1000 + 7 * n}m"))
    return objects


def anti(count: int) -> list[Object]:
    draw = random.Random(3)
    return [
        pod(n, apart(near(chosen("a", *(draw.randrange(count) for _ in range(20))))), labels={"a": str(n)}, cpu=f"{500 + n}m", gpu="0")
        for n in range(count)
    ]


def markets(count: int) -> list[Object]:
    """Pods with different requests, on one of two markets."""
    return [pod(n, annotations={"gpuscaler.io/market": ("spot", "on-demand")[n % 2]}, cpu=f"{1000 + n}m") for n in range(count)]


def many_namespaces(count: int) -> list[Object]:
    """Pods in many namespaces, each with its own gangs and zone affinity, few enough to look ordinary."""
    objects = [*zonal(count // 2), *gangs(count - count // 2, 1)]
    for n, each in enumerate(objects):
        each["metadata"] |= {"name": f"p{n}", "namespace": f"tenant-{n % (count // 3)}"}
    return objects


def alike_first(count: int) -> list[Object]:
    """Selectors with a first label that all pods have, and fifty more that differ."""
    keys = [f"h{n}" for n in range(50)]
    rules = [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}, "matchLabelKeys": keys} for key in (HOST, ZONE)]
    spread = [{**rule, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"} for rule in rules]
    labels = [{"app": "x", **dict.fromkeys(keys, str(n))} for n in range(count)]
    return [pod(n, {"topologySpreadConstraints": spread, **apart(rules[0])}, labels=labels[n]) for n in range(count)]


def zonal(count: int) -> list[Object]:
    draw = random.Random(3)
    rules = [together(near(chosen("b", draw.randrange(20)), ZONE)) for _ in range(count)]
    return [pod(n, rule, labels={"b": str(n % 20)}, cpu=f"{1000 + 7 * n}m") for n, rule in enumerate(rules)]


#: Each kind of workload with the number of pods that once stopped the controller, or nearly did.
CASES: Mapping[str, tuple[Callable[[int], list[Object]], int]] = {
    "distinct": (distinct, 1900),
    "keep_apart": (keep_apart, 1900),
    "spread": (spread, 1900),
    "chain": (chain, 1900),
    "large_affinity": (large_affinity, 100),
    "many_terms": (many_terms, 200),
    "preferences": (preferences, 1900),
    "gangs": (gangs, 1200),
    "single_gangs": (single_gangs, 600),
    "alike_gangs": (alike_gangs, 1200),
    "one_gang": (one_gang, 1900),
    "many_ports": (many_ports, 300),
    "random_ports": (random_ports, 400),
    "resources": (resources, 1900),
    "tolerations": (tolerations, 1900),
    "mixed": (mixed, 1900),
    "anti": (anti, 1900),
    "zonal": (zonal, 1900),
    "many_namespaces": (many_namespaces, 1900),
    "alike_first": (alike_first, 1900),
    "markets": (markets, 1900),
}


def cluster_of(objects: Iterable[Object]) -> Cluster:
    """The cluster of ``objects``, read like by a controller: one at a time, skipping those that cannot be parsed."""
    interner = Interner()
    items: list[Item] = []
    aside: list[Skipped] = []
    for each in objects:
        decoded = decode_object(each, interner)
        if isinstance(decoded, Skipped):
            aside.append(decoded)
        elif isinstance(decoded, Sequence):
            items += decoded
        elif decoded is not None:
            items.append(decoded)
    return Cluster.of(items, aside)
