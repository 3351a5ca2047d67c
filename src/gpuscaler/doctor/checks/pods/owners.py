"""The object that a person edits to change a pod: its Deployment, Job, …, or the pod itself."""

import re
from typing import Final

from gpuscaler.doctor.commands import ObjectName
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.model.workloads import Workload

#: Kinds whose pod template may be changed; those of other kinds are made again.
CHANGEABLE = ("Deployment", "StatefulSet", "DaemonSet")
_HASH = "pod-template-hash"
#: What an owner in the namespace of its pod is called. Owners are text of the author of the pod, and the API server takes any.
_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
#: Kinds without a namespace. Nodes own static pods.
_CLUSTER_SCOPED: Final = ("Node", "Namespace")


def source_of(pod: Pod, cluster: Cluster) -> ObjectName:
    """The topmost owner of ``pod`` as far as it is known."""
    if not _is_object(pod.owner):
        return ObjectName("Pod", pod.namespace, pod.name)
    workload = cluster.workloads.get(f"{pod.owner.kind}/{pod.namespace}/{pod.owner.name}")
    if workload is not None:
        return source_of_workload(workload)
    suffix = f"-{pod.labels.get(_HASH, '')}"
    if pod.owner.kind == "ReplicaSet" and len(suffix) > 1 and pod.owner.name.endswith(suffix):
        return ObjectName("Deployment", pod.namespace, pod.owner.name.removesuffix(suffix))
    return ObjectName(pod.owner.kind, pod.namespace, pod.owner.name)


def source_of_workload(workload: Workload) -> ObjectName:
    """The owner of ``workload``, or itself."""
    if _is_object(workload.owner):
        return ObjectName(workload.owner.kind, workload.namespace, workload.owner.name)
    return ObjectName(workload.kind, workload.namespace, workload.name)


def _is_object(owner: Owner) -> bool:
    """Whether ``owner`` may be an object in the namespace of what it owns."""
    return bool(_KIND.fullmatch(owner.kind) and _NAME.fullmatch(owner.name)) and owner.kind not in _CLUSTER_SCOPED
