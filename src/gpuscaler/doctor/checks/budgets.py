"""PodDisruptionBudgets that never allow an eviction."""

import math
from collections.abc import Container, Iterable, Iterator

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.nodes.gpu_nodes import gpu_nodes
from gpuscaler.doctor.commands import ObjectName, kubectl_delete, kubectl_patch
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.capacity.pool_membership import members

EFFECT = "its pods can never be evicted, so their nodes are never removed or repaired"
EFFECT_ELSEWHERE = "its pods can never be evicted, so their nodes are never repaired or upgraded"
#: A pod that is not Ready for this long does not become Ready by itself, in seconds.
_UNREADY_FOR = 1800.0
_REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet")
#: Owners of pods that a drain leaves where they are.
_ON_EVERY_NODE = ("DaemonSet", "Node")


def find_blocking_budgets(evidence: Evidence) -> Iterable[Finding]:
    """D34: a rule that never allows an eviction."""
    replicas = _replicas(evidence.cluster)
    limits = {key: limit for key, budget in evidence.cluster.budgets.items() if (limit := _limit(budget, replicas)) is not None}
    harmful = _harmful(evidence, _pods_by_budget(evidence.cluster, limits), limits)
    for key, (field, seen, expected) in limits.items():
        target = _target(evidence.cluster.budgets[key])
        severity, effect = (CRITICAL, EFFECT) if key in harmful else (WARNING, EFFECT_ELSEWHERE)
        fix = Fix((kubectl_patch(target, {"spec": {"minAvailable": None, "maxUnavailable": 1}}),))
        yield Finding("D34", severity, target.title, field, seen, expected, effect, fix)


def _harmful(evidence: Evidence, covered: dict[str, list[Pod]], keys: Container[str]) -> frozenset[str]:
    """Those of the budgets ``keys`` that keep machines from being removed: with pods, ``covered``, on nodes of the pools.

    Without a run file, nodes with GPUs count as those of the pools. So do the nodes that pods will be on which request GPUs.
    """
    cluster, managed = evidence.cluster, _managed(evidence)
    harmful = {key for key, pods in covered.items() if any(_is_on(pod, managed) for pod in pods)}
    by_namespace = _by_namespace(cluster, keys)
    for workload in cluster.workloads.values():
        if workload.kind in _REPLICATED and workload.template is not None and any(map(is_device, workload.template.requests)):
            here = by_namespace.get(workload.namespace, ())
            harmful.update(item.key for item in here if item.selector is not None and item.selector.matches(workload.template_labels))
    return frozenset(harmful)


def _managed(evidence: Evidence) -> frozenset[str]:
    """The nodes of the pools."""
    if evidence.policy is not None and evidence.policy.pools:
        return frozenset(members(evidence.cluster.nodes, evidence.policy, evidence.unlisted))
    return frozenset(node.name for node in gpu_nodes(evidence.cluster))


def _is_on(pod: Pod, managed: frozenset[str]) -> bool:
    if pod.owner.kind in _ON_EVERY_NODE:
        return False
    return pod.node_name in managed if pod.node_name else any(map(is_device, pod.spec.requests))


def find_refusing_budgets(evidence: Evidence) -> Iterable[Finding]:
    """D34: a status that allows no eviction although the rule would."""
    replicas = _replicas(evidence.cluster)
    documents = {f"{document.namespace or 'default'}/{document.name}": document for document in evidence.of("PodDisruptionBudget")}
    budgets = {key: evidence.cluster.budgets[key] for key in documents if key in evidence.cluster.budgets}
    open_rules = {key for key, budget in budgets.items() if _limit(budget, replicas) is None}
    uncounted = {key: failed for key in open_rules if (failed := _sync_failure(documents[key])) is not None}
    covered = _pods_by_budget(evidence.cluster, uncounted)
    harmful = _harmful(evidence, covered, uncounted)
    for key, document in documents.items():
        if key in uncounted:
            yield _uncounted(document, uncounted[key], len(covered.get(key, ())), CRITICAL if key in harmful else WARNING)
        elif key in open_rules:
            yield from _outdated(document)


def _target(budget: PodDisruptionBudget) -> ObjectName:
    return ObjectName("PodDisruptionBudget", budget.namespace, budget.name)


def _limit(budget: PodDisruptionBudget, replicas: dict[str, int]) -> tuple[str, str, str] | None:
    """The rule of ``budget`` that never allows an eviction: field, what was seen, what was expected."""
    rule = blocking_rule(budget.max_unavailable, budget.min_available, budget.expected or replicas.get(budget.key, 0))
    return None if rule is None else (f"spec.{rule[0]}", *rule[1:])


