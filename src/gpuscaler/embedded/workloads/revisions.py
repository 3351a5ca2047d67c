"""ControllerRevisions of StatefulSets and DaemonSets, which ``kubectl rollout history`` and ``rollout undo`` read.

Source: ``k8s.io/kubernetes/pkg/controller/history/controller_history.go``, Kubernetes 1.35.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from gpuscaler.embedded.workloads.steps import Object, Steps, hash_of, is_leaving, name_of, owned_by
from gpuscaler.kube.resources import Resource

CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
HASH: Final = "controller.kubernetes.io/hash"
#: The default number of unused revisions that are kept.
KEPT: Final = 10


def name_for(workload: Mapping[str, Any]) -> str:
    """The name of the revision for the template of ``workload``."""
    return f"{name_of(workload)}-{hash_of(workload['spec']['template'])}"


def record(workload: Mapping[str, Any], resource: Resource, existing: Sequence[Object], used: Set[str]) -> Steps:
    """Keep the template of ``workload`` as its newest revision, and its limit of older ones. ``used`` are the revisions of its pods."""
    steps = Steps()
    if is_leaving(workload):
        return steps
    name, newest = name_for(workload), max((revision.get("revision") or 0 for revision in existing), default=0)
    current = next((revision for revision in existing if name_of(revision) == name), None)
    if current is None:
        steps.creates.append((CONTROLLER_REVISIONS, _revision(workload, resource, name, newest + 1)))
    elif current.get("revision") != newest:
        # A template that returns becomes the newest again.
        steps.patches.append((CONTROLLER_REVISIONS, current, {"revision": newest + 1}))
    old = sorted(
        (revision for revision in existing if name_of(revision) not in used | {name}), key=lambda revision: revision.get("revision") or 0
    )
    kept = workload["spec"].get("revisionHistoryLimit", KEPT)
    steps.deletes = [(CONTROLLER_REVISIONS, revision) for revision in old[: max(0, len(old) - kept)] if not is_leaving(revision)]
    return steps


def _revision(workload: Mapping[str, Any], resource: Resource, name: str, number: int) -> Object:
    template, metadata = workload["spec"]["template"], workload["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {**((template.get("metadata") or {}).get("labels") or {}), HASH: hash_of(template)},
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": owned_by(workload, resource),
        },
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
        "revision": number,
    }
