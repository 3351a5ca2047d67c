"""Workloads that the tests submit: small ones, whose pods ask for GPUs of one pool."""

from collections.abc import Mapping
from typing import Any

from gpuscaler.model.well_known import POOL_LABEL

Json = dict[str, Any]


def pod_spec(pool: str, *, gpus: int = 1, cpu: str = "500m", **more: Any) -> Json:
    """A pod of a pool."""
    resources: Json = {"requests": {"cpu": cpu, "memory": "256Mi"}, "limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}
    spec: Json = {"nodeSelector": {POOL_LABEL: pool}, "containers": [{"name": "main", "image": "train:1", "resources": resources}]}
    return {**spec, "terminationGracePeriodSeconds": 0, **more}


def pod(
    name: str, pool: str, *, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, **more: Any
) -> Json:
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(pool, **more)}


def _template(name: str, spec: Json, annotations: Mapping[str, str] | None = None) -> Json:
    return {"metadata": {"labels": {"app": name}, "annotations": dict(annotations or {})}, "spec": spec}


def _workload(kind: str, name: str, spec: Json, **more: Any) -> Json:
    told = {"selector": {"matchLabels": {"app": name}}, "template": _template(name, spec), **more}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": told}


def deployment(name: str, replicas: int, spec: Json, *, movable: bool = False) -> Json:
    """A Deployment, all of whose pods may be moved at once to save money where it is ``movable``."""
    made = _workload("Deployment", name, spec, replicas=replicas)
    if movable:
        made["spec"]["template"]["metadata"]["annotations"]["gpuscaler.io/disruption"] = "allow"
    return made


def stateful_set(name: str, replicas: int, spec: Json) -> Json:
    return _workload("StatefulSet", name, spec, replicas=replicas, serviceName=name)


def daemon_set(name: str, spec: Json) -> Json:
    return _workload("DaemonSet", name, spec)


def job(name: str, parallelism: int, spec: Json, *, run_for: str) -> Json:
    template = _template(name, {**spec, "restartPolicy": "Never"}, {"gpuscaler.io/run-for": run_for})
    told = {"parallelism": parallelism, "completions": parallelism, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": told}
