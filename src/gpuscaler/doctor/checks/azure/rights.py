"""Actions that gpuscaler needs on Azure and that were denied while the account was read."""

from collections.abc import Iterator

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import ACCOUNT, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

#: Actions without which gpuscaler goes on with less.
_OPTIONAL = ("microsoft.compute/locations/usages/read", "microsoft.compute/virtualmachines/read")


def find_denied(evidence: Evidence) -> Iterator[Finding]:
    """D29: denied actions, each once."""
    scopes: dict[str, dict[str, None]] = {}
    purposes: dict[str, str] = {}
    for denied in evidence.of("azure/DeniedAction"):
        scopes.setdefault(denied.text("Action"), {})[denied.text("Scope")] = None
        purposes[denied.text("Action")] = denied.text("Purpose")
    for action, where in scopes.items():
        optional = action.lower() in _OPTIONAL
        yield Finding(
            "D29",
            WARNING if optional else CRITICAL,
            f"Azure role of the caller, at {', '.join(where)}",
            action,
            "not allowed",
            f"allowed, to {purposes[action]}",
            "gpuscaler goes on with less" if optional else "pools are not found, or nothing is bought",
            Fix(advice="add the action to the role of gpuscaler's identity: gpuscaler generate azure-role prints roles that have it"),
        )


CHECKS = (Check("D29", "rights in Azure", (ACCOUNT,), find_denied),)
