"""StatefulSets: pods with names that stay, one after the other or all at once.

Source: ``k8s.io/kubernetes/pkg/controller/statefulset/stateful_set_control.go``, Kubernetes 1.35. Volume claim templates are ignored:
nothing here would bind their claims.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscaler.embedded.workloads.steps import (
    Object,
    Steps,
    counted,
    hash_of,
    is_active,
    is_finished,
    is_leaving,
    is_ready,
    name_of,
    pod_of,
)
from gpuscaler.kube.resources import PODS, STATEFUL_SETS

REVISION = "controller-revision-hash"


def decide(stateful_set: Mapping[str, Any], pods: Sequence[Object]) -> Steps:
    """What to do about ``stateful_set``, which owns ``pods``."""
    spec = stateful_set["spec"]
    revision = f"{name_of(stateful_set)}-{hash_of(spec['template'])}"
    by_name = {name_of(pod): pod for pod in pods}
    start = (spec.get("ordinals") or {}).get("start") or 0
    names = [f"{name_of(stateful_set)}-{number}" for number in range(start, start + (spec.get("replicas") or 0))]
    steps = Steps(status=_status(stateful_set, pods, revision))
    if is_leaving(stateful_set):
        return steps
    together = spec.get("podManagementPolicy") == "Parallel"
    wanted = [by_name.get(name) for name in names]
    steps.deletes = [(PODS, pod) for pod in wanted if pod is not None and is_finished(pod) and not is_leaving(pod)]
    for number, (name, pod) in enumerate(zip(names, wanted, strict=True)):
        if pod is None:
            steps.creates.append((PODS, _pod(stateful_set, name, start + number, revision)))
        if not together and (pod is None or not is_active(pod) or not is_ready(pod)):
            return steps
    surplus = sorted((pod for pod in pods if name_of(pod) not in names), key=_ordinal, reverse=True)
    if together:
        steps.deletes += [(PODS, pod) for pod in surplus if not is_leaving(pod)]
    elif surplus:
        steps.deletes += [(PODS, surplus[0])] if not is_leaving(surplus[0]) else []
        return steps
    steps.deletes += _outdated(spec, [pod for pod in wanted if pod is not None], revision)
    return steps


def _outdated(spec: Mapping[str, Any], pods: Sequence[Object], revision: str) -> list[tuple[Any, Object]]:
    """The last pod of an older template, once all others are ready; none where people delete them themselves."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete" or not all(is_active(pod) for pod in pods):
        return []
    keep = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    old = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(REVISION) != revision and _ordinal(pod) >= keep]
    if not old or not all(is_ready(pod) for pod in pods if pod is not old[-1]):
        return []
    return [(PODS, old[-1])]


def _ordinal(pod: Mapping[str, Any]) -> int:
    text = name_of(pod).rpartition("-")[2]
    return int(text) if text.isdigit() else 0


def _pod(stateful_set: Mapping[str, Any], name: str, ordinal: int, revision: str) -> Object:
    pod = pod_of(stateful_set["spec"]["template"], stateful_set, STATEFUL_SETS)
    pod["metadata"]["name"] = name
    pod["metadata"]["labels"] |= {
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(ordinal),
        REVISION: revision,
    }
    pod["spec"]["hostname"] = name
    if stateful_set["spec"].get("serviceName"):
        pod["spec"]["subdomain"] = stateful_set["spec"]["serviceName"]
    return pod


def _status(stateful_set: Mapping[str, Any], pods: Sequence[Object], revision: str) -> Object:
    active = [pod for pod in pods if is_active(pod)]
    ready = counted(sum(map(is_ready, active)))
    updated = sum(1 for pod in active if (pod["metadata"].get("labels") or {}).get(REVISION) == revision)
    before = (stateful_set.get("status") or {}).get("currentRevision")
    done = updated == len(active)
    return {
        "observedGeneration": stateful_set["metadata"].get("generation"),
        "replicas": len(active),
        "readyReplicas": ready,
        "availableReplicas": ready or 0,
        "updatedReplicas": counted(updated),
        "currentReplicas": counted(updated if done else len(active) - updated),
        "currentRevision": revision if done or not before else before,
        "updateRevision": revision,
    }
