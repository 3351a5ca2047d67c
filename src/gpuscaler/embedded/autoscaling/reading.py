"""Pods and scales as the algorithm of HorizontalPodAutoscalers sees them."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from gpuscaler.embedded.workloads.steps import condition, seconds_of
from gpuscaler.model.quantities import QuantityError, parse_milli
from gpuscaler.simulation.horizontal.specs import Container, ReplicaPod, Status

Object = Mapping[str, Any]


def replica_pod(pod: Object) -> ReplicaPod:
    """A pod that matches the target's selector."""
    spec, status, ready = pod["spec"], pod.get("status") or {}, condition(pod, "Ready")
    resources = spec.get("resources") or {}
    return ReplicaPod(
        name=pod["metadata"]["name"],
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in pod["metadata"],
        ready=cast(Status, ready["status"]) if ready.get("status") in ("True", "False", "Unknown") else None,
        ready_since=seconds_of(ready.get("lastTransitionTime")),
        started=seconds_of(status["startTime"]) if status.get("startTime") else None,
        containers=tuple(
            Container(container.get("name", ""), _requests(container.get("resources") or {})) for container in _running_containers(spec)
        ),
        pod_requests=_requests(resources) if resources.get("requests") else None,
    )


def _running_containers(spec: Object) -> Iterable[Object]:
    """Containers, and init containers that keep running beside them."""
    return [
        *(spec.get("containers") or ()),
        *(container for container in spec.get("initContainers") or () if container.get("restartPolicy") == "Always"),
    ]


def _requests(resources: Object) -> dict[str, int]:
    """Requests in thousandths; unreadable ones are left out."""
    requests = {}
    for name, amount in (resources.get("requests") or {}).items():
        try:
            requests[name] = parse_milli(amount)
        except QuantityError:
            continue
    return requests
