"""The cases of the conformance run: small random clusters and pods, each from a seed and a number.

This generator shares no code with that of the property tests, so that they do not have the same blind spots. An API server could store
every case. A pod is drawn plain, then one or a few features are added to it, so that every plug-in is often the only one that refuses a
node. Each case has a few topics: features that its pods share, so that for example ports conflict with ports.

Cases do not include situations with a random result (two volumes of one size, or reserved for one claim: the scheduler takes the first
of a Go map).
"""

import random
from collections.abc import Callable

from . import peers, placing, requests, volumes
from .nodes import draw_namespaces, draw_nodes
from .storage import draw_attachments, draw_storage
from .world import NAMESPACES, Json, World

Feature = Callable[[World, Json], None]

#: Features of pending pods, by how often each is a topic.
PENDING: dict[Feature, float] = {
    requests.large: 1.6,
    placing.node_name: 3.7,
    placing.node_selector: 0.5,
    placing.node_affinity: 3.0,
    placing.tolerations: 0.8,
    placing.host_ports: 7.4,
    peers.affinity: 1.5,
    peers.anti_affinity: 1.1,
    peers.spread: 11.0,
    volumes.disks: 9.9,
    volumes.attached: 0.5,
    volumes.zoned: 6.1,
    volumes.bound_somewhere: 3.8,
    volumes.harmless: 0.5,
}
#: Features of running pods, in addition to topics.
BOUND: dict[Feature, float] = {
    requests.large: 1.6,
    placing.host_ports: 2.0,
    peers.affinity: 0.5,
    peers.anti_affinity: 1.1,
    volumes.disks: 2.0,
    volumes.attached: 2.0,
    volumes.bound_somewhere: 0.5,
    placing.tolerations: 0.5,
}
#: In every case with a number divisible by this, pending pods are placed one after the other instead of being judged independently.
REPLAYED = 4


def draw_case(seed: int, number: int) -> Json:
    """Case ``number`` of ``seed``, in the oracle's form: lists of Kubernetes objects by kind, and the pods to judge."""
    world = World(random.Random(f"{seed}/{number}"))
    draw_namespaces(world)
    draw_nodes(world)
    draw_storage(world)
    topics = [world.weighted(PENDING) for _ in range(world.rng.randint(1, 3))]
    for _ in range(world.rng.randint(0, 14)):
        world.add("pods", bound_pod(world, [topic for topic in topics if topic in BOUND]))
    replayed = number % REPLAYED == 0
    for _ in range(world.rng.randint(1, 8 if replayed else 4)):
        models = [*world.of("pods"), *world.of("pending")]
        alike = models and world.chance(0.4 if replayed else 0.06)
        world.add("pending", like(world, world.one(models)) if alike else pending_pod(world, topics))
    draw_attachments(world)
    case: Json = {kind: items for kind, items in world.objects.items() if items}
    if replayed:
        case["replay"] = [replay_step(world, index) for index in range(len(world.of("pending")))]
    return case


def replay_step(world: World, index: int) -> Json:
    names = [node["metadata"]["name"] for node in world.nodes]
    return {"pod": index, "nodes": world.some(names, len(names), len(names))}


def pending_pod(world: World, topics: list[Feature]) -> Json:
    pod = plain_pod(world)
    features = {world.one(topics)}
    for _ in range(world.weighted({0: 8, 1: 1.5, 2: 0.5})):
        features.add(world.weighted(PENDING))
    add_features(world, pod, features)
    return pod


def like(world: World, model: Json) -> Json:
    """Another pending pod of the controller that created ``model``; its volumes are the same, or missing."""
    name = world.name("pod")
    spec = {key: value for key, value in model["spec"].items() if key != "nodeName"}
    metadata = {key: value for key, value in model["metadata"].items() if key != "deletionTimestamp"}
    return {**model, "metadata": {**metadata, "name": name, "uid": f"uid-{name}"}, "spec": spec, "status": {"phase": "Pending"}}


def bound_pod(world: World, topics: list[Feature]) -> Json:
    pod = plain_pod(world)
    features = {world.weighted(BOUND) for _ in range(world.weighted({0: 5, 1: 4, 2: 1}))}
    if topics and world.chance(0.7):
        features.add(world.one(topics))
    pod["spec"]["nodeName"] = world.node_name()
    add_features(world, pod, features)
    pod["status"]["phase"] = world.weighted({"Running": 9.0, "Pending": 1.0, "Succeeded": 0.6, "Failed": 0.4})
    if world.chance(0.1):
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if world.chance(0.06):
        requests.resized(world, pod)
    return pod


def plain_pod(world: World) -> Json:
    name = world.name("pod")
    if world.of("pods") and world.chance(0.15):
        # Its name starts with that of another pod.
        name = f"{world.one(world.of('pods'))['metadata']['name']}-{name}"
    metadata: Json = {"name": name, "namespace": world.weighted(dict(zip(NAMESPACES, (6, 2, 1), strict=True))), "uid": f"uid-{name}"}
    labels = peers.pod_labels(world)
    if labels is not None:
        metadata["labels"] = labels
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": "Pending"}}
    requests.small(world, pod)
    return pod


def add_features(world: World, pod: Json, features: set[Feature]) -> None:
    """Add features in the order of the tables, not of the set: requests replace the containers, so they come first."""
    for feature in {**PENDING, **BOUND}:
        if feature in features:
            feature(world, pod)
