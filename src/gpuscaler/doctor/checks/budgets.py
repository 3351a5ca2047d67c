"""PodDisruptionBudgets that never allow an eviction."""

from collections.abc import Iterable

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix

_EFFECT = "its pods can never be evicted, so their nodes are never removed or repaired"


def find_blocking_budgets(evidence: Evidence) -> Iterable[Finding]:
    """D34: ``maxUnavailable: 0``, ``minAvailable: 100%``, or as many as there are pods."""
    for budget in evidence.of("PodDisruptionBudget"):
        if (limit := _limit(budget)) is not None:
            field, seen, expected = limit
            yield Finding(
                "D34",
                CRITICAL,
                budget.title,
                field,
                seen,
                expected,
                _EFFECT,
                Fix((kubectl_patch(budget, {"spec": {"minAvailable": None, "maxUnavailable": 1}}),)),
            )


def _limit(budget: Document) -> tuple[str, str, str] | None:
    most, least = budget.value("spec", "maxUnavailable"), budget.value("spec", "minAvailable")
    if most in (0, "0%", "0"):
        return "spec.maxUnavailable", str(most), "at least 1"
    if least == "100%":
        return "spec.minAvailable", "100%", "less than all pods"
    wanted = budget.number("status", "expectedPods")
    if wanted and isinstance(least, int) and not isinstance(least, bool) and least >= wanted:
        return "spec.minAvailable", f"{least} of {wanted:g} pods", "less than all pods"
    return None


CHECKS = (Check("D34", "budgets that never allow an eviction", ("PodDisruptionBudget",), find_blocking_budgets),)
