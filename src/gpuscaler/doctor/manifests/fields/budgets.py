"""PodDisruptionBudgets in files that never allow an eviction."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.budgets import EFFECT, EFFECT_ELSEWHERE, blocking_rule
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
        pods = sum(map(_replicas, covered)) if counted else 0
        limit = blocking_rule(spec.value("maxUnavailable"), spec.value("minAvailable"), pods)
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


def _finding(manifest: Manifest, limit: tuple[str, str, str], mistake: Mistake) -> Finding:
    field, seen, expected = limit
    path = ("spec", field)
    without = removed(manifest.data, path) if field == "minAvailable" else manifest.data
    new = changed(without, ("spec", "maxUnavailable"), 1)
    return mistake.at(manifest, path, seen=seen, expected=expected, new=new, advice="write maxUnavailable: 1 instead")


LINTS = (Lint("D34", "budgets that never allow an eviction", find_blocking_budgets),)
