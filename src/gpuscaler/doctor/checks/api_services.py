"""APIServices of metrics that are not available, or whose service belongs to another program."""

from collections.abc import Iterable

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix

#: The API groups of metrics: those of the HorizontalPodAutoscaler.
METRICS_GROUPS = ("metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io")


def find_unavailable(evidence: Evidence) -> Iterable[Finding]:
    """D42: an APIService of metrics that the API server cannot reach."""
    for service in evidence.of("APIService"):
        if service.text("spec", "group") not in METRICS_GROUPS:
            continue
        for condition in service.parts("status", "conditions"):
            if condition.text("type") == "Available" and condition.text("status") == "False":
                where = f"{service.text('spec', 'service', 'namespace')}/{service.text('spec', 'service', 'name')}"
                yield Finding(
                    "D42",
                    CRITICAL,
                    service.title,
                    "status.conditions[Available]",
                    f"False ({condition.text('reason')}: {condition.text('message')})",
                    "True",
                    "HorizontalPodAutoscalers read no such metrics, and no namespace can be deleted",
                    Fix(advice=f"repair the service {where}, or delete the APIService if the program behind it is gone for good"),
                )


CHECKS = (Check("D42", "APIServices of metrics that are not available", ("APIService",), find_unavailable),)
