"""Defaults of everything but pods. Source: ``k8s.io/kubernetes/pkg/apis/*/defaults.go``, Kubernetes 1.35."""

import base64
from typing import Any

from gpuscaler.embedded.apiserver.objects import pod_defaults
from gpuscaler.embedded.apiserver.store import Object


def _fill(target: Object, **values: Any) -> Object:
    for name, value in values.items():
        if target.get(name) is None:
            target[name] = value
    return target


def _part(obj: Object, *path: str) -> Object:
    for step in path:
        if not isinstance(obj.get(step), dict):
            obj[step] = {}
        obj = obj[step]
    return obj


def _template(spec: Object) -> None:
    if isinstance(spec.get("template"), dict):
        pod_defaults.spec(_part(spec, "template", "spec"))


def deployment(obj: Object) -> None:
    spec = _fill(_part(obj, "spec"), replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    _template(spec)
    if _fill(_part(spec, "strategy"), type="RollingUpdate")["type"] == "RollingUpdate":
        _fill(_part(spec, "strategy", "rollingUpdate"), maxSurge="25%", maxUnavailable="25%")


def replica_set(obj: Object) -> None:
    _template(_fill(_part(obj, "spec"), replicas=1))


def stateful_set(obj: Object) -> None:
    spec = _fill(_part(obj, "spec"), replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
    _fill(spec, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"})
    _template(spec)
    if _fill(_part(spec, "updateStrategy"), type="RollingUpdate")["type"] == "RollingUpdate":
        _fill(_part(spec, "updateStrategy", "rollingUpdate"), partition=0)


def daemon_set(obj: Object) -> None:
    spec = _fill(_part(obj, "spec"), revisionHistoryLimit=10)
    _template(spec)
    if _fill(_part(spec, "updateStrategy"), type="RollingUpdate")["type"] == "RollingUpdate":
        _fill(_part(spec, "updateStrategy", "rollingUpdate"), maxSurge=0, maxUnavailable=1)


def job(obj: Object) -> None:
    """Complete a Job, with the selector and labels for its own pods."""
    spec = _part(obj, "spec")
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _fill(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False, podReplacementPolicy="TerminatingOrFailed")
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"].get("name", "")
    if not spec.get("manualSelector"):
        _fill(spec, selector={"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
        labels = _part(spec, "template", "metadata", "labels")
        for prefix in ("", "batch.kubernetes.io/"):
            labels.setdefault(f"{prefix}controller-uid", uid)
            labels.setdefault(f"{prefix}job-name", name)
    _template(spec)


def cron_job(obj: Object) -> None:
    spec = _fill(_part(obj, "spec"), concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    _template(_part(spec, "jobTemplate", "spec"))


def autoscaler(obj: Object) -> None:
    _fill(_part(obj, "spec"), minReplicas=1)


def claim(obj: Object) -> None:
    _fill(_part(obj, "spec"), volumeMode="Filesystem")
    _fill(_part(obj, "status"), phase="Pending")


def volume(obj: Object) -> None:
    _fill(_part(obj, "spec"), volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")
    _fill(_part(obj, "status"), phase="Pending")


def storage_class(obj: Object) -> None:
    _fill(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def namespace(obj: Object) -> None:
    obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": obj["metadata"]["name"]}
    _fill(_part(obj, "spec"), finalizers=["kubernetes"])
    _fill(_part(obj, "status"), phase="Active")


def service(obj: Object) -> None:
    _fill(_part(obj, "spec"), type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    for port in obj["spec"].get("ports") or ():
        _fill(port, protocol="TCP", targetPort=port.get("port"))


def secret(obj: Object) -> None:
    """Complete a Secret; a client may write ``stringData`` instead of ``data``."""
    _fill(obj, type="Opaque")
    for name, text in (obj.pop("stringData", None) or {}).items():
        _part(obj, "data")[name] = base64.b64encode(str(text).encode()).decode()
