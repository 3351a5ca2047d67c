"""The decisions of a workload controller, and helpers to read pods. Objects are as in the API."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.kube.resources import Resource

Object = dict[str, Any]

#: Letters of the hashes in names, which form no words (``k8s.io/apimachinery/pkg/util/rand``).
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


class Steps(Struct, gc=False):
    """The writes for one workload, in this order: its status, patches, patches of other statuses, deletions, creations.

    ``status`` holds only fields that may have changed, None for fields to remove. ``again`` is when to reconcile even without a change, in
    seconds since the epoch.
    """

    status: Object = field(default_factory=dict)
    patches: list[tuple[Resource, Object, Object]] = field(default_factory=list)
    statuses: list[tuple[Resource, Object, Object]] = field(default_factory=list)
    deletes: list[tuple[Resource, Object]] = field(default_factory=list)
    creates: list[tuple[Resource, Object]] = field(default_factory=list)
    again: float | None = None


def seconds_of(text: str | None) -> float:
    """A time of the API in seconds since the epoch; 0 if there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def name_of(obj: Mapping[str, Any]) -> str:
    name: str = obj["metadata"]["name"]
    return name


def identity(obj: Mapping[str, Any]) -> str:
    """``namespace/name``, or the name alone for an object without a namespace."""
    namespace = obj["metadata"].get("namespace")
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def controller_of(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference to the controller of ``obj``."""
    return next((owner for owner in obj["metadata"].get("ownerReferences") or () if owner.get("controller")), None)


def owned_by(owner: Mapping[str, Any], resource: Resource) -> list[Object]:
    """The owner references for objects that ``owner`` controls."""
    reference = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name_of(owner), "uid": owner["metadata"]["uid"]}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty if there is none."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), {})


def is_condition_true(obj: Mapping[str, Any], kind: str) -> bool:
    return condition(obj, kind).get("status") == "True"


def with_conditions(obj: Mapping[str, Any], updates: Iterable[Mapping[str, str]], now: float) -> list[Object]:
    """The conditions of ``obj`` with ``updates`` merged in; a condition whose status is unchanged keeps its time."""
    conditions = {item["type"]: item for item in (obj.get("status") or {}).get("conditions") or ()}
    for update in updates:
        before = conditions.get(update["type"])
        if before is None or any(before.get(name) != value for name, value in update.items()):
            same = before is not None and before.get("status") == update["status"]
            at = before["lastTransitionTime"] if before is not None and same else timestamp(now)
            conditions[update["type"]] = {**update, "lastUpdateTime": timestamp(now), "lastTransitionTime": at}
    return list(conditions.values())


def is_finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_leaving(obj: Mapping[str, Any]) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is active: it has not ended and is not being deleted."""
    return not is_finished(pod) and not is_leaving(pod)


def is_ready(pod: Mapping[str, Any]) -> bool:
    return is_condition_true(pod, "Ready")


def first_to_go(pods: Sequence[Object]) -> list[Object]:
    """Active pods in the order of deletion: the least useful first, then the youngest.

    Source: ``ActivePodsWithRanks`` in ``k8s.io/kubernetes/pkg/controller/controller_utils.go``, Kubernetes 1.35.
    """
    by_age = sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", name_of(pod)), reverse=True)
    return sorted(by_age, key=_deletion_rank)


def _deletion_rank(pod: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    running = (pod.get("status") or {}).get("phase") == "Running"
    return bool((pod.get("spec") or {}).get("nodeName")), running, is_ready(pod)


def pod_of(template: Mapping[str, Any], owner: Mapping[str, Any], resource: Resource) -> Object:
    """A new pod of ``template``, without a name."""
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": owner["metadata"]["namespace"],
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}),
            "finalizers": list(metadata.get("finalizers") or ()),
            "ownerReferences": owned_by(owner, resource),
        },
        "spec": dict(template.get("spec") or {}),
    }


def hash_of(template: Mapping[str, Any]) -> str:
    """A hash of ten letters for a template."""
    number = int.from_bytes(sha256(msgspec.json.encode(template, order="sorted")).digest()[:8])
    letters = ""
    for _ in range(10):
        number, place = divmod(number, len(_LETTERS))
        letters += _LETTERS[place]
    return letters


def omit_zero(number: int) -> int | None:
    """A count for a status, which omits zero."""
    return number or None
