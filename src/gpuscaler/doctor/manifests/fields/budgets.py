"""PodDisruptionBudgets in files that never allow an eviction."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from gpuscaler.doctor.checks.budgets import EFFECT, EFFECT_ELSEWHERE
from gpuscaler.doctor.documents import Document, containers_of, template_of
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests
from gpuscaler.model.accelerators import is_device

_GPUS, _OTHERS = Mistake("D34", CRITICAL, EFFECT), Mistake("D34", WARNING, EFFECT_ELSEWHERE)
_KINDS = ("Deployment", "StatefulSet", "ReplicaSet")


def find_blocking_budgets(manifests: Manifests) -> Iterable[Finding]:
    """D34 in files: budgets whose rule never allows an eviction of the pods that the files have."""
    workloads: dict[str, list[Document]] = {}
    for manifest in manifests.of(*_KINDS):
        workloads.setdefault(manifest.document.namespace, []).append(manifest.document)
    scaled = {(item.document.namespace, item.document.text("spec", "scaleTargetRef", "name")) for item in _autoscalers(manifests)}
    for manifest in manifests.of("PodDisruptionBudget"):
        spec = manifest.document.part("spec")
        if spec.has("minAvailable") and spec.has("maxUnavailable"):
            continue  # No server takes it.
        covered = list(_covered(manifest.document, workloads.get(manifest.document.namespace, ())))
        counted = bool(covered) and not any((item.namespace, item.name) in scaled for item in covered)
        limit = _limit(spec, sum(map(_replicas, covered)) if counted else 0)
        if limit is not None:
            yield _finding(manifest, limit, _GPUS if any(map(_has_gpus, covered)) else _OTHERS)


def _autoscalers(manifests: Manifests) -> Iterator[Manifest]:
    return manifests.of("HorizontalPodAutoscaler", "ScaledObject")


def _covered(budget: Document, workloads: Iterable[Document]) -> Iterator[Document]:
    selector = budget.part("spec", "selector")
    labels = selector.pairs("matchLabels")
    if labels and not selector.has("matchExpressions"):
        for workload in workloads:
            if labels.items() <= workload.pairs("spec", "template", "metadata", "labels").items():
                yield workload


def _replicas(workload: Document) -> int:
    return workload.whole("spec", "replicas") if workload.has("spec", "replicas") else 1


def _has_gpus(workload: Document) -> bool:
    template = template_of(workload) or Document({})
    return any(
        is_device(str(name))
        for _, container in containers_of(template)
        for part in ("limits", "requests")
        for name in container.part("resources", part).data
    )


def _limit(spec: Document, pods: int) -> tuple[str, str, str] | None:
    """The rule that allows nothing: field, what was seen, what was expected."""
    most, least = spec.value("maxUnavailable"), spec.value("minAvailable")
    if _amount(most, 100) == 0:
        return "maxUnavailable", str(most), "at least 1"
    if least == "100%":
        return "minAvailable", "100%", "less than all pods"
    needed = _amount(least, pods)
    if pods > 0 and needed is not None and needed >= pods:
        return "minAvailable", f"{least} of {pods} {'pod' if pods == 1 else 'pods'}", "less than all pods"
    return None


def _amount(rule: Any, pods: int) -> int | None:
    """The number of pods of a count or a percentage; None if it is neither."""
    if isinstance(rule, int) and not isinstance(rule, bool):
        return rule
    text = rule.removesuffix("%") if isinstance(rule, str) and rule.endswith("%") else ""
    return math.ceil(int(text) * pods / 100) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _finding(manifest: Manifest, limit: tuple[str, str, str], mistake: Mistake) -> Finding:
    field, seen, expected = limit
    path = ("spec", field)
    without = removed(manifest.data, path) if field == "minAvailable" else manifest.data
    new = changed(without, ("spec", "maxUnavailable"), 1)
    return mistake.at(manifest, path, seen=seen, expected=expected, new=new, advice="write maxUnavailable: 1 instead")


LINTS = (Lint("D34", "budgets that never allow an eviction", find_blocking_budgets),)
