"""Actions that gpuscaler needs on Azure, and that its identity may not take."""

import json
from collections.abc import Iterator
from typing import Final

from gpuscaler.doctor.checks.azure.account import CLUSTER, agent_pools, az, azure_check, settings_of
from gpuscaler.doctor.checks.trusting import may_help
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked

RIGHT = "azure/Right"
_LESS = "gpuscaler goes on with less: it does not know quotas or reservations, or has one way less to buy"
_NOTHING = "pools are not found, or no machine can be bought or ended"
#: Actions without which gpuscaler goes on with less.
_OPTIONAL: Final = frozenset(
    {
        "Microsoft.Compute/locations/usages/read",
        "Microsoft.Compute/capacityReservationGroups/read",
        "Microsoft.Compute/capacityReservationGroups/capacityReservations/read",
        "Microsoft.Compute/capacityReservationGroups/deploy/action",
        "Microsoft.Compute/virtualMachines/instanceView/read",
    }
)
#: Actions that change sizes through AKS, and through scale sets: only one of the two ways is needed.
_BY_AKS: Final = frozenset(
    {
        "Microsoft.ContainerService/managedClusters/agentPools/write",
        "Microsoft.ContainerService/managedClusters/agentPools/deleteMachines/action",
    }
)
_BY_SETS: Final = frozenset({"Microsoft.Compute/virtualMachineScaleSets/write", "Microsoft.Compute/virtualMachineScaleSets/delete/action"})
_UNKNOWN = (
    "the cluster's objects name no managed identity of these subscriptions for gpuscaler's ServiceAccount "
    "(azure.workload.identity/client-id); without it, only what the caller was denied is known"
)
_ROLES = "gpuscaler generate azure-role prints roles that have all actions"


def find_missing(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D29: actions that no role allows, by scope; without an identity, those that the caller was denied."""
    rights = evidence.of(RIGHT)
    if not rights:
        if RIGHT not in evidence.unread and settings_of(evidence):
            yield Unchecked("D29", "the rights of gpuscaler's identity", _UNKNOWN)
        yield from _denied(evidence)
        return
    optional = _OPTIONAL | (_BY_SETS if _writes_through_aks(evidence) else _BY_AKS)
    ours = _is_ours(evidence)
    missing: dict[tuple[str, str], list[Document]] = {}
    for right in rights:
        if not right.flag("Allowed"):
            severity = WARNING if right.text("Action") in optional else CRITICAL
            missing.setdefault((severity, right.text("Scope")), []).append(right)
    # Actions of the same role at another scope come with one command, which has to name all of them.
    for (severity, scope), lacking in missing.items():
        names = [right.text("Action") for right in lacking]
        yield Finding(
            "D29",
            severity,
            f"Identity {lacking[0].text('Identity')} at {scope}",
            "roles",
            f"no permission for {', '.join(names)}",
            "allowed by a role that is assigned there or above",
            _LESS if severity == WARNING else _NOTHING,
            _with_actions(lacking[0].part("Role") if ours else Document({}), [right for right in rights if not right.flag("Allowed")]),
        )


def _writes_through_aks(evidence: Evidence) -> bool:
    """Whether machines are bought with AKS's own API."""
    if any(item.text("Api") == "agentpool" for item in settings_of(evidence)):
        return True
    locked = any(item.text("properties", "nodeResourceGroupProfile", "restrictionLevel") == "ReadOnly" for item in evidence.of(CLUSTER))
    return locked or any(pool.adopted and pool.is_word("VirtualMachines", "type") for pool in agent_pools(evidence))


def _is_ours(evidence: Evidence) -> bool:
    """Whether the identity is that of an account of gpuscaler that no tenant can make; such accounts come first."""
    return any(
        item.labels.get("app.kubernetes.io/name") == "gpuscaler"
        and item.annotations.get("azure.workload.identity/client-id", "").strip()
        and may_help(evidence, item.namespace)
        for item in evidence.of("ServiceAccount")
    )


def _with_actions(role: Document, lacking: list[Document]) -> Fix:
    """Add to a role of the user's own all actions that are missing where it is assigned."""
    name = role.text("roleName")
    if not name:
        return Fix(advice=f"assign a role with these actions: {_ROLES}")
    permission = next(iter(role.parts("permissions")), Document({}))
    more = [right.text("Action") for right in lacking if right.text("Role", "roleName") == name]
    definition = {
        "Name": name,
        "IsCustom": True,
        "Description": role.text("description"),
        "Actions": list(dict.fromkeys((*permission.texts("actions"), *more))),
        "NotActions": list(permission.texts("notActions")),
        "AssignableScopes": list(role.texts("assignableScopes")),
    }
    return Fix((az("role", "definition", "update", "--role-definition", json.dumps(definition, separators=(",", ":"))),))


def _denied(evidence: Evidence) -> Iterator[Finding]:
    """What the caller was denied, each action once."""
    scopes: dict[str, dict[str, None]] = {}
    purposes: dict[str, str] = {}
    for denied in evidence.of("azure/DeniedAction"):
        scopes.setdefault(denied.text("Action"), {})[denied.text("Scope")] = None
        purposes[denied.text("Action")] = denied.text("Purpose")
    for action, where in scopes.items():
        yield Finding(
            "D29",
            WARNING,
            f"caller at {', '.join(where)}",
            "roles",
            f"no permission for {action}, to {purposes[action]}",
            "allowed, if gpuscaler runs with the caller's credentials",
            _LESS if action in _OPTIONAL else _NOTHING,
            Fix(advice=f"assign a role with this action: {_ROLES}"),
        )


CHECKS = (azure_check("D29", "actions that Azure's roles allow", (RIGHT,), find_missing),)
