"""Random hostile workloads: every rule, with many different values, deep nesting, huge sums and megabytes of annotations."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.hostile.workloads import HOST, HUGE, ZONE, Object, apart, chosen, containers, near, node, pod, ports, together, wanting_nodes

Draw = Callable[[Random, int, int], tuple[Object, Object]]
AMOUNTS = ("0", "1", "1m", "100m", "1Gi", "1e3", "9007199254740992", "9007199254740993", "1e400", "-1", "NaN", "0x10", "\uff11", "")
ODD = ("", "x" * 300, "\x1b[31m", "9" * 500, "-1", "1e99h", "2500000h", "null", "[]", "\uff58", "0", "true")
ANNOTATIONS = (
    *(f"gpuscaler.io/{name}" for name in ("gang", "gang-size", "gang-topology", "market", "spot-wait", "deadline", "grace", "run-for")),
    *(f"gpuscaler.io/{name}" for name in ("expected-duration", "restart-cost", "disruption", "steering")),
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "cluster-autoscaler.kubernetes.io/pod-scale-up-delay",
    "karpenter.sh/do-not-disrupt",
)


def selector(luck: Random, count: int) -> Object:
    kind = luck.randrange(4)
    if kind == 0:
        return chosen(luck.choice("abk"), *(luck.randrange(count) for _ in range(luck.randint(1, 30))))
    if kind == 1:
        return {"matchExpressions": [{"key": f"k{luck.randrange(9)}", "operator": luck.choice(["Exists", "DoesNotExist", "Gt", "??"])}]}
    return {"matchLabels": {"a": str(luck.randrange(count))}} if kind == 2 else {}


def affinity(luck: Random, _number: int, count: int) -> tuple[Object, Object]:
    terms = [near(selector(luck, count), luck.choice([HOST, ZONE, "rack", ""])) for _ in range(luck.randint(1, 20))]
    for term in terms:
        if luck.random() < 0.2:
            term["namespaceSelector"] = selector(luck, count)
    return (together if luck.random() < 0.4 else apart)(*terms), {}


def spreading(luck: Random, _number: int, count: int) -> tuple[Object, Object]:
    rules = [
        {
            "maxSkew": luck.choice([0, 1, 2**31 - 1, -5]),
            "topologyKey": luck.choice([HOST, ZONE, "rack"]),
            "whenUnsatisfiable": luck.choice(["DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": selector(luck, count),
            "minDomains": luck.choice([None, 1, 10_000]),
        }
        for _ in range(luck.randint(1, 20))
    ]
    return {"topologySpreadConstraints": rules}, {}


def nodes_wanted(luck: Random, number: int, _count: int) -> tuple[Object, Object]:
    operators = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "nonsense"]
    terms = [
        [{"key": f"k{luck.randrange(99)}", "operator": luck.choice(operators), "values": [f"v{number}", *"abc"[: luck.randrange(4)]]}]
        for _ in range(luck.choice([1, 10, 300, 3000]))
    ]
    return wanting_nodes(*terms), {}


def sums(luck: Random, _number: int, _count: int) -> tuple[Object, Object]:
    resource = luck.choice(["memory", "cpu", "nvidia.com/gpu", "ephemeral-storage", "x.io/y", "hugepages-2Mi"])
    return containers(luck.choice([1, 2, 100, 1024]), **{resource: luck.choice([HUGE, *AMOUNTS])}), {}


def host_ports(luck: Random, _number: int, _count: int) -> tuple[Object, Object]:
    return ports(*(luck.randint(1, 3000) for _ in range(luck.choice([1, 20, 200])))), {}


def gang(luck: Random, number: int, _count: int) -> tuple[Object, Object]:
    size = luck.choice([1, 2, 5, 1000])
    return {}, {"gpuscaler.io/gang": f"g{number // size}", "gpuscaler.io/gang-size": str(size), "gpuscaler.io/gang-topology": "any"}


def pod_with_odd_annotations(luck: Random, _number: int, _count: int) -> tuple[Object, Object]:
    annotations = {name: luck.choice(ODD) for name in luck.sample(ANNOTATIONS, 4)}
    return {}, {**annotations, "notes": "x" * luck.choice([0, 1000, 1_000_000])}


def tolerating(luck: Random, number: int, _count: int) -> tuple[Object, Object]:
    many = luck.choice([1, 100, 2000])
    return {
        "tolerations": [{"key": f"k{n}", "operator": luck.choice(["Equal", "Exists", ""]), "value": str(number)} for n in range(many)]
    }, {}


def claiming(luck: Random, number: int, _count: int) -> tuple[Object, Object]:
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{number + n}"}} for n in range(luck.choice([1, 50]))]
    return {"volumes": [*volumes, {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}, {}


def alike_at_first(luck: Random, number: int, count: int) -> tuple[Object, Object]:
    """Selectors that first match a label of all pods, and then labels that differ."""
    keys = [f"k{n}" for n in range(luck.choice([1, 10, 60]))]
    rule = {"topologyKey": luck.choice([HOST, ZONE]), "labelSelector": {"matchLabels": {"app": "x"}}, "matchLabelKeys": keys}
    spread = {**rule, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [spread], **apart(rule, near({"matchLabels": {"app": "x", "b": str(number % count)}}, ZONE))}, {}


def single_gang(_luck: Random, number: int, _count: int) -> tuple[Object, Object]:
    return {}, {"gpuscaler.io/gang": f"s{number}", "gpuscaler.io/gang-size": "1"}


RULES: tuple[Draw, ...] = (
    affinity,
    spreading,
    nodes_wanted,
    sums,
    host_ports,
    gang,
    pod_with_odd_annotations,
    tolerating,
    claiming,
    alike_at_first,
    single_gang,
)


def nested(depth: int) -> Any:
    """A value that is nested ``depth`` deep; it is built and written without recursion."""
    return json.loads("[" * depth + "]" * depth) if depth < 900 else "[" * 50


def workload(luck: Random, count: int) -> list[Object]:
    """``count`` pods of one tenant with one to three kinds of rules, in one or many namespaces, some of them bound to one of two nodes."""
    kinds = luck.sample(RULES, luck.randint(1, 3))
    spaces = luck.choice([1, 1, 10, count])
    objects = [node("n1"), node("n2", allocatable={"memory": luck.choice(["15Gi", HUGE, "9e18"])})]
    for number in range(count):
        spec: Object = {}
        annotations: Object = {}
        for draw in kinds:
            rules, notes = draw(luck, number, count)
            inner = {**spec.get("affinity", {}), **rules.get("affinity", {})}
            spec = {**spec, **rules, **({"affinity": inner} if inner else {})}
            annotations |= notes
        if luck.random() < 0.1:
            spec["nodeName"] = luck.choice(["n1", "n2", "ghost"])
        made = pod(
            number,
            spec,
            labels={"app": "x", "a": str(number), "b": str(number % 20), f"k{number % 9}": "v"},
            namespace="tenant" if spaces == 1 else f"tenant-{number % spaces}",
            annotations=annotations,
            cpu=f"{1000 + luck.randrange(count)}m",
        )
        if luck.random() < 0.05:
            made["status"]["nominatedNodeName"] = "n1"
        if luck.random() < 0.05:
            made["metadata"]["managedFields"] = nested(luck.choice([3, 800]))
        objects.append(made)
    return objects
