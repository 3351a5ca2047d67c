"""Pod features that restrict nodes: node name, node selector, node affinity, tolerations, host ports."""

from .nodes import EFFECTS, SIZES, TAINT_KEYS, TAINT_VALUES
from .world import HOSTNAME, RACK, ZONE, ZONES, Json, World, or_null

#: Label values that a node may have, and some that no node has.
VALUES = {
    ZONE: (*ZONES, "eu-west9-a"),
    RACK: ("a", "b", ""),
    "tier": ("gold", "silver", "", "iron"),
    "size": SIZES,
    HOSTNAME: ("node0", "node1", "node2"),
    "missing": ("x", "y"),
}
#: Invalid label values. The API server rejects them in new pods; in older pods they make their whole term match nothing.
INVALID = ("y z!", "-5", "+4")
#: Operands of numeric comparisons of labels, some of them invalid.
BOUNDS = ("4", "0", "7", "010", "1.5", "x", "9223372036854775808")
PORTS = {80: 6.0, 443: 2.0, 8080: 2.0}
ADDRESSES = ("", "0.0.0.0", "10.0.0.1", "127.0.0.1", "::1")
PROTOCOLS = ("TCP", "UDP", "SCTP", "")


def node_name(world: World, pod: Json) -> None:
    pod["spec"]["nodeName"] = world.node_name()


def node_selector(world: World, pod: Json) -> None:
    keys = world.some(tuple(VALUES)[:5], 2, 0)
    drawn = {key: world.one(VALUES[key]) for key in keys}
    pod["spec"]["nodeSelector"] = drawn if drawn or world.chance(0.5) else None


def node_affinity(world: World, pod: Json) -> None:
    if world.chance(0.05):
        drawn = world.one(({}, {"nodeAffinity": {}}, {"nodeAffinity": None}, {"nodeAffinity": {REQUIRED: None}}))
    else:
        terms = [node_term(world) for _ in range(world.weighted({1: 6, 2: 3, 3: 1}))]
        drawn = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    pod["spec"].setdefault("affinity", {}).update(drawn)


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node_term(world: World) -> Json:
    term: Json = {}
    expressions = [node_requirement(world) for _ in range(world.weighted({0: 2, 1: 6, 2: 2}))]
    fields = [field_requirement(world)] if world.chance(0.2) else []
    if expressions or world.chance(0.3):
        term["matchExpressions"] = or_null(world, expressions)
    if fields or world.chance(0.3):
        term["matchFields"] = or_null(world, fields)
    return term


def node_requirement(world: World) -> Json:
    key = world.one(tuple(VALUES))
    operator = world.weighted({"In": 5, "NotIn": 3, "Exists": 2, "DoesNotExist": 1.5, "Gt": 2, "Lt": 2})
    odd = INVALID if world.chance(0.03) else ()
    if operator in ("Gt", "Lt"):
        return {"key": world.one((key, "size", "size", "size")), "operator": operator, "values": [world.one(odd or BOUNDS)]}
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator, **world.one(({}, {"values": None}, {"values": []}))}
    return {"key": key, "operator": operator, "values": world.some((*VALUES[key], *odd), 2)}


def field_requirement(world: World) -> Json:
    """A requirement on the node's name; sometimes one that the API server rejects, which matches nothing or has an unknown field."""
    drawn: Json = {
        "key": "metadata.name",
        "operator": world.one(("In", "In", "NotIn")),
        "values": ["gone" if world.chance(0.15) else world.node_name()],
    }
    if world.chance(0.2):
        odd = (
            {"operator": "Exists"},
            {"values": ["node0", "node1"]},
            {"key": "metadata.namespace"},
            {"key": "metadata.uid", "values": [""]},
        )
        drawn |= world.one(odd)
    return drawn


def tolerations(world: World, pod: Json) -> None:
    pod["spec"]["tolerations"] = [toleration(world) for _ in range(world.rng.randint(1, 3))]


def toleration(world: World) -> Json:
    if world.chance(0.06):
        return {"operator": "Exists"}
    drawn: Json = {"key": world.one(TAINT_KEYS)}
    operator = world.weighted({"Exists": 4, "Equal": 4, None: 2, "Gt": 0.4})
    if operator is not None:
        drawn["operator"] = operator
    if operator != "Exists" and world.chance(0.8):
        drawn["value"] = world.one(TAINT_VALUES)
    if world.chance(0.05):
        drawn["key"] = ""
    if world.chance(0.7):
        drawn["effect"] = world.weighted({EFFECTS[0]: 5, EFFECTS[1]: 3, EFFECTS[2]: 1, "": 1})
    if drawn.get("effect") == "NoExecute" and world.chance(0.3):
        drawn["tolerationSeconds"] = 300
    return drawn


def host_ports(world: World, pod: Json) -> None:
    """Host ports of containers, and of init containers, which hold them only if they are sidecars."""
    spec = pod["spec"]
    containers = [*spec["containers"]]
    if world.chance(0.2):
        init: Json = {"name": "ports-first"}
        if world.chance(0.6):
            init["restartPolicy"] = "Always"
        spec.setdefault("initContainers", []).append(init)
        containers.append(init)
    world.one(containers)["ports"] = [port(world) for _ in range(world.rng.randint(1, 3))]


def port(world: World) -> Json:
    number = world.weighted(PORTS)
    drawn: Json = {"containerPort": number, "hostPort": number}
    if world.chance(0.05):
        drawn["hostPort"] = 0
    address = world.weighted(dict(zip(ADDRESSES, (6, 2, 2, 2, 1), strict=True)))
    if address:
        drawn["hostIP"] = address
    protocol = world.weighted(dict(zip(PROTOCOLS, (7, 3, 1, 0.5), strict=True)))
    if protocol:
        drawn["protocol"] = protocol
    return drawn
