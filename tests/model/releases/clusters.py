"""Small clusters as stored by the API server of each release from 1.29 to 1.37, and the expected plans.

The fields of each release are extracted from Kubernetes (``fields.json``): a test rejects objects here with a field that their release
lacks. If a field is behind a feature gate that is off by default, the cluster has the gate on, unless stated otherwise. The meaning of
fields is from the named Kubernetes enhancement proposals.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.model.releases.fields import number

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SINCE = "2026-11-01T12:00:00Z"


@dataclass(frozen=True)
class Told:
    """A cluster: its ``objects`` in a release, and the expected place of each pending pod (``then``).

    This is an instance type to buy (``g.1`` has a GPU and 8 CPUs, ``g.8`` has 8 and 64), an existing node, or the reason for neither.
    """

    objects: Callable[[int], list[Json]]
    then: Callable[[int], Mapping[str, str]]


def node(name: str, *, zone: str = "z1", **status: Any) -> Json:
    """A node with 8 GPUs and 64 CPUs."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": {HOST: name, ZONE: zone}, "creationTimestamp": SINCE},
        "spec": {},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}], **status},
    }


def pod(name: str, spec: Json | None = None, *, on: str = "", labels: Mapping[str, str] | None = None, **status: Any) -> Json:
    """A pending pod that requests a GPU, or one that runs on a node."""
    now = {"phase": "Running", "startTime": SINCE} if on else {"phase": "Pending", "conditions": [waits()]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": dict(labels or {}), "creationTimestamp": SINCE},
        "spec": {"containers": [container()], **({"nodeName": on} if on else {}), **(spec or {})},
        "status": now | status,
    }


def waits() -> Json:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": SINCE}


def container(name: str = "main", gpus: int = 1, **requests: str) -> Json:
    limits = {GPU: str(gpus)} if gpus else {}
    return {"name": name, "resources": {"requests": limits | requests, "limits": limits}}


def sidecars(_minor: int) -> list[Json]:
    """A sidecar counts in addition to the containers (KEP-753, on from 1.29)."""
    sidecar = {**container("proxy", gpus=0, cpu="4"), "restartPolicy": "Always"}
    return [pod("beside", {"containers": [container(cpu="5")], "initContainers": [sidecar]})]


def starting(_minor: int) -> list[Json]:
    """A container that ends before the others start does not count."""
    return [pod("before", {"containers": [container(cpu="5")], "initContainers": [container("fetch", gpus=0, cpu="4")]})]


def as_a_whole(minor: int) -> list[Json]:
    """Pod-level resources (KEP-2837, from 1.32); without them the pod requests the sum of its containers."""
    whole = {"resources": {"requests": {"cpu": "12"}}} if minor >= 32 else {}
    return [pod("whole", {"containers": [container(cpu="2")], **whole})]


def resizing(minor: int) -> list[Json]:
    """A pod that is being shrunk still holds its old resources (KEP-1287): shown by a field until 1.32, by a condition from 1.33 on."""
    held = {"requests": {"cpu": "60", GPU: "1"}, "limits": {GPU: "1"}}
    statuses = [{"name": "main", "resources": held, "allocatedResources": held["requests"]}]
    condition = {"type": "PodResizeInProgress", "status": "True", "lastTransitionTime": SINCE}
    said: Json = {"resize": "InProgress"} if minor < 33 else {"conditions": [condition]}
    smaller = {"containers": [container(cpu="2") | {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]}
    return [node("old"), pod("smaller", smaller, on="old", containerStatuses=statuses, **said), pod("next", four())]


def refused(minor: int) -> list[Json]:
    """A pod with an infeasible request to grow keeps its resources."""
    has = {"requests": {"cpu": "2", GPU: "1"}, "limits": {GPU: "1"}}
    statuses = [{"name": "main", "resources": has, "allocatedResources": has["requests"]}]
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "lastTransitionTime": SINCE}
    said: Json = {"resize": "Infeasible"} if minor < 33 else {"conditions": [condition]}
    return [
        node("old"),
        pod("larger", {"containers": [container(cpu="90")]}, on="old", containerStatuses=statuses, **said),
        pod("next", four()),
    ]


