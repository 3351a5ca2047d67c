"""PodDisruptionBudgets that never allow an eviction."""

import math
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.commands import ObjectName, kubectl_delete, kubectl_patch
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import PodDisruptionBudget

_EFFECT = "its pods can never be evicted, so their nodes are never removed or repaired"
#: A pod that is not Ready for this long does not become Ready by itself, in seconds.
_UNREADY_FOR = 1800.0
_REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet")


def find_blocking_budgets(evidence: Evidence) -> Iterable[Finding]:
    """D34: a rule that never allows an eviction."""
    replicas = _replicas(evidence.cluster)
    for budget in evidence.cluster.budgets.values():
        if (limit := _limit(budget, replicas)) is not None:
            field, seen, expected = limit
            target = _target(budget)
            fix = Fix((kubectl_patch(target, {"spec": {"minAvailable": None, "maxUnavailable": 1}}),))
            yield Finding("D34", CRITICAL, target.title, field, seen, expected, _EFFECT, fix)


def find_refusing_budgets(evidence: Evidence) -> Iterable[Finding]:
    """D34: a status that allows no eviction although the rule would."""
    replicas = _replicas(evidence.cluster)
    for document in evidence.of("PodDisruptionBudget"):
        budget = evidence.cluster.budgets.get(f"{document.namespace or 'default'}/{document.name}")
        if budget is not None and _limit(budget, replicas) is None:
            yield from _status(document, evidence)


def _target(budget: PodDisruptionBudget) -> ObjectName:
    return ObjectName("PodDisruptionBudget", budget.namespace, budget.name)


def _limit(budget: PodDisruptionBudget, replicas: dict[str, int]) -> tuple[str, str, str] | None:
    """The rule of ``budget`` that never allows an eviction: field, what was seen, what was expected."""
    most, least = budget.max_unavailable, budget.min_available
    if _amount(most, 100) == 0:
        return "spec.maxUnavailable", str(most), "at least 1"
    wanted = budget.expected or replicas.get(budget.key, 0)
    if least == "100%":
        return "spec.minAvailable", "100%", "less than all pods"
    needed = _amount(least, wanted)
    if wanted and needed is not None and needed >= wanted:
        return "spec.minAvailable", f"{least} of {wanted} pods", "less than all pods"
    return None


def _amount(rule: object, pods: float) -> int | None:
    """The number of pods of a count or a percentage, rounded up as Kubernetes does; None if it is neither."""
    if isinstance(rule, int) and not isinstance(rule, bool):
        return rule
    text = rule if isinstance(rule, str) else ""
    number = text.removesuffix("%")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        return None
    return math.ceil(int(number) * pods / 100) if text.endswith("%") else int(number)


def _replicas(cluster: Cluster) -> dict[str, int]:
    """The number of pods that controllers want under each budget, where its status does not say."""
    by_namespace: dict[str, list[PodDisruptionBudget]] = {}
    for budget in cluster.budgets.values():
        by_namespace.setdefault(budget.namespace, []).append(budget)
    counts: dict[str, int] = {}
    for workload in cluster.workloads.values():
        if workload.kind in _REPLICATED and not workload.owner.uid:
            for budget in by_namespace.get(workload.namespace, ()):
                if budget.selector is not None and budget.selector.matches(workload.template_labels):
                    counts[budget.key] = counts.get(budget.key, 0) + workload.replicas
    return counts


def _status(budget: Document, evidence: Evidence) -> Iterator[Finding]:
    """A status that allows no eviction although the rule would."""
    # A number of pods needs no controller that says how many there should be: such a status is of an earlier rule.
    counted = isinstance(budget.value("spec", "minAvailable"), int)
    for condition in budget.parts("status", "conditions"):
        if (condition.text("type"), condition.text("reason")) == ("DisruptionAllowed", "SyncFailed") and not counted:
            selected = evidence.cluster.budgets.get(f"{budget.namespace or 'default'}/{budget.name}")
            count = len(_covered(evidence.cluster, selected)) if selected is not None else 0
            fix = Fix(advice="let a Deployment or StatefulSet own the pods, or set minAvailable to a number")
            if count:
                fix = Fix((kubectl_patch(budget, {"spec": {"maxUnavailable": None, "minAvailable": count - 1}}),))
            yield Finding(
                "D34",
                CRITICAL,
                budget.title,
                "status.conditions[DisruptionAllowed]",
                f"SyncFailed: {condition.text('message')}",
                "SufficientPods",
                "Kubernetes cannot count its pods, and allows no eviction: their nodes are never removed or repaired",
                fix,
            )
            return
    healthy, desired = budget.number("status", "currentHealthy"), budget.number("status", "desiredHealthy")
    allowed = budget.number("status", "disruptionsAllowed")
    pods = budget.number("status", "expectedPods")
    if healthy is None or desired is None or not pods or allowed != 0 or healthy <= desired or budget.value("status", "disruptedPods"):
        return
    yield Finding(
        "D34",
        WARNING,
        budget.title,
        "status.disruptionsAllowed",
        f"0, although {healthy:g} pods are healthy and {desired:g} have to be",
        f"{healthy - desired:g}",
        _EFFECT,
        Fix(advice="the status is out of date: look at the log of kube-controller-manager, which counts the pods"),
    )


