"""Converts cases to the oracle's form: pods as Kubernetes objects."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from gpuscaler.model.quantities import format_quantity

Json = dict[str, Any]


def as_objects(case: Json) -> Json:
    """``case`` with pods as Kubernetes objects in its steps."""
    return {**case, "steps": [{**step, "pods": [pod_object(pod) for pod in step["pods"]]} for step in case["steps"]]}


def pod_object(pod: Json) -> Json:
    """One pod; its times are seconds since 1970."""
    containers = [_container(one) for one in pod["containers"] if not one.get("init")]
    sidecars = [{**_container(one), "restartPolicy": "Always"} for one in pod["containers"] if one.get("init")]
    spec: Json = {"containers": containers, "initContainers": sidecars}
    if "podRequests" in pod:
        spec["resources"] = _resources(pod["podRequests"])
    status: Json = {"phase": pod["phase"]}
    if pod["ready"] is not None:
        status["conditions"] = [{"type": "Ready", "status": pod["ready"], "lastTransitionTime": _time(pod["readySince"])}]
    if pod["started"] is not None:
        status["startTime"] = _time(pod["started"])
    metadata: Json = {"name": pod["name"]}
    if pod["deleting"]:
        metadata["deletionTimestamp"] = _time(0)
    return {"metadata": metadata, "spec": spec, "status": status}


def _container(container: Json) -> Json:
    return {"name": container["name"], "resources": _resources(container["requests"])}


def _resources(requests: dict[str, int]) -> Json:
    return {"requests": {name: format_quantity(Fraction(milli, 1000)) for name, milli in requests.items()}}


def _time(seconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
