"""Evictions, which disruption budgets may refuse.

Source: ``k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go``, Kubernetes 1.35.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuscaler.embedded.apiserver.kinds import BUDGETS, PODS
from gpuscaler.embedded.apiserver.store import Object, Store, Stored
from gpuscaler.embedded.apiserver.wire.failures import Failure, conflict
from gpuscaler.embedded.apiserver.writing import Deletion, Writer
from gpuscaler.model.selectors import LabelSelector, Requirement

#: How many evictions a budget may have granted before a disruption controller has seen any of them.
MOST_DISRUPTED = 2000


def selector(spec: Mapping[str, Any] | None) -> LabelSelector | None:
    """A matcher for a ``metav1.LabelSelector``; None, unlike an empty selector, matches nothing."""
    if spec is None:
        return None
    exact = [Requirement(key, "In", (value,)) for key, value in (spec.get("matchLabels") or {}).items()]
    more = [Requirement(item["key"], item["operator"], tuple(item.get("values") or ())) for item in spec.get("matchExpressions") or ()]
    return LabelSelector((*exact, *more))


def set_condition(obj: Object, condition: Object) -> None:
    """Replace the condition of the same type by ``condition``, or append it."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    place = next((i for i, other in enumerate(conditions) if other.get("type") == condition["type"]), len(conditions))
    conditions[place : place + 1] = [condition]


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def evict(store: Store, writer: Writer, stored: Stored, options: Deletion) -> None:
    """Delete the pod unless a budget forbids it. Raises a Failure: 429 for a budget, 500 for two budgets, 409 for a precondition."""
    pod = stored.read()
    _check(pod, stored, options)
    status = pod.get("status") or {}
    ends = bool(pod["metadata"].get("deletionTimestamp"))
    if not ends and status.get("phase") not in ("Succeeded", "Failed", "Pending"):
        _consult_budgets(store, writer, pod, dry_run=options.dry_run)
    if not options.dry_run:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        conditions = status.get("conditions") or ()
        if not any({**item, **condition} == item for item in conditions):
            set_condition(pod, {**condition, "lastProbeTime": None, "lastTransitionTime": writer.now()})
            store.put(PODS, pod)
    metadata = pod["metadata"]
    writer.delete(PODS, metadata["namespace"], metadata["name"], replace(options, revision=""))


def _check(pod: Object, stored: Stored, options: Deletion) -> None:
    name = pod["metadata"]["name"]
    if options.uid and options.uid != stored.uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({stored.uid}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(PODS, name, why)
    if options.revision and options.revision != str(stored.revision):
        why = (
            f"the ResourceVersion in the precondition ({options.revision}) does not match the ResourceVersion in record "
            f"({stored.revision}). The object might have been modified"
        )
        raise conflict(PODS, name, why)


def _consult_budgets(store: Store, writer: Writer, pod: Object, *, dry_run: bool) -> None:
    labels = pod["metadata"].get("labels") or {}
    matching = []
    for stored in store[BUDGETS].within(pod["metadata"]["namespace"]):
        budget = stored.read()
        chosen = selector((budget.get("spec") or {}).get("selector"))
        if chosen is not None and chosen.matches(labels):
            matching.append(budget)
    if len(matching) > 1:
        raise Failure(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
    for budget in matching:
        _take_disruption(store, writer, budget, pod, dry_run=dry_run)


def _take_disruption(store: Store, writer: Writer, budget: Object, pod: Object, *, dry_run: bool) -> None:
    name, spec, status = budget["metadata"]["name"], budget.get("spec") or {}, budget.setdefault("status", {})
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not is_ready(pod) and (spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or (healthy >= desired > 0)):
        return
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        raise _too_many_requests(f"The disruption budget {name} is still being processed by the server.", retry_after=10)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise Failure(403, "Forbidden", f'poddisruptionbudgets.policy "{name}" is forbidden: pdb disruptions allowed is negative')
    disrupted = status.setdefault("disruptedPods", {})
    if len(disrupted) > MOST_DISRUPTED:
        raise Failure(403, "Forbidden", f'poddisruptionbudgets.policy "{name}" is forbidden: DisruptedPods map too big')
    if allowed == 0:
        raise _too_many_requests(f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
    status["disruptionsAllowed"] = allowed - 1
    disrupted[pod["metadata"]["name"]] = writer.now()
    if not dry_run:
        store.put(BUDGETS, budget)


def _too_many_requests(cause: str, *, retry_after: int | None = None) -> Failure:
    details = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return Failure(429, "TooManyRequests", message, details=details, retry_after=retry_after)
