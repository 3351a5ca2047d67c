"""Terraform of gpuscaler's rights on Azure: its identity, the custom roles, and who may use it.

Sources, read 2026-11-26: the pages of the provider azurerm about ``azurerm_role_definition``, ``azurerm_role_assignment``,
``azurerm_user_assigned_identity`` and ``azurerm_federated_identity_credential`` (the last of version 5.12).
"""

from collections.abc import Iterator
from typing import Any

from gpuscaler.clouds.azure.api.ids import cluster_path, group_path
from gpuscaler.clouds.azure.api.rights import custom_roles, federated_credential
from gpuscaler.generating.azure.cluster import cluster
from gpuscaler.generating.azure.names import identity_name, resource_group
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, Nested

_IDENTITY = "azurerm_user_assigned_identity.gpuscaler"
_SUBSCRIPTION = "${var.subscription_id}"
#: Stands for the resource group of the machines, whose name AKS chooses.
_NODES = "NODES"


def access_blocks(description: Description) -> Iterator[Tree]:
    yield because(
        "The identity that gpuscaler has on Azure. It has no secret.",
        Block(
            "resource",
            ("azurerm_user_assigned_identity", "gpuscaler"),
            {
                "name": identity_name(description),
                "resource_group_name": Expression(f"{cluster(description)}.resource_group_name"),
                "location": description.cluster.region,
            },
        ),
    )
    yield Block("resource", ("azurerm_federated_identity_credential", "gpuscaler"), _federation(description))
    yield from _roles(description)


def _federation(description: Description) -> dict[str, Tree]:
    wanted = federated_credential("", description.controller.namespace, SERVICE_ACCOUNT)
    return {
        "name": because("Any name; this one says whose credential it is.", wanted["name"]),
        "user_assigned_identity_id": because("The identity that the token is exchanged for.", Expression(f"{_IDENTITY}.id")),
        "issuer": because("Only tokens of this cluster are accepted.", Expression(f"{cluster(description)}.oidc_issuer_url")),
        "subject": because(
            "Only the controller's ServiceAccount in its namespace may use the identity. If the chart is installed elsewhere or under "
            "another name, Entra refuses the token.",
            wanted["subject"],
        ),
        "audience": because("The audience of the tokens that AKS gives to pods.", wanted["audiences"]),
    }


def _roles(description: Description) -> Iterator[Tree]:
    """Yield the roles that ``gpuscaler generate azure-role`` prints, with references instead of ids."""
    name, group = description.cluster.name, resource_group(description)
    wanted = custom_roles(_SUBSCRIPTION, cluster=name, cluster_group=group, node_groups=(_NODES,))
    scopes = {
        group_path(_SUBSCRIPTION, _NODES): ("nodes", Expression(f"{cluster(description)}.node_resource_group_id")),
        cluster_path(_SUBSCRIPTION, group, name): ("cluster", Expression(f"{cluster(description)}.id")),
        f"/subscriptions/{_SUBSCRIPTION}": ("subscription", Expression(f'"/subscriptions/{_SUBSCRIPTION}"')),
        group_path(_SUBSCRIPTION, group): (
            "group",
            Expression("azurerm_resource_group.cluster.id" if description.cluster.create else f'"{group_path(_SUBSCRIPTION, group)}"'),
        ),
    }
    labels = {role["Name"]: "subscription" if role["Name"].endswith(" subscription") else "machines" for role in wanted["roles"]}
    for role in wanted["roles"]:
        yield _definition(role, labels[role["Name"]], [scopes[scope][1] for scope in role["AssignableScopes"]])
    for assignment in wanted["assignments"]:
        place, scope = scopes[assignment["scope"]]
        role = labels[assignment["role"]]
        yield because(
            _WHERE[place],
            Block(
                "resource",
                ("azurerm_role_assignment", f"gpuscaler_{place}"),
                {
                    "scope": scope,
                    "role_definition_id": Expression(f"azurerm_role_definition.gpuscaler_{role}.role_definition_resource_id"),
                    "principal_id": Expression(f"{_IDENTITY}.principal_id"),
                    # A new identity is not known everywhere in Entra for minutes; the type saves Azure the look-up that would fail.
                    "principal_type": "ServicePrincipal",
                },
            ),
        )


_WHERE = {
    "nodes": "The role applies to the resource group of the machines: gpuscaler sets the capacity of scale sets and deletes machines.",
    "cluster": "The same role applies to the cluster, whose agent pools gpuscaler reads, and changes where scale sets are locked.",
    "subscription": "Reading sizes and quotas is possible for a whole subscription only.",
}


def _definition(role: dict[str, Any], label: str, assignable: list[Expression]) -> Tree:
    what = (
        "What gpuscaler may do with machines and agent pools, and nothing else: Contributor could change everything in the groups."
        if label == "machines"
        else "What gpuscaler must read in the subscription, and the use of reserved capacity. It can change nothing else there."
    )
    return because(
        what,
        Block(
            "resource",
            ("azurerm_role_definition", f"gpuscaler_{label}"),
            {
                "name": because("Names of roles are unique in a tenant, so it contains the cluster and its group.", role["Name"]),
                "description": role["Description"],
                "scope": because("Where the role is defined: the first place that it can be assigned to.", assignable[0]),
                "assignable_scopes": because("The only places that the role can be assigned to.", assignable),
                "permissions": because(
                    "One action for each call; docs/reference/azure.md says what each is for.", Nested({"actions": role["Actions"]})
                ),
            },
        ),
    )
