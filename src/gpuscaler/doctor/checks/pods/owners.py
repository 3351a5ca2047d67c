"""The object that a person edits to change a pod: its Deployment, Job, …, or the pod itself."""

from gpuscaler.doctor.commands import ObjectName
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import Workload

#: Kinds whose pod template may be changed; those of other kinds are made again.
CHANGEABLE = ("Deployment", "StatefulSet", "DaemonSet")
_HASH = "pod-template-hash"


def source_of(pod: Pod, cluster: Cluster) -> ObjectName:
    """The topmost owner of ``pod`` as far as it is known."""
    if not pod.owner.kind:
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
    if workload.owner.kind:
        return ObjectName(workload.owner.kind, workload.namespace, workload.owner.name)
    return ObjectName(workload.kind, workload.namespace, workload.name)
