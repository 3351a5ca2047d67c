"""The rights that gpuscaler needs on Azure: which action each call needs and what for, the custom roles that grant them, the federation.

Sources: Azure's lists of operations of Microsoft.Compute and Microsoft.ContainerService, 2026; the texts of AuthorizationFailed and
LinkedAuthorizationFailed. A write of a scale set sends only its size, so the right to join its subnet is not needed; a write of an agent
pool sends all of it, so that right is needed if the nodes are in a virtual network of yours.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from gpuscaler.clouds.azure.api.errors import ArmFailure, clean
from gpuscaler.clouds.azure.api.ids import cluster_path, group_path

#: Where a right is needed: in resource groups with machines, on the AKS cluster, in the whole subscription, on subnets of the user's.
NODES, CLUSTER, SUBSCRIPTION, SUBNET = "nodes", "cluster", "subscription", "subnet"
#: The audience of tokens that Entra exchanges.
AUDIENCE: Final = "api://AzureADTokenExchange"
#: The last action in a text is the missing one: LinkedAuthorizationFailed names first what is allowed.
_ACTION: Final = re.compile(
    r"perform action '(?P<action>[A-Za-z0-9./*_-]+)'(?: (?:over|on) (?:the linked )?scope(?:\(s\))? '(?P<scope>[^']{1,1000}))?"
)
_DENY: Final = "deny assignment"
_SUBSCRIPTION: Final = re.compile(r"/subscriptions/[^/]+", re.IGNORECASE)


class Right(Struct, frozen=True, gc=False):
    """The right to do ``action``, Azure's name of it, at each of ``scopes``; ``purpose`` completes "needed to". ``changes`` something."""

    action: str
    purpose: str
    scopes: tuple[str, ...]
    changes: bool = False


RIGHTS: Final = (
    Right("Microsoft.Compute/virtualMachineScaleSets/read", "read scale sets", (NODES,)),
    Right("Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read", "list the machines of uniform scale sets", (NODES,)),
    Right(
        "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/instanceView/read", "read whether machines of scale sets run", (NODES,)
    ),
    Right("Microsoft.Compute/virtualMachines/read", "list the machines of flexible scale sets and of pools of virtual machines", (NODES,)),
    Right("Microsoft.Compute/virtualMachines/instanceView/read", "read whether virtual machines run", (NODES,)),
    Right("Microsoft.Compute/virtualMachineScaleSets/write", "buy machines: it sets the capacity of scale sets", (NODES,), changes=True),
    Right("Microsoft.Compute/virtualMachineScaleSets/delete/action", "end machines of scale sets, by id", (NODES,), changes=True),
    Right("Microsoft.ContainerService/managedClusters/read", "read the cluster and its node resource group", (CLUSTER,)),
    Right("Microsoft.ContainerService/managedClusters/agentPools/read", "read agent pools", (CLUSTER,)),
    Right(
        "Microsoft.ContainerService/managedClusters/agentPools/write",
        "buy machines where scale sets cannot be changed: it sets the number of machines of agent pools",
        (CLUSTER,),
        changes=True,
    ),
    Right(
        "Microsoft.ContainerService/managedClusters/agentPools/deleteMachines/action",
        "end machines of agent pools, by name",
        (CLUSTER,),
        changes=True,
    ),
    Right("Microsoft.Compute/locations/operations/read", "follow changes of scale sets to their end", (NODES, SUBSCRIPTION)),
    Right("Microsoft.ContainerService/locations/operations/read", "follow changes of agent pools to their end", (CLUSTER, SUBSCRIPTION)),
    Right("Microsoft.ContainerService/locations/operationresults/read", "read the results of such changes", (CLUSTER, SUBSCRIPTION)),
    Right("Microsoft.Compute/skus/read", "read sizes of machines, and where they may not be used", (SUBSCRIPTION,)),
    Right("Microsoft.Compute/locations/usages/read", "read quotas before machines are bought", (SUBSCRIPTION,)),
    Right("Microsoft.Compute/capacityReservationGroups/read", "read groups of capacity reservations", (SUBSCRIPTION,)),
    Right(
        "Microsoft.Compute/capacityReservationGroups/capacityReservations/read", "read how much reserved capacity is free", (SUBSCRIPTION,)
    ),
    Right(
        "Microsoft.Compute/capacityReservationGroups/deploy/action",
        "buy machines of reserved capacity in agent pools",
        (SUBSCRIPTION,),
        changes=True,
    ),
    Right(
        "Microsoft.Network/virtualNetworks/subnets/join/action",
        "change agent pools whose nodes are in your own subnet",
        (SUBNET,),
        changes=True,
    ),
)
_BY_ACTION: Final = {right.action.lower(): right for right in RIGHTS}


