"""Deployments: one ReplicaSet for each template, and rollouts from one to the next.

Source: ``k8s.io/kubernetes/pkg/controller/deployment`` (``rolling.go``, ``recreate.go``, ``sync.go``), Kubernetes 1.35. A rollout that
makes no progress never times out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpuscaler.embedded.workloads.steps import Object, Steps, hash_of, is_leaving, name_of, omit_zero, owned_by, with_conditions
from gpuscaler.kube.resources import DEPLOYMENTS, REPLICA_SETS

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


def decide(deployment: Mapping[str, Any], replica_sets: Sequence[Object], now: float) -> Steps:
    """The steps for ``deployment``, which owns ``replica_sets``."""
    steps = Steps()
    current = hash_of(deployment["spec"]["template"])
    existing = [replica_set for replica_set in replica_sets if not is_leaving(replica_set)]
    new = next((replica_set for replica_set in existing if (replica_set["metadata"].get("labels") or {}).get(HASH) == current), None)
    old = sorted(
        (replica_set for replica_set in existing if replica_set is not new),
        key=lambda replica_set: (_revision(replica_set), name_of(replica_set)),
    )
    if not is_leaving(deployment):
        paused = bool(deployment["spec"].get("paused"))
        revision = max([0, *map(_revision, old)]) + 1 if new is None or _revision(new) <= max([0, *map(_revision, old)]) else _revision(new)
        if new is None and not paused:
            steps.creates.append((REPLICA_SETS, _replica_set(deployment, current, revision, _room_for_new(deployment, old))))
        elif new is not None:
            _roll(steps, deployment, new, old, revision)
        if not paused and (deployment["metadata"].get("annotations") or {}).get(REVISION) != str(revision):
            steps.patches.append((DEPLOYMENTS, dict(deployment), {"metadata": {"annotations": {REVISION: str(revision)}}}))
        _forget(steps, deployment, old)
    steps.status = _status(deployment, new, old, now)
    return steps


def _revision(replica_set: Mapping[str, Any]) -> int:
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "")
    return int(text) if text.isdigit() else 0


def _replicas(obj: Mapping[str, Any]) -> int:
    replicas: int = obj["spec"].get("replicas") or 0
    return replicas


def _status_count(replica_set: Mapping[str, Any], what: str) -> int:
    number: int = (replica_set.get("status") or {}).get(what) or 0
    return number


def _settled(replica_set: Mapping[str, Any]) -> bool:
    """Whether the counts in a ReplicaSet's status belong to its latest spec."""
    generation: int = replica_set["metadata"].get("generation", 1)
    return _status_count(replica_set, "observedGeneration") >= generation


