"""Kubernetes objects as JSON: objects that users submit, and nodes as kubelets register them."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

GPU = "nvidia.com/gpu"


def pod(
    name: str = "p",
    gpus: int = 1,
    annotations: Mapping[str, str] | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    cpu: str = "1",
    memory: str = "1Gi",
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Json:
    """A pod with one container that requests these resources."""
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {GPU: str(gpus)} if gpus else {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {}), **(metadata or {})},
        "spec": {"containers": [{"name": "main", "image": "train:1", "resources": resources}], **spec},
        **({"status": status} if status is not None else {}),
    }


def node(
    name: str = "n",
    gpus: int = 0,
    *,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    cpu: str = "8",
    memory: str = "32Gi",
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Json:
    """A ready node with these resources."""
    amounts = {"cpu": cpu, "memory": memory, "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}, **(metadata or {})},
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready], **(status or {})},
    }


def template(name: str, of: Json) -> Json:
    """A pod template from the pod ``of``, with the label ``app``."""
    metadata = {"labels": {"app": name}, "annotations": of["metadata"].get("annotations", {})}
    return {"metadata": metadata, "spec": of["spec"]}


def workload(kind: str, name: str, of: Json, **spec: Any) -> Json:
    """A workload of the API group ``apps``, with a pod template from the pod ``of`` and the label ``app``."""
    whole = {"selector": {"matchLabels": {"app": name}}, "template": template(name, of), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": whole}


def budget(name: str, app: str = "", **spec: Any) -> Json:
    """A PodDisruptionBudget for the pods with the label ``app``, which is the budget's name by default."""
    whole = {"selector": {"matchLabels": {"app": app or name}}, **spec}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": whole}