def resizing_as_a_whole(minor: int) -> list[Json]:
    """A pod with pod-level resources that are being shrunk (KEP-5419, stored from 1.35 on, on by default from 1.36 on)."""
    spec = {"resources": {"requests": {"cpu": "2"}}} if minor >= 32 else {}
    held: Json = {"resources": {"requests": {"cpu": "60"}}, "allocatedResources": {"cpu": "60"}} if minor >= 35 else {}
    return [node("old"), pod("smaller", {"containers": [container()], **spec}, on="old", **held), pod("next", four())]


def four() -> Json:
    return {"containers": [container(cpu="8")]}


def gated(_minor: int) -> list[Json]:
    """A pod with scheduling gates (KEP-3521, on from 1.27)."""
    return [pod("held", {"schedulingGates": [{"name": "example.com/quota"}]}, conditions=[{**waits(), "reason": "SchedulingGated"}])]


def claiming(minor: int) -> list[Json]:
    """A pod with a device claim (KEP-4381), and the claim in the newest version of a release; nested one level deeper until 1.30."""
    named = {"resourceClaimName": "a-gpu"}
    uses = {"name": "gpu", **({"source": named} if minor < 31 else named)}
    asks = [{**container(gpus=0), "resources": {"claims": [{"name": "gpu"}]}}]
    decoded: list[Json] = [pod("claims", {"containers": asks, "resourceClaims": [uses]})]
    if minor >= 32:
        version = "v1beta1" if minor == 32 else "v1beta2" if minor == 33 else "v1"
        request = {"deviceClassName": "gpu.example.com"}
        wanted = {"name": "one", **(request if minor == 32 else {"exactly": request})}
        metadata = {"name": "a-gpu", "namespace": "n"}
        spec = {"devices": {"requests": [wanted]}}
        decoded.append({"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceClaim", "metadata": metadata, "spec": spec})
    return decoded


