"""Nodes and namespaces: labels that may be missing, odd or old, taints, and small amounts of every resource."""

from .world import HOSTNAME, NAMESPACES, OLD_REGION, OLD_ZONE, RACK, REGION, ZONE, ZONES, Json, World

TAINT_KEYS = ("dedicated", "spot", "node.kubernetes.io/unschedulable")
TAINT_VALUES = ("", "gpu", "batch")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
SIZES = ("1", "5", "10", "007", "big", "99999999999999999999")


def draw_nodes(world: World) -> None:
    for number in range(world.rng.randint(2, 7)):
        world.nodes.append(world.add("nodes", node(world, f"node{number}")))


def node(world: World, name: str) -> Json:
    spec: Json = {}
    if world.chance(0.1):
        spec["taints"] = [taint(world) for _ in range(world.rng.randint(1, 2))]
    if world.chance(0.105):
        spec["unschedulable"] = True
        if world.chance(0.25):
            spec.setdefault("taints", []).append({"key": TAINT_KEYS[2], "effect": "NoSchedule"})
    labels = node_labels(world, name)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or None},
        "spec": spec,
        "status": {"allocatable": allocatable(world), "capacity": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    }


def node_labels(world: World, name: str) -> dict[str, str]:
    labels = {}
    if world.chance(0.95):
        labels[HOSTNAME] = name if world.chance(0.97) else "twin"
    if world.chance(0.9):
        labels[ZONE] = world.one(ZONES)
        if world.chance(0.15):
            labels[OLD_ZONE] = labels[ZONE] if world.chance(0.8) else world.one(ZONES)
    elif world.chance(0.3):
        labels[OLD_ZONE] = world.one(ZONES)
    if world.chance(0.6):
        labels[REGION] = world.one(("r1", "r1", "r2"))
        if world.chance(0.1):
            labels[OLD_REGION] = labels[REGION]
    if world.chance(0.6):
        labels[RACK] = world.one(("a", "b", ""))
    if world.chance(0.6):
        labels["tier"] = world.one(("gold", "silver", ""))
    if world.chance(0.6):
        labels["size"] = world.one(SIZES)
    for key in ("topology.ebs.csi.aws.com/zone", "topology.gke.io/zone", "topology.cinder.csi.openstack.org/zone"):
        if world.chance(0.5):
            labels[key] = labels.get(ZONE, world.one(ZONES))
    return labels


def taint(world: World) -> Json:
    drawn: Json = {"key": world.one(TAINT_KEYS[:2]), "effect": world.one(EFFECTS)}
    value = world.one(TAINT_VALUES)
    if value or world.chance(0.3):
        drawn["value"] = value
    return drawn


def allocatable(world: World) -> dict[str, str]:
    amounts = {
        "cpu": world.one(("2", "4", "8", "3920m", "7.5")),
        "memory": world.one(("4Gi", "8Gi", "16Gi", "16000M", "15888Mi")),
        "pods": world.weighted({"110": 8, "8": 3, "3": 1}),
    }
    if world.chance(0.8):
        amounts["ephemeral-storage"] = world.one(("20Gi", "100G", "94992122264"))
    if world.chance(0.5):
        amounts["nvidia.com/gpu"] = world.one(("0", "1", "4", "8"))
    if world.chance(0.3):
        amounts["hugepages-2Mi"] = world.one(("0", "64Mi", "1Gi"))
    if world.chance(0.2):
        amounts["example.com/licence"] = world.one(("1", "3", "2k"))
    return amounts


def draw_namespaces(world: World) -> None:
    for name in NAMESPACES:
        if world.chance(0.9):
            labels = {"kubernetes.io/metadata.name": name}
            if world.chance(0.7):
                labels["team"] = world.one(("red", "blue"))
            world.add("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