def find_hindered_pods(evidence: Evidence) -> Iterable[Finding]:
    """D34: pods that several budgets cover, and unhealthy pods that a budget keeps on their nodes."""
    cluster = evidence.cluster
    covered = _pods_by_budget(cluster)
    over: dict[str, list[str]] = {}
    for key, pods in covered.items():
        for pod in pods:
            over.setdefault(pod.key, []).append(key)
    reported: set[tuple[str, ...]] = set()
    for keys in over.values():
        if len(keys) > 1 and tuple(keys) not in reported:
            reported.add(tuple(keys))
            yield _overlap(cluster, keys, covered)
    for key, pods in covered.items():
        budget = cluster.budgets[key]
        if budget.always_evict_unhealthy or budget.disruptions_allowed > 0 or _is_healthy_enough(budget, pods):
            continue
        stuck = [pod for pod in pods if _is_stuck(pod, evidence.now)]
        if stuck and len(over[stuck[0].key]) == 1:
            target = _target(budget)
            yield Finding(
                "D34",
                WARNING,
                target.title,
                "spec.unhealthyPodEvictionPolicy",
                f"not set, with {len(stuck)} {'pod' if len(stuck) == 1 else 'pods'} that are not Ready, and no eviction allowed",
                "AlwaysAllow",
                "pods that do not work anyway keep their nodes, and the budget's healthy pods theirs",
                Fix((kubectl_patch(target, {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}),)),
            )


def _overlap(cluster: Cluster, keys: list[str], covered: dict[str, list[Pod]]) -> Finding:
    """The finding about the budget that may go: the one whose pods the others cover as well, if there is one."""
    pods = {key: {pod.key for pod in covered[key]} for key in keys}
    spare = [key for key in keys if any(pods[key] <= pods[other] for other in keys if other != key)]
    # Of two budgets for the same pods, the one that allows less stays.
    key = min(spare or keys, key=lambda key: (-cluster.budgets[key].disruptions_allowed, key))
    budget = cluster.budgets[key]
    target = _target(budget)
    others = ", ".join(cluster.budgets[other].name for other in keys if other != key)
    return Finding(
        "D34",
        CRITICAL,
        target.title,
        "spec.selector",
        f"pods that PodDisruptionBudget {others} selects, too",
        "one budget for each pod",
        "the eviction API refuses to evict a pod with several budgets, so its node is never removed or repaired",
        Fix((kubectl_delete(target),)) if spare else Fix(advice="change the selectors so that each pod has one budget"),
    )


def _pods_by_budget(cluster: Cluster) -> dict[str, list[Pod]]:
    by_namespace: dict[str, list[PodDisruptionBudget]] = {}
    for budget in sorted(cluster.budgets.values(), key=lambda budget: budget.key):
        by_namespace.setdefault(budget.namespace, []).append(budget)
    covered: dict[str, list[Pod]] = {}
    matching: dict[tuple[str, object], list[str]] = {}
    for pod in cluster.pods.values():
        if pod.finished or pod.namespace not in by_namespace:
            continue
        alike = (pod.namespace, pod.labels)
        if alike not in matching:
            here = by_namespace[pod.namespace]
            matching[alike] = [budget.key for budget in here if budget.selector is not None and budget.selector.matches(pod.labels)]
        for key in matching[alike]:
            covered.setdefault(key, []).append(pod)
    return covered


def _covered(cluster: Cluster, budget: PodDisruptionBudget) -> list[Pod]:
    if budget.selector is None:
        return []
    return [pod for pod in cluster.pods.values() if pod.namespace == budget.namespace and budget.selector.matches(pod.labels)]


def _is_healthy_enough(budget: PodDisruptionBudget, pods: list[Pod]) -> bool:
    """Whether so many pods are healthy that the eviction API evicts the others: as many as the budget wants."""
    if budget.healthy is None or budget.desired is None:
        return any(pod.ready for pod in pods)
    return budget.healthy >= budget.desired > 0


def _is_stuck(pod: Pod, now: float) -> bool:
    """Whether ``pod`` runs and has not been Ready for long; by its age, if it is not known since when."""
    if pod.phase != "Running" or pod.ready is not False or pod.deleted:
        return False
    return now - max(pod.started, pod.created, pod.unready_since) >= _UNREADY_FOR


CHECKS = (
    Check("D34", "budgets that never allow an eviction", ("PodDisruptionBudget",), find_blocking_budgets, continuous=True),
    Check("D34", "budgets whose status allows no eviction", ("PodDisruptionBudget",), find_refusing_budgets),
    Check("D34", "pods that budgets keep on their nodes", (CLUSTER, "Pod", "PodDisruptionBudget"), find_hindered_pods, continuous=True),
)
