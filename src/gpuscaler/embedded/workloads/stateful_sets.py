"""StatefulSets: pods with stable names, created one after the other or all at once, each with its own claims.

Source: ``k8s.io/kubernetes/pkg/controller/statefulset/stateful_set_control.go``, Kubernetes 1.35. Nothing else here provides volumes: a
claim is created together with a volume that it is bound to and that any node can reach. Both remain after the pod is deleted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpuscaler.embedded.workloads.revisions import name_for
from gpuscaler.embedded.workloads.steps import (
    Object,
    Steps,
    is_active,
    is_finished,
    is_leaving,
    is_ready,
    name_of,
    omit_zero,
    pod_of,
)
from gpuscaler.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STATEFUL_SETS

REVISION = "controller-revision-hash"


def decide(stateful_set: Mapping[str, Any], pods: Sequence[Object], claim_of: Callable[[str], Object | None]) -> Steps:
    """The steps for ``stateful_set``, which owns ``pods``; ``claim_of`` returns a claim by ``namespace/name``."""
    spec = stateful_set["spec"]
    revision = name_for(stateful_set)
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
        _claim(stateful_set, name, claim_of, steps)
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
    """The last pod of an older template, once all others are ready; none if users delete them themselves."""
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


def _claim(stateful_set: Mapping[str, Any], pod: str, claim_of: Callable[[str], Object | None], steps: Steps) -> None:
    """Create the claims of ``pod``, and set them to bound once they exist."""
    namespace = stateful_set["metadata"]["namespace"]
    for name, template in _claims(stateful_set, pod):
        claim = claim_of(f"{namespace}/{name}")
        volume = f"{namespace}-{name}"
        if claim is None:
            bound = _bound(stateful_set, template, namespace, name, volume=volume)
            steps.creates += [(PERSISTENT_VOLUMES, bound[0]), (PERSISTENT_VOLUME_CLAIMS, bound[1])]
        elif claim["spec"].get("volumeName") == volume and (claim.get("status") or {}).get("phase") != "Bound":
            spec = claim["spec"]
            status = {"phase": "Bound", "accessModes": spec.get("accessModes"), "capacity": (spec.get("resources") or {}).get("requests")}
            steps.statuses += [(PERSISTENT_VOLUME_CLAIMS, claim, status)]
            steps.statuses += [(PERSISTENT_VOLUMES, {"metadata": {"name": volume}}, {"phase": "Bound"})]


def _claims(stateful_set: Mapping[str, Any], pod: str) -> Iterator[tuple[str, Object]]:
    """The name of each claim of ``pod``, with its template."""
    for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
        yield f"{name_of(template)}-{pod}", template


def _bound(stateful_set: Mapping[str, Any], template: Object, namespace: str, name: str, *, volume: str) -> tuple[Object, Object]:
    """A volume, and the claim that is bound to it."""
    spec, metadata = dict(template.get("spec") or {}), template["metadata"]
    labels = {**(metadata.get("labels") or {}), **(stateful_set["spec"].get("selector") or {}).get("matchLabels", {})}
    # A scheduler treats a claim as bound only if it has this annotation.
    annotations = {**(metadata.get("annotations") or {}), "pv.kubernetes.io/bind-completed": "yes"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {**spec, "volumeName": volume},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume},
        "spec": {
            "capacity": dict((spec.get("resources") or {}).get("requests") or {}),
            "accessModes": list(spec.get("accessModes") or ()),
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name},
            "storageClassName": spec.get("storageClassName", ""),
            "hostPath": {"path": f"/var/lib/gpuscaler/{volume}"},
        },
    }, claim


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
    claims = {name_of(template): claim for claim, template in _claims(stateful_set, name)}
    # It replaces a volume of that name in the pod template.
    other = [entry for entry in pod["spec"].get("volumes") or () if entry.get("name") not in claims]
    claimed = [{"name": volume, "persistentVolumeClaim": {"claimName": claim}} for volume, claim in claims.items()]
    if claims:
        pod["spec"]["volumes"] = [*claimed, *other]
    return pod


def _status(stateful_set: Mapping[str, Any], pods: Sequence[Object], revision: str) -> Object:
    active = [pod for pod in pods if is_active(pod)]
    ready = omit_zero(sum(map(is_ready, active)))
    updated = sum(1 for pod in active if (pod["metadata"].get("labels") or {}).get(REVISION) == revision)
    before = (stateful_set.get("status") or {}).get("currentRevision")
    done = updated == len(active)
    return {
        "observedGeneration": stateful_set["metadata"].get("generation"),
        "replicas": len(active),
        "readyReplicas": ready,
        "availableReplicas": ready or 0,
        "updatedReplicas": omit_zero(updated),
        "currentReplicas": omit_zero(updated if done else len(active) - updated),
        "currentRevision": revision if done or not before else before,
        "updateRevision": revision,
    }
