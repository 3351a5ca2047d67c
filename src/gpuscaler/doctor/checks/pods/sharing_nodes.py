"""Pods without GPUs on nodes with GPUs."""

from collections.abc import Iterable

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.nodes.gpu_nodes import AMD, NVIDIA, gpu_nodes, lasting_taints, vendor_of
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE
from gpuscaler.doctor.commands import ObjectName, kubectl_patch, kubectl_taint
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.taints import Taint
from gpuscaler.planning.capacity.idle import leaves_with_machine

#: Names of programs that look after GPUs and request none.
_CARETAKERS = ("nvidia", "gpu-operator", "gpu-feature-discovery", "node-feature-discovery", "nfd-", "dcgm", "amd-gpu", "gpuscaler")
_SYSTEM = ("kube-system", "gpu-operator", "nvidia-gpu-operator", "node-feature-discovery")
_KINDS = ("Deployment", "StatefulSet", "ReplicaSet", "Job")


def find_open_gpu_nodes(evidence: Evidence) -> Iterable[Finding]:
    """D40: nodes with GPUs without a taint, on which other pods run although the cluster has nodes for them."""
    cluster = evidence.cluster
    with_gpus = {node.name: node for node in gpu_nodes(cluster)}
    others = any(name not in with_gpus and not node.deleted and not vendor_of(node) for name, node in cluster.nodes.items())
    if not with_gpus or not others:
        return
    tolerated = _gpu_pods_tolerate(cluster)
    for node in with_gpus.values():
        pods = cluster.on_node.get(node.name, {}).values()
        if lasting_taints(node) or not any(not _uses_gpus(pod.spec) and not leaves_with_machine(pod, evidence.now) for pod in pods):
            continue
        taint = f"{vendor_of(node) or NVIDIA}=present:NoSchedule"
        advice = "give the group the taint, so that its next nodes have it, and move the pods"
        if not tolerated:
            advice += "; first let pods with GPUs, and the DaemonSets of these nodes, tolerate it"
        yield Finding(
            "D40",
            WARNING,
            f"Node {node.name}",
            "spec.taints",
            "no taint, and pods without GPUs run there",
            taint,
            "they keep a machine with GPUs from being removed, and take the CPU and memory that pods with GPUs need",
            Fix((kubectl_taint(node.name, taint),) if tolerated else (), advice),
        )


def _uses_gpus(spec: PodSpec) -> bool:
    return bool(spec.resource_claims) or any(map(is_device, spec.requests))


def _gpu_pods_tolerate(cluster: Cluster) -> bool:
    """Whether all pods with GPUs, and those of controllers, tolerate the taint that is usual on nodes with GPUs."""
    specs = {pod.spec.digest: pod.spec for pod in cluster.pods.values() if not pod.finished}
    specs.update((workload.template.digest, workload.template) for workload in cluster.workloads.values() if workload.template is not None)
    wanting = [spec for spec in specs.values() if _uses_gpus(spec)]
    return all(any(toleration.tolerates(Taint(NVIDIA, "present")) for toleration in spec.tolerations) for spec in wanting)


def find_needless_tolerations(evidence: Evidence) -> Iterable[Finding]:
    """D40: controllers whose pods tolerate the taint of nodes with GPUs, and request none."""
    taints = _gpu_taints(evidence.cluster)
    for workload in evidence.cluster.workloads.values():
        spec = workload.template
        if workload.kind not in _KINDS or workload.owner.kind or spec is None or _uses_gpus(spec) or workload.namespace in _SYSTEM:
            continue
        if not workload.replicas or any(name in workload.name for name in _CARETAKERS):
            continue
        places = [
            place
            for place, toleration in enumerate(spec.tolerations)
            # The key alone may stand for several groups: dedicated=gpu, and dedicated=web.
            if toleration.key in (NVIDIA, AMD) or (toleration.key and any(map(toleration.tolerates, taints)))
        ]
        if places:
            target = ObjectName(workload.kind, workload.namespace, workload.name)
            path = "/spec/template/spec/tolerations"
            # From the end, so that the places of the others stay.
            operations = [{"op": "remove", "path": f"{path}/{place}"} for place in reversed(places)]
            changeable = workload.kind in CHANGEABLE
            names = " and ".join(dict.fromkeys(spec.tolerations[place].key for place in places))
            yield Finding(
                "D40",
                WARNING,
                target.title,
                "spec.template.spec.tolerations",
                f"a toleration of {names}, without GPUs in its limits",
                "limits with GPUs, or no such toleration",
                "its pods take the place of pods with GPUs, and keep their machines from being removed",
                Fix((kubectl_patch(target, operations, strategy="json"),), "or request the GPUs that it uses")
                if changeable
                else Fix(advice="remove the toleration, or request GPUs, and create it again"),
            )


def _gpu_taints(cluster: Cluster) -> frozenset[Taint]:
    """The taints that only nodes with GPUs have."""
    with_gpus = {node.name for node in gpu_nodes(cluster)}
    taints = {taint for name in with_gpus for taint in lasting_taints(cluster.nodes[name])}
    others = {taint for name, node in cluster.nodes.items() if name not in with_gpus for taint in node.taints}
    has_others = len(with_gpus) < len(cluster.nodes)
    return frozenset(taints - others if has_others else ())


CHECKS = (
    Check("D40", "pods without GPUs on nodes with GPUs", (CLUSTER, "Node", "Pod"), find_open_gpu_nodes, continuous=True),
    Check("D40", "tolerations of pods without GPUs", (CLUSTER,), find_needless_tolerations, reads=WORKLOADS, continuous=True),
)