def blocking_rule(most: object, least: object, pods: int) -> tuple[str, str, str] | None:
    """Which of maxUnavailable and minAvailable never allows an eviction of ``pods`` (0 if unknown): field, what was seen, and expected."""
    if _amount(most, 100) == 0:
        return "maxUnavailable", str(most), "at least 1"
    if least == "100%":
        return "minAvailable", "100%", "less than all pods"
    needed = _amount(least, pods)
    if pods and needed is not None and needed >= pods:
        return "minAvailable", f"{least} of {pods} {'pod' if pods == 1 else 'pods'}", "less than all pods"
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
    by_namespace = _by_namespace(cluster, cluster.budgets)
    counts: dict[str, int] = {}
    for workload in cluster.workloads.values():
        if workload.kind in _REPLICATED and not workload.owner.uid:
            for budget in by_namespace.get(workload.namespace, ()):
                if budget.selector is not None and budget.selector.matches(workload.template_labels):
                    counts[budget.key] = counts.get(budget.key, 0) + workload.replicas
    return counts


def _sync_failure(budget: Document) -> str | None:
    """The message of Kubernetes that it cannot count the pods; None if it can."""
    # A number of pods needs no controller that says how many there should be: such a status is of an earlier rule.
    if isinstance(budget.value("spec", "minAvailable"), int):
        return None
    for condition in budget.parts("status", "conditions"):
        if (condition.text("type"), condition.text("reason")) == ("DisruptionAllowed", "SyncFailed"):
            return condition.text("message")
    return None


def _uncounted(budget: Document, message: str, pods: int, severity: str) -> Finding:
    fix = Fix(advice="let a Deployment or StatefulSet own the pods, or set minAvailable to a number")
    if pods:
        fix = Fix((kubectl_patch(budget, {"spec": {"maxUnavailable": None, "minAvailable": pods - 1}}),))
    return Finding(
        "D34",
        severity,
        budget.title,
        "status.conditions[DisruptionAllowed]",
        f"SyncFailed: {message}",
        "SufficientPods",
        "Kubernetes cannot count its pods, and allows no eviction: their nodes are never removed or repaired",
        fix,
    )


def _outdated(budget: Document) -> Iterator[Finding]:
    """A count that allows no eviction although the pods would."""
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
        EFFECT,
        Fix(advice="the status is out of date: look at the log of kube-controller-manager, which counts the pods"),
    )


def find_hindered_pods(evidence: Evidence) -> Iterable[Finding]:
    """D34: pods that several budgets cover, and unhealthy pods that a budget keeps on their nodes."""
    cluster = evidence.cluster
    covered = _pods_by_budget(cluster, cluster.budgets)
    over: dict[str, list[str]] = {}
    for key, pods in covered.items():
        for pod in pods:
            over.setdefault(pod.key, []).append(key)
    shared: dict[tuple[str, ...], list[Pod]] = {}
    for pod_key, keys in over.items():
        if len(keys) > 1:
            shared.setdefault(tuple(keys), []).append(cluster.pods[pod_key])
    managed = _managed(evidence) if shared else frozenset()
    for budgets, pods in shared.items():
        yield _overlap(cluster, budgets, covered, CRITICAL if any(_is_on(pod, managed) for pod in pods) else WARNING)
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


def _overlap(cluster: Cluster, keys: tuple[str, ...], covered: dict[str, list[Pod]], severity: str) -> Finding:
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
        severity,
        target.title,
        "spec.selector",
        f"pods that PodDisruptionBudget {others} selects, too",
        "one budget for each pod",
        "the eviction API refuses to evict a pod with several budgets, so its node is never removed or repaired",
        Fix((kubectl_delete(target),)) if spare else Fix(advice="change the selectors so that each pod has one budget"),
    )


def _by_namespace(cluster: Cluster, keys: Container[str]) -> dict[str, list[PodDisruptionBudget]]:
    """The budgets ``keys`` by namespace, in the order of their names."""
    by_namespace: dict[str, list[PodDisruptionBudget]] = {}
    for budget in sorted(cluster.budgets.values(), key=lambda budget: budget.key):
        if budget.key in keys:
            by_namespace.setdefault(budget.namespace, []).append(budget)
    return by_namespace


def _pods_by_budget(cluster: Cluster, keys: Container[str]) -> dict[str, list[Pod]]:
    """The pods of the budgets ``keys``."""
    by_namespace = _by_namespace(cluster, keys)
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
