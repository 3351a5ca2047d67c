"""Typical workloads, each in its own namespace and pool, from no machines to machines and back to none."""

from collections import Counter
from collections.abc import Awaitable, Callable

from tests.e2e.objects import daemon_set, deployment, job, pod, pod_spec, stateful_set
from tests.e2e.stage import Stage
from tests.e2e.storage import claim
from tests.objects import Json

from gpuscaler.kube.resources import DAEMON_SETS, PERSISTENT_VOLUME_CLAIMS, PODS

ZONE, TYPE, HOST = "topology.kubernetes.io/zone", "node.kubernetes.io/instance-type", "kubernetes.io/hostname"
ZONES = ["us-east-1a", "us-east-1b"]

Scenario = Callable[[Stage, str], Awaitable[None]]


async def labels(stage: Stage, pool: str, label: str) -> list[str]:
    """The values of a label on the nodes of a pool."""
    return sorted(node["metadata"]["labels"][label] for node in await stage.nodes(pool))


async def a_deployment(stage: Stage, name: str) -> None:
    await stage.create(deployment("serve", 3, pod_spec(name)), name)
    assert len(await stage.bound(name, 3)) == 3
    await stage.scale("Deployment", "serve", name, 0)
    await stage.empty(name)


async def a_stateful_set(stage: Stage, name: str) -> None:
    await stage.create(stateful_set("db", 2, pod_spec(name)), name)
    assert sorted(await stage.bound(name, 2)) == ["db-0", "db-1"]
    await stage.scale("StatefulSet", "db", name, 0)
    await stage.empty(name)


async def a_job(stage: Stage, name: str) -> None:
    await stage.create(job("train", 4, pod_spec(name), run_for="3s"), name)
    await stage.done("train", name, 4)
    await stage.empty(name)
    assert {pod["status"]["phase"] for pod in await stage.pods(name)} <= {"Succeeded"}


async def a_daemon_set(stage: Stage, name: str) -> None:
    await stage.create(daemon_set("agent", pod_spec(name, gpus=0, cpu="1500m")), name)
    await stage.create(pod("train", name, cpu="2500m"), name)
    bound = await stage.bound(name, 2)
    assert bound["train"] in {node["metadata"]["name"] for node in await stage.nodes(name)}
    assert await labels(stage, name, TYPE) == ["g5.2xlarge"]
    await stage.admin.delete(PODS, "train", namespace=name)
    await stage.empty(name)
    await stage.admin.delete(DAEMON_SETS, "agent", namespace=name)


async def a_volume(stage: Stage, name: str) -> None:
    await stage.admin.create(PERSISTENT_VOLUME_CLAIMS, claim("data"), namespace=name)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    first = pod("first", name, volumes=volumes)
    first["spec"]["nodeSelector"][ZONE] = ZONES[1]
    await stage.create(first, name)
    await stage.bound(name, 1)
    await stage.admin.delete(PODS, "first", namespace=name)
    await stage.empty(name)
    # Only its volume ties the second pod to the zone.
    await stage.create(pod("second", name, volumes=volumes), name)
    await stage.bound(name, 1)
    assert await labels(stage, name, ZONE) == [ZONES[1]]
    await stage.admin.delete(PODS, "second", namespace=name)
    await stage.empty(name)


async def anti_affinity(stage: Stage, name: str) -> None:
    term = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": HOST}
    spec = pod_spec(name, affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    await stage.create(deployment("apart", 3, spec), name)
    bound = await stage.bound(name, 3)
    assert len(set(bound.values())) == 3
    await stage.scale("Deployment", "apart", name, 0)
    await stage.empty(name)


async def spread(stage: Stage, name: str) -> None:
    rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "even"}}}
    await stage.create(deployment("even", 4, pod_spec(name, topologySpreadConstraints=[rule])), name)
    bound = await stage.bound(name, 4)
    zones = {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in await stage.nodes(name)}
    assert Counter(zones[node] for node in bound.values()) == Counter(dict.fromkeys(ZONES, 2))
    await stage.scale("Deployment", "even", name, 0)
    await stage.empty(name)


async def failover(stage: Stage, name: str) -> None:
    await stage.create(deployment("any", 2, pod_spec(name)), name)
    await stage.bound(name, 2)
    assert set(await labels(stage, name, "karpenter.sh/capacity-type")) == {"on-demand"}
    (controller,) = stage.controllers
    answered = controller.logged("answered", pool=name)
    refused = [line for line in answered if " refused: " in line["message"]]
    granted = [line for line in answered if not line["message"].startswith("0 of ")]
    assert refused
    assert granted[0]["at"] - refused[0]["at"] < 10
    await stage.scale("Deployment", "any", name, 0)
    await stage.empty(name)


async def a_gang(stage: Stage, name: str) -> None:
    together = {"gpuscaler.io/gang": "big", "gpuscaler.io/gang-size": "3"}
    for number in range(3):
        await stage.create(pod(f"rank-{number}", name, gpus=8, annotations=together), name)
    bound = await stage.bound(name, 3)
    assert len(set(bound.values())) == 3
    assert len(set(await labels(stage, name, ZONE))) == 1
    for number in range(3):
        await stage.admin.delete(PODS, f"rank-{number}", namespace=name)
    await stage.empty(name)


async def steering(stage: Stage, name: str) -> None:
    """Ten machines of 8 GPUs for ten pods of 3 and ten of 5 GPUs. Without steering, pods of 3 take the room of pods of 5."""
    for number in range(10):
        await stage.create(pod(f"three-{number}", name, gpus=3), name)
        await stage.create(pod(f"five-{number}", name, gpus=5), name)
    bound = await stage.bound(name, 20)
    assert Counter(bound.values()) == Counter(dict.fromkeys(bound.values(), 2))
    (controller,) = stage.controllers
    assert len(controller.logged("ordered", pool=name)) == 1
    for pod_name in bound:
        await stage.admin.delete(PODS, pod_name, namespace=name)
    await stage.empty(name)


#: Each scenario and its pool, by the sentence that it proves.
SCENARIOS: dict[str, tuple[Scenario, Json]] = {
    "a Deployment gets machines, and none is left when it is scaled to zero": (a_deployment, {"types": ["g4dn.xlarge", "g4dn.12xlarge"]}),
    "a StatefulSet starts in order, and its machines go with it": (a_stateful_set, {"types": ["g5.xlarge"]}),
    "a Job completes, and its machines go when it is done": (a_job, {"types": ["g4dn.xlarge", "g4dn.12xlarge"]}),
    "a machine is bought that also has room for the DaemonSet": (a_daemon_set, {"types": ["g5.xlarge", "g5.2xlarge"]}),
    "a pod follows its volume to the zone that its first machine was in": (a_volume, {"types": ["g5.xlarge"], "zones": ZONES}),
    "pods with anti-affinity get a machine each": (anti_affinity, {"types": ["g5.xlarge", "g5.12xlarge"]}),
    "pods that spread over zones get machines in both zones": (spread, {"types": ["g5.xlarge"], "zones": ZONES}),
    "pods get on-demand machines within seconds when spot is dry": (failover, {"types": ["g5.xlarge"], "markets": ["spot", "on-demand"]}),
    "a gang gets its machines together, in one zone": (a_gang, {"types": ["g5.48xlarge"], "zones": ZONES}),
    "pods of several sizes run on the machines that they were promised": (steering, {"types": ["g5.48xlarge"]}),
}
#: The scenario whose pool has no spot capacity.
DRY = "pods get on-demand machines within seconds when spot is dry"
