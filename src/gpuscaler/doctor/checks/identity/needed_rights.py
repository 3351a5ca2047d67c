"""The rights in Kubernetes that programs need.

Sources: the charts of Cluster Autoscaler, Karpenter and prometheus-adapter, and the listers that Cluster Autoscaler starts (its
``main.go`` and the framework of kube-scheduler, whose volume plugin lists VolumeAttachments since 1.32, see
https://github.com/kubernetes/autoscaler/issues/7663).
"""

import re
from collections.abc import Iterator

from gpuscaler.doctor.checks.identity.rights import Right
from gpuscaler.doctor.checks.programs import ADAPTER, CLUSTER_AUTOSCALER, GPUSCALER, GPUSCALER_METRICS, KARPENTER, Program

_READ = ("list", "watch")
_STORAGE = ("csidrivers", "csinodes", "csistoragecapacities", "storageclasses")
_VERSION = re.compile(r":v?(\d+)\.(\d+)")
#: Karpenter before 0.32 has other kinds, and gets them from other charts.
_OLDEST_KARPENTER, _WITH_ATTACHMENTS = (0, 32), (1, 32)
_KARPENTER_CLASSES = {"aws": ("karpenter.k8s.aws", "ec2nodeclasses"), "azure": ("karpenter.azure.com", "aksnodeclasses")}


def needed_rights(program: Program) -> Iterator[Right]:
    """The rights without which ``program`` does not do its work."""
    if program.name == CLUSTER_AUTOSCALER:
        yield from _cluster_autoscaler(program)
    elif program.name == KARPENTER and _version(program) >= _OLDEST_KARPENTER:
        yield from _karpenter(program)
    elif program.name == GPUSCALER:
        yield from _gpuscaler(program)
    elif program.name in (ADAPTER, GPUSCALER_METRICS):
        # What they need to ask the API server about their callers is a check of metrics programs.
        yield from _each(("list",) if program.name == ADAPTER else _READ, "", "pods")


def _version(program: Program) -> tuple[int, int]:
    """The version in the tag of the image; (99, 0), the newest, if it has none."""
    found = _VERSION.search(program.container.text("image"))
    return (int(found[1][:6]), int(found[2][:6])) if found else (99, 0)


def _each(verbs: tuple[str, ...], group: str, *resources: str, namespace: str = "", name: str = "") -> Iterator[Right]:
    for resource in resources:
        for verb in verbs:
            yield Right(verb, group, resource, namespace, name)


def _cluster_autoscaler(program: Program) -> Iterator[Right]:
    namespace = program.flag("namespace", "kube-system")
    yield from _each((*_READ, "update"), "", "nodes")
    yield from _each(_READ, "", "namespaces", "persistentvolumeclaims", "persistentvolumes", "pods", "replicationcontrollers", "services")
    yield from _each(("create",), "", "pods/eviction")
    yield from _each(_READ, "apps", "daemonsets", "replicasets", "statefulsets")
    yield from _each(_READ, "batch", "jobs")
    yield from _each(_READ, "policy", "poddisruptionbudgets")
    yield from _each(_READ, "storage.k8s.io", *_STORAGE)
    if _WITH_ATTACHMENTS <= _version(program) < (99, 0):
        yield from _each(_READ, "storage.k8s.io", "volumeattachments")
    if program.flag("leader-elect", "true") == "true":
        where = program.flag("leader-elect-resource-namespace", namespace)
        yield from _each(("create",), "coordination.k8s.io", "leases", namespace=where)
        lease = program.flag("leader-elect-resource-name", "cluster-autoscaler")
        yield from _each(("get", "update"), "coordination.k8s.io", "leases", namespace=where, name=lease)
    if program.flag("write-status-configmap", "true") == "true":
        yield from _each(("create",), "", "configmaps", namespace=namespace)
        status = program.flag("status-config-map-name", "cluster-autoscaler-status")
        yield from _each(("get", "update"), "", "configmaps", namespace=namespace, name=status)
    if "priority" in program.flag("expander").split(","):
        yield from _each(_READ, "", "configmaps", namespace=namespace, name="cluster-autoscaler-priority-expander")


def _karpenter(program: Program) -> Iterator[Right]:
    yield from _each((*_READ, "create", "delete", "patch"), "karpenter.sh", "nodeclaims")
    yield from _each(_READ, "karpenter.sh", "nodepools")
    if program.cloud in _KARPENTER_CLASSES:
        yield from _each(_READ, *_KARPENTER_CLASSES[program.cloud])
    yield from _each((*_READ, "patch", "delete"), "", "nodes")
    yield from _each((*_READ, "delete"), "", "pods")
    yield from _each(_READ, "", "persistentvolumeclaims", "persistentvolumes")
    yield from _each(("create",), "", "pods/eviction")
    yield from _each(_READ, "apps", "daemonsets")
    yield from _each(_READ, "policy", "poddisruptionbudgets")
    yield from _each(_READ, "storage.k8s.io", "csinodes", "storageclasses")
    yield from _each(("create",), "coordination.k8s.io", "leases", namespace=program.namespace)


def _gpuscaler(program: Program) -> Iterator[Right]:
    yield from _each(_READ, "", "namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods")
    yield from _each(_READ, "apps", "daemonsets", "deployments", "replicasets", "statefulsets")
    yield from _each(_READ, "batch", "jobs")
    yield from _each(_READ, "policy", "poddisruptionbudgets")
    yield from _each(_READ, "scheduling.k8s.io", "priorityclasses")
    yield from _each(_READ, "node.k8s.io", "runtimeclasses")
    yield from _each(_READ, "storage.k8s.io", *_STORAGE, "volumeattachments")
    yield Right("get", "", "configmaps", "kube-system", "cluster-autoscaler-priority-expander")
    if "dry-run" not in program.flags:
        yield from _each(("get", "patch", "delete"), "", "nodes")
        yield Right("create", "", "pods/eviction")
        yield from _each(("get", "update"), "", "configmaps", namespace=program.namespace, name="gpuscaler-state")
        yield Right("create", "", "configmaps", program.namespace)