def _limits(deployment: Mapping[str, Any]) -> tuple[int, int]:
    """The maximum number of pods during a rollout, and the minimum number of available ones."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    wanted = _replicas(deployment)
    surge = _share(rolling.get("maxSurge", "25%"), wanted, up=True)
    missing = min(wanted, _share(rolling.get("maxUnavailable", "25%"), wanted, up=False))
    if not surge and not missing:
        missing = 1
    return wanted + surge, wanted - missing


def _share(value: int | str, whole: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * whole / 100
    return math.ceil(part) if up else math.floor(part)


def _is_recreate(deployment: Mapping[str, Any]) -> bool:
    return (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"


def _room_for_new(deployment: Mapping[str, Any], old: Sequence[Object]) -> int:
    """The number of pods that the new template may have now."""
    wanted = _replicas(deployment)
    if _is_recreate(deployment):
        return 0 if any(_replicas(replica_set) or _status_count(replica_set, "replicas") for replica_set in old) else wanted
    return max(0, min(wanted, _limits(deployment)[0] - sum(map(_replicas, old))))


def _roll(steps: Steps, deployment: Mapping[str, Any], new: Object, old: Sequence[Object], revision: int) -> None:
    wanted, current = _replicas(deployment), _replicas(new)
    room = _room_for_new(deployment, old)
    target = (
        current if deployment["spec"].get("paused") and any(map(_replicas, old)) else wanted if current > wanted else max(current, room)
    )
    patch: Object = {} if target == current else {"spec": {"replicas": target}}
    if _revision(new) != revision:
        patch["metadata"] = {"annotations": {REVISION: str(revision)}}
    if patch:
        steps.patches.append((REPLICA_SETS, new, patch))
    if deployment["spec"].get("paused"):
        return
    for replica_set, left in _shrink_old(deployment, new, old):
        steps.patches.append((REPLICA_SETS, replica_set, {"spec": {"replicas": left}}))


def _shrink_old(deployment: Mapping[str, Any], new: Object, old: Sequence[Object]) -> list[tuple[Object, int]]:
    """New sizes of old ReplicaSets that shrink: unavailable pods are removed first, then dispensable ones."""
    alive = [replica_set for replica_set in old if _replicas(replica_set)]
    if _is_recreate(deployment):
        return [(replica_set, 0) for replica_set in alive]
    if not all(map(_settled, (new, *alive))):
        return []
    least = _limits(deployment)[1]
    unavailable = max(0, _replicas(new) - _status_count(new, "availableReplicas"))
    spare = sum(map(_replicas, (new, *alive))) - least - unavailable
    left = {name_of(replica_set): _replicas(replica_set) for replica_set in alive}
    for replica_set in alive:
        removed = max(0, min(spare, _replicas(replica_set) - _status_count(replica_set, "availableReplicas")))
        left[name_of(replica_set)] -= removed
        spare -= removed
    spare = min(spare, sum(_status_count(replica_set, "availableReplicas") for replica_set in (new, *alive)) - least)
    for replica_set in alive:
        removed = max(0, min(spare, left[name_of(replica_set)]))
        left[name_of(replica_set)] -= removed
        spare -= removed
    return [(replica_set, left[name_of(replica_set)]) for replica_set in alive if left[name_of(replica_set)] != _replicas(replica_set)]


def _replica_set(deployment: Mapping[str, Any], current: str, revision: int, replicas: int) -> Object:
    spec = deployment["spec"]
    template = {**spec["template"], "metadata": dict(spec["template"].get("metadata") or {})}
    template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), HASH: current}
    chosen = spec.get("selector") or {}
    return {
        "apiVersion": REPLICA_SETS.api_version,
        "kind": REPLICA_SETS.kind,
        "metadata": {
            "name": f"{name_of(deployment)}-{current}",
            "namespace": deployment["metadata"]["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": {REVISION: str(revision)},
            "ownerReferences": owned_by(deployment, DEPLOYMENTS),
        },
        "spec": {
            "replicas": replicas,
            "selector": {**chosen, "matchLabels": {**(chosen.get("matchLabels") or {}), HASH: current}},
            "template": template,
        },
    }


def _forget(steps: Steps, deployment: Mapping[str, Any], old: Sequence[Object]) -> None:
    """Delete old ReplicaSets without pods, the oldest first, down to the revision history limit."""
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    empty = [
        replica_set
        for replica_set in old
        if not _replicas(replica_set) and not _status_count(replica_set, "replicas") and _settled(replica_set)
    ]
    steps.deletes += [(REPLICA_SETS, replica_set) for replica_set in empty[: max(0, len(old) - limit)]]


def _status(deployment: Mapping[str, Any], new: Object | None, old: Sequence[Object], now: float) -> Object:
    all_sets = [*old, *([new] if new else [])]
    replicas, ready, available = (
        sum(_status_count(replica_set, what) for replica_set in all_sets) for what in ("replicas", "readyReplicas", "availableReplicas")
    )
    updated = _status_count(new, "replicas") if new else 0
    wanted = _replicas(deployment)
    done = new is not None and updated == replicas == wanted == available and _settled(new)
    enough = available >= _limits(deployment)[1]
    progress = (
        ("NewReplicaSetAvailable", f'ReplicaSet "{name_of(new)}" has successfully progressed.')
        if done and new is not None
        else ("ReplicaSetUpdated", f'ReplicaSet "{name_of(new)}" is progressing.')
        if new is not None
        else ("NewReplicaSetCreated", "Created new replica set")
    )
    conditions = [
        {
            "type": "Available",
            "status": "True" if enough else "False",
            "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            "message": f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        },
        {"type": "Progressing", "status": "True", "reason": progress[0], "message": progress[1]},
    ]
    return {
        "observedGeneration": deployment["metadata"].get("generation"),
        "replicas": omit_zero(replicas),
        "updatedReplicas": omit_zero(updated),
        "readyReplicas": omit_zero(ready),
        "availableReplicas": omit_zero(available),
        "unavailableReplicas": omit_zero(max(0, max(wanted, replicas) - available)),
        "conditions": with_conditions(deployment, conditions, now),
    }