def right_of(action: str) -> Right | None:
    """The right to do ``action``, in any case; None if gpuscaler needs none of that name."""
    return _BY_ACTION.get(action.lower())


def describe_denial(failure: ArmFailure) -> str:
    """What a denial names as missing, what that is needed for and what to do; empty if its text names no action.

    A deny assignment takes precedence over all roles: AKS makes one that locks the node resource group.
    """
    found = list(_ACTION.finditer(failure.text))
    if not found:
        return ""
    action, scope = found[-1]["action"], _SUBSCRIPTION.sub("", found[-1]["scope"] or "", count=1)
    right = right_of(action)
    name = right.action if right else clean(action, 100)
    if _DENY in failure.text.lower():
        return f"Azure does not allow {name}: a deny assignment forbids it, as in a locked node resource group; no role can change that"
    where = f" at {clean(scope, 150)}" if scope else ""
    purpose = f", to {right.purpose}" if right else ""
    return f"Azure does not allow {name}; add it to the role (gpuscaler generate azure-role prints one){where}{purpose}"


def custom_roles(
    subscription: str,
    *,
    cluster: str = "",
    cluster_group: str = "",
    node_groups: Sequence[str] = (),
    subnets: Sequence[str] = (),
    change: bool = True,
) -> dict[str, Any]:
    """The definitions of custom roles, and the scopes to assign them at, as JSON.

    ``node_groups`` are the resource groups with machines, ``subnets`` ids of subnets. One role holds what is needed in resource groups and
    on the cluster, so that nothing can be changed elsewhere, another one the reading in the whole ``subscription``. With ``change`` False
    the roles allow reading only.
    """
    # Names of roles are unique in a tenant, those of clusters only in their resource group.
    place = f"{cluster} in {cluster_group}" if cluster else node_groups[0]
    label = f"gpuscaler {place}{'' if change else ' read-only'}"
    groups = [group_path(subscription, group) for group in node_groups]
    machines = [*groups, *([cluster_path(subscription, cluster_group, cluster)] if cluster else [])]
    assignable = list(dict.fromkeys([*groups, *([group_path(subscription, cluster_group)] if cluster else [])]))
    kept = (NODES, CLUSTER) if cluster else (NODES,)
    whole = f"/subscriptions/{subscription}"
    parts = [
        (label, "machines of the cluster", actions(*kept, change=change), machines, assignable),
        (f"{label} subscription", "sizes, quotas and reservations", actions(SUBSCRIPTION, change=change), [whole], [whole]),
    ]
    if subnets and change:
        parts.append((f"{label} subnets", "the nodes' subnets", actions(SUBNET), list(subnets), _groups_of(subnets)))
    return {
        "roles": [_role(name, f"What gpuscaler needs: {what}.", allowed, among) for name, what, allowed, _, among in parts],
        "assignments": [{"role": name, "scope": scope} for name, _, _, scopes, _ in parts for scope in scopes],
    }


def actions(*scopes: str, change: bool = True) -> list[str]:
    """The actions needed at any of ``scopes``; with ``change`` False those that only read."""
    return [right.action for right in RIGHTS if not set(scopes).isdisjoint(right.scopes) and (change or not right.changes)]


def federated_credential(issuer: str, namespace: str, service_account: str) -> dict[str, Any]:
    """The credential with which the ServiceAccount's token becomes one of the identity; ``issuer`` is the cluster's OIDC issuer."""
    return {
        "name": f"{namespace}-{service_account}"[:120],
        "issuer": issuer,
        "subject": f"system:serviceaccount:{namespace}:{service_account}",
        "audiences": [AUDIENCE],
    }


def _role(name: str, description: str, allowed: list[str], assignable: list[str]) -> dict[str, Any]:
    """A role as ``az role definition create`` reads it."""
    return {
        "Name": name,
        "IsCustom": True,
        "Description": description,
        "Actions": allowed,
        "NotActions": [],
        "DataActions": [],
        "NotDataActions": [],
        "AssignableScopes": assignable,
    }


def _groups_of(ids: Sequence[str]) -> list[str]:
    """The resource groups of resources, by their ids."""
    return list(dict.fromkeys("/".join(ident.split("/")[:5]) for ident in ids))