def gang(minor: int) -> list[Json]:
    """Two pods of a gang of three: gangs are in Workloads in 1.35, in PodGroups in 1.36 and 1.37 (KEP-4671, gates on), missing before."""
    policy, metadata = {"gang": {"minCount": 3}}, {"name": "train", "namespace": "n"}
    member: Json = {}
    declared: list[Json] = []
    if minor == 35:
        member = {"workloadRef": {"name": "train", "podGroup": "workers"}}
        spec: Json = {"podGroups": [{"name": "workers", "policy": policy}]}
        declared = [{"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "metadata": metadata, "spec": spec}]
    if minor >= 36:
        member = {"schedulingGroup": {"podGroupName": "train"}}
        version = "v1alpha2" if minor == 36 else "v1beta1"
        spec = {"schedulingPolicy": policy}
        declared = [{"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": metadata, "spec": spec}]
    return [*declared, pod("worker-0", member), pod("worker-1", member)]


def spreading(minor: int) -> list[Json]:
    """Pods that spread among pods of their own revision (KEP-3243, on from 1.27): the API server merges the key from 1.34 on."""
    merged = [{"key": "revision", "operator": "In", "values": ["2"]}] if minor >= 34 else []
    selector: Json = {"matchLabels": {"app": "web"}, **({"matchExpressions": merged} if merged else {})}
    constraint = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    before = [pod(f"web-{number}", on="old", labels={"app": "web", "revision": "1"}) for number in range(3)]
    after = pod(
        "web-new", {"topologySpreadConstraints": [constraint | {"matchLabelKeys": ["revision"]}]}, labels={"app": "web", "revision": "2"}
    )
    return [node("old"), node("full"), pod("big", {"containers": [container(gpus=8)]}, on="full"), *before, after]


def apart(minor: int) -> list[Json]:
    """Pods with anti-affinity to pods of their own revision (KEP-3633, on from 1.31): the API server merges the key into the selector."""
    selector: Json = {"matchLabels": {"app": "web"}}
    keys: Json = {}
    if minor >= 31:
        selector |= {"matchExpressions": [{"key": "revision", "operator": "In", "values": ["2"]}]}
        keys = {"matchLabelKeys": ["revision"]}
    term = {"topologyKey": HOST, "labelSelector": selector, **keys}
    affinity = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    before = pod("web-0", on="old", labels={"app": "web", "revision": "1"})
    return [node("old"), before, pod("web-new", affinity, labels={"app": "web", "revision": "2"})]


def daemons(minor: int) -> list[Json]:
    """The overhead of a DaemonSet's pod, from its containers or, from 1.32 on, from its pod-level resources."""
    asks = container("agent", gpus=0, **({} if minor >= 32 else {"cpu": "2"}))
    spec = {"containers": [asks], **({"resources": {"requests": {"cpu": "2"}}} if minor >= 32 else {})}
    template = {"metadata": {"labels": {"app": "agent"}}, "spec": spec}
    whole = {"selector": {"matchLabels": {"app": "agent"}}, "template": template}
    metadata = {"name": "agent", "namespace": "n", "uid": "agent"}
    return [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": whole},
        pod("large", {"containers": [container(cpu="7")]}),
    ]


def storing(_minor: int) -> list[Json]:
    """A claim that waits for its first consumer, in a class for one zone."""
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z2"]}]}]
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "10Gi"}}}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "fast"},
            "provisioner": "csi.example.com",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": topologies,
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": "csi.example.com"},
            "spec": {"storageCapacity": False},
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": "old"},
            "spec": {"drivers": [{"name": "csi.example.com", "nodeID": "old", "allocatable": {"count": 25}}]},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "n"},
            "spec": claim,
            "status": {"phase": "Pending"},
        },
        node("old"),
        pod("stores", {"volumes": volumes}),
    ]


TOLD: Mapping[str, Told] = {
    "a sidecar counts beside the containers": Told(sidecars, lambda _: {"beside": "g.8 in z1"}),
    "an init container that ends does not": Told(starting, lambda _: {"before": "g.1 in z1"}),
    "the resources of a pod as a whole count": Told(as_a_whole, lambda minor: {"whole": "g.8 in z1" if minor >= 32 else "g.1 in z1"}),
    "what a node still holds for a pod counts": Told(resizing, lambda _: {"next": "g.1 in z1"}),
    "what a node can never give does not count": Told(refused, lambda _: {"next": "old"}),
    "what a node holds for a pod as a whole counts": Told(
        resizing_as_a_whole, lambda minor: {"next": "g.1 in z1" if minor >= 35 else "old"}
    ),
    "a pod behind a gate is no demand": Told(gated, lambda _: {"held": "has scheduling gates: example.com/quota"}),
    "a pod with claims of devices is named": Told(
        claiming, lambda _: {"claims": "uses dynamic resource allocation (resource claims), which is not supported yet"}
    ),
    "a gang waits for its members": Told(
        gang, lambda minor: dict.fromkeys(("worker-0", "worker-1"), "nowhere" if minor >= 35 else "g.1 in z1")
    ),
    "pods spread among those of their revision": Told(spreading, lambda _: {"web-new": "old"}),
    "pods keep apart from those of their revision": Told(apart, lambda minor: {"web-new": "old" if minor >= 31 else "g.1 in z1"}),
    "the pod of a DaemonSet has room on a machine that is bought": Told(daemons, lambda _: {"large": "g.8 in z1"}),
    "a volume ties its pod to a zone": Told(storing, lambda _: {"stores": "g.1 in z2"}),
}


def objects(told: str, release: str) -> list[Json]:
    return TOLD[told].objects(number(release))


def then(told: str, release: str) -> Mapping[str, str]:
    return TOLD[told].then(number(release))
