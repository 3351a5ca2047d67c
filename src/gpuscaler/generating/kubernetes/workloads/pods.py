"""What the pods of all examples have in common: where they run, what they may do, and what they request."""

from collections.abc import Iterable
from typing import Final

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import KOPS
from gpuscaler.generating.kubernetes.device_plugin import KOPS_RUNTIME_CLASS
from gpuscaler.generating.kubernetes.workloads.placing import GPU, Place
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS

#: An ordinary user of the containers, who owns the files of their volumes.
USER: Final = 1000
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - in a container, which has it to itself
#: Where programs without a home folder write their caches.
_HOME: Final = "/tmp"  # noqa: S108 - in a container


def pod_spec(description: Description, place: Place, container: Tree, volumes: Iterable[Tree], *, group: int = USER) -> dict[str, Tree]:
    """Return the parts of a pod's specification that follow from its place, its container and its volumes."""
    spec: dict[str, Tree] = {}
    if description.tool == KOPS:
        spec["runtimeClassName"] = because(
            "kOps' containerd mounts the driver only into pods of this class, which kOps creates.", KOPS_RUNTIME_CLASS
        )
    if place.labels:
        spec["nodeSelector"] = because(
            f"The labels of the pool {place.pool}, the same as in the files of its groups. Values are text: a bare true is refused.",
            dict(place.labels),
        )
    spec["affinity"] = {
        "nodeAffinity": because(
            f"The machines of the pool {place.pool}. This label exists on every node and in every group without a node, so gpuscaler knows "
            "which machine to buy.",
            {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": INSTANCE_TYPE_LABELS[0], "operator": "In", "values": list(place.types)}]}
                    ]
                }
            },
        )
    }
    if place.taints:
        spec["tolerations"] = because(
            "The taints of the pool's nodes, which keep other pods off. Without one of these tolerations the pod stays pending.",
            [_toleration(taint.key, taint.value, taint.effect) for taint in place.taints],
        )
    spec |= {
        "automountServiceAccountToken": because("The program does not talk to the API server, so it gets no token that could leak.", False),
        "securityContext": because(
            "An ordinary user, which the namespace's Pod Security Standard asks for. The group owns the volumes, so that the user can "
            "write.",
            {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": group, "fsGroup": group, "seccompProfile": {"type": "RuntimeDefault"}},
        ),
        "containers": [container],
        "volumes": list(volumes),
    }
    return spec


def _toleration(key: str, value: str, effect: str) -> Tree:
    return {"key": key, "operator": "Equal", "value": value, "effect": effect}


def container_limits() -> Tree:
    """Return the security context of a container."""
    return because("Rights that a program with GPUs does not need.", {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}})


def resources(place: Place) -> Tree:
    """Return requests and limits of a container that uses the place's GPUs alone."""
    memory = f"{place.memory_gib}Gi"
    return {
        "requests": because(
            "Three quarters of what the GPUs' share of the smallest machine has, which leaves room for DaemonSets. More would fit no "
            "machine.",
            {"cpu": str(place.cpus), "memory": memory},
        ),
        "limits": {
            GPU: because(
                f"All {place.gpus} GPUs of a machine." if place.gpus > 1 else "Whole GPUs only. The request is the same as the limit.",
                str(place.gpus),
            ),
            "memory": because("The same as the request: a pod that uses more is ended instead of another one on its machine.", memory),
        },
    }


def shared_memory(place: Place) -> tuple[Tree, Tree]:
    """Return the volume of shared memory and its mount. Without it a container has 64 MiB."""
    size = f"{max(1, place.memory_gib // 4)}Gi"
    volume = because(
        "Workers that load data, and NCCL, exchange data through shared memory, of which containers have 64 MiB otherwise. It counts as "
        "the container's memory.",
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
    )
    return volume, {"name": "shm", "mountPath": SHARED_MEMORY}


def metadata(name: str, place: Place) -> Tree:
    why = (
        f"The namespace of the example, whose pods may use the pool {place.pool}. If the namespace has a quota, it has room for this "
        "example alone; several examples at the same time may not fit."
    )
    return because(why, {"name": name, "namespace": place.namespace})


def labels(name: str) -> Tree:
    return because("By these labels, Services, budgets and people find the pods.", {"app.kubernetes.io/name": name})


def home() -> Tree:
    """Return the environment of a container whose image has no home folder for the user."""
    why = "The user of the container has no home folder in this image; libraries write their caches here."
    return because(why, [{"name": "HOME", "value": _HOME}, {"name": "USER", "value": "trainer"}])


def market(place: Place) -> dict[str, Tree]:
    """Return annotations for work that may be interrupted, where the pool has a choice."""
    if place.markets < {"spot", "on-demand"}:
        return {}
    return {
        "gpuscaler.io/spot-wait": because(
            "If no spot machine can be had, the pod waits this long before gpuscaler buys an on-demand one.", "10m"
        )
    }


def gang(name: str, size: int) -> dict[str, Tree]:
    return {
        "gpuscaler.io/gang": because("Pods of a gang are placed together or not at all: a part of them would hold GPUs and wait.", name),
        "gpuscaler.io/gang-size": because("How many pods must be placed together.", str(size)),
    }


def claim(name: str, place: Place, storage_class: str, size: str) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(name, place),
        "spec": claim_spec(storage_class, size),
    }


def claim_spec(storage_class: str, size: str) -> Tree:
    return {
        "accessModes": because("A disk, which one machine has at a time.", ["ReadWriteOnce"]),
        "storageClassName": because(
            "By name, since not every cluster has a default class. The disk lies in one zone: once it exists, gpuscaler buys in that zone "
            "only. A shared file system or object storage has no such limit.",
            storage_class,
        ),
        "resources": because("Enlarge it to what your work needs.", {"requests": {"storage": size}}),
    }
