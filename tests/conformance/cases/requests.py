"""Requests of a pod: containers, init containers, sidecars, overhead, pod-level resources, and resizes in progress."""

from .world import Json, World

CPU = ("0", "100m", "250m", "0.5", "1", "1500m", "2", "1e0", "333m")
MEMORY = ("0", "128Mi", "1Gi", "512M", "1.5Gi", "1e9", "2Gi", "129e6")
#: Valid amounts that are finer than the scheduler counts.
FINE = {"cpu": ("100500u", "0.1005", "1n"), "memory": ("1500m", "0.5", "100.1Mi")}
EXTENDED = {
    "nvidia.com/gpu": ("0", "1", "2", "4"),
    "example.com/licence": ("1", "2", "0"),
    "hugepages-2Mi": ("2Mi", "64Mi", "100Mi"),
    "ephemeral-storage": ("1Gi", "10G", "30Gi"),
}


def small(world: World, pod: Json) -> None:
    """Add requests that most nodes have room for."""
    pod["spec"]["containers"] = [{"name": "main", "resources": world.one(({}, {"requests": {"cpu": "100m", "memory": "64Mi"}}, {}))}]


def large(world: World, pod: Json) -> None:
    """Add requests that many nodes have no room for, in every form that Kubernetes supports."""
    spec = pod["spec"]
    spec["containers"] = [container(world, f"c{number}", large=number == 0) for number in range(world.weighted({1: 6, 2: 3, 3: 1}))]
    if world.chance(0.3):
        spec["initContainers"] = [init_container(world, f"i{number}") for number in range(world.rng.randint(1, 3))]
    if world.chance(0.1):
        spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    if world.chance(0.1):
        pod_level(world, spec)


def pod_level(world: World, spec: Json) -> None:
    """Add pod-level requests, which replace those of its containers.

    Its containers then have no huge pages: the API server would add requests of the pod from their limits.
    """
    requests = {"cpu": world.one(("3", "5")), "memory": world.one(("4Gi", "9Gi"))}
    if world.chance(0.3):
        del requests[world.one(("cpu", "memory"))]
    spec["resources"] = {"requests": requests}
    for drawn in (*spec["containers"], *spec.get("initContainers", ())):
        for amounts in drawn["resources"].values():
            (amounts or {}).pop("hugepages-2Mi", None)


def container(world: World, name: str, *, large: bool = False) -> Json:
    amounts = {}
    if world.chance(0.8):
        amounts["cpu"] = world.one(("3", "4", "6", "7800m")) if large and world.chance(0.5) else world.one(CPU)
    if world.chance(0.7):
        amounts["memory"] = world.one(("6Gi", "9Gi", "15G")) if large and world.chance(0.4) else world.one(MEMORY)
    for resource in world.some(tuple(EXTENDED), 2, 0):
        if world.chance(0.4):
            amounts[resource] = world.one(EXTENDED[resource])
    if world.chance(0.04):
        resource = world.one(tuple(FINE))
        amounts[resource] = world.one(FINE[resource])
    return {"name": name, "resources": with_limits(world, amounts)}


def with_limits(world: World, amounts: dict[str, str]) -> Json:
    """Requests as the API server stores them: every limit has a request, and extended resources have both with the same amount."""
    if not amounts:
        return world.one(({}, {"requests": {}}, {"requests": None}))
    limits = {resource: amount for resource, amount in amounts.items() if "/" in resource or resource.startswith("hugepages-")}
    if world.chance(0.3) and "cpu" in amounts:
        limits["cpu"] = "16"
    return {"requests": amounts, "limits": limits} if limits else {"requests": amounts}


def init_container(world: World, name: str) -> Json:
    drawn = container(world, name, large=world.chance(0.3))
    if world.chance(0.4):
        drawn["restartPolicy"] = "Always"
    return drawn


def resized(world: World, pod: Json) -> None:
    """Put a running pod in the middle of an in-place resize: the kubelet reports amounts that differ from the requests in the spec."""
    statuses = []
    for drawn in pod["spec"]["containers"]:
        asked = (drawn.get("resources") or {}).get("requests") or {}
        actual = {**asked, "cpu": world.one(CPU)}
        status: Json = {"name": drawn["name"], "resources": {"requests": actual}}
        if world.chance(0.7):
            status["allocatedResources"] = {**asked, "cpu": world.one((actual["cpu"], asked.get("cpu", "0")))}
        if world.chance(0.9):
            statuses.append(status)
    pod["status"]["containerStatuses"] = statuses
    if world.chance(0.3):
        reason = world.one(("Infeasible", "Deferred"))
        pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
