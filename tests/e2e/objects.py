"""Small workloads that the tests submit. Their pods request GPUs of one pool."""

from collections.abc import Mapping
from typing import Any

from tests import objects
from tests.objects import Json

from gpuscaler.model.well_known import POOL_LABEL


def pod(name: str, pool: str, *, cpu: str = "500m", **more: Any) -> Json:
    """A pod for a pool, without a grace period for termination."""
    spec = {"nodeSelector": {POOL_LABEL: pool}, "terminationGracePeriodSeconds": 0}
    return objects.pod(name, cpu=cpu, memory="256Mi", **{**spec, **more})


def pod_spec(pool: str, **more: Any) -> Json:
    spec: Json = pod("", pool, **more)["spec"]
    return spec


def _like(spec: Json, annotations: Mapping[str, str] | None = None) -> Json:
    return {"metadata": {"annotations": dict(annotations or {})}, "spec": spec}


def deployment(name: str, replicas: int, spec: Json, *, movable: bool = False) -> Json:
    """A Deployment. If it is ``movable``, all of its pods may be moved at once to save money."""
    made = objects.workload("Deployment", name, _like(spec), replicas=replicas)
    if movable:
        made["spec"]["template"]["metadata"]["annotations"]["gpuscaler.io/disruption"] = "allow"
    return made


def stateful_set(name: str, replicas: int, spec: Json) -> Json:
    return objects.workload("StatefulSet", name, _like(spec), replicas=replicas, serviceName=name)


def daemon_set(name: str, spec: Json) -> Json:
    return objects.workload("DaemonSet", name, _like(spec))


def job(name: str, parallelism: int, spec: Json, *, run_for: str) -> Json:
    template = objects.template(name, _like({**spec, "restartPolicy": "Never"}, {"gpuscaler.io/run-for": run_for}))
    job_spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job_spec}
