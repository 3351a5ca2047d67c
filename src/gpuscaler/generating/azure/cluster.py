"""Terraform of the AKS cluster itself, or of the one that exists.

Sources, read 2026-11-26: the pages of the provider azurerm about ``azurerm_kubernetes_cluster`` (of 2025 and 5.0's upgrade guide); AKS's
pages "Use system node pools", "Auto-upgrade node OS images" and "Secure traffic between pods by using network policies"
and "Secure access to the API server using authorized IP address ranges".
"""

from collections.abc import Iterator
from typing import Any, Final

from gpuscaler.generating.azure.names import GENERAL_POOL, SYSTEM_POOL, has_groups, resource_group, zones
from gpuscaler.generating.description.addresses import ANYWHERE
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, Nested

#: The number of pods of a node.
MAX_PODS: Final = 110
WHY_PODS: Final = "AKS keeps 20 MB of memory back for each pod that a node may have: with its default of 250 pods, that is 5 GB."
_KIND: Final = "azurerm_kubernetes_cluster"


def cluster(description: Description) -> str:
    """Return how other blocks refer to the cluster."""
    return f"{'' if description.cluster.create else 'data.'}{_KIND}.cluster"


def cluster_blocks(description: Description) -> Iterator[Tree]:
    settings = description.cluster
    if not settings.create:
        yield because(
            "The cluster exists already. Terraform only reads it, and never changes or deletes it.",
            Block("data", (_KIND, "cluster"), {"name": settings.name, "resource_group_name": resource_group(description)}),
        )
        return
    yield because(
        "The resource group of the cluster itself. AKS makes another one for its machines.",
        Block("resource", ("azurerm_resource_group", "cluster"), {"name": resource_group(description), "location": settings.region}),
    )
    yield because(
        "The cluster: its control plane, its network, and the pool of AKS's own pods, which every cluster has.",
        Block("resource", (_KIND, "cluster"), _cluster(description)),
    )
    for number, type_ in enumerate(description.general_types, 1):
        name = GENERAL_POOL if number == 1 else f"{GENERAL_POOL}{number}"
        yield because(
            "A pool without GPUs, for gpuscaler itself and everything else. gpuscaler does not manage it: it runs there itself.",
            Block("resource", (f"{_KIND}_node_pool", name), _general_pool(description, name, type_)),
        )


def _cluster(description: Description) -> dict[str, Tree]:
    settings = description.cluster
    return {
        "name": settings.name,
        "resource_group_name": Expression("azurerm_resource_group.cluster.name"),
        "location": because("GPU sizes are not sold in all locations.", settings.region),
        "dns_prefix": because("Part of the address of the API server; at most 54 characters.", settings.name[:54].rstrip("-")),
        "kubernetes_version": because("A minor version: AKS chooses the newest patch of it.", settings.version),
        "sku_tier": because(
            "The Free tier is meant for ten nodes at most: it throttles the API server early and has no SLA. Standard is billed per hour.",
            "Standard",
        ),
        "oidc_issuer_enabled": because(
            "The cluster signs tokens of ServiceAccounts so that Entra can check them; workload identity needs it.", True
        ),
        "workload_identity_enabled": because(
            "Pods get rights on Azure by the token of their ServiceAccount. There is no secret that could leak or expire.",
            True,
        ),
        "automatic_upgrade_channel": because(
            "AKS installs new patches of the minor version in the window below. A new minor version is a change of this file.", "patch"
        ),
        "node_os_upgrade_channel": because(
            "AKS brings new node images each week, with security fixes and the GPU driver that belongs to them. Nodes are replaced "
            "one after the other, in the window below.",
            "NodeImage",
        ),
        **_api_access(description),
        **_login(description),
        "identity": because(
            "AKS acts with an identity that Azure manages. A service principal would have a secret in the state of Terraform.",
            Nested({"type": "SystemAssigned"}),
        ),
        "node_provisioning_profile": because(
            "Node auto-provisioning, AKS's Karpenter, stays off: it would buy machines for the same pending pods as gpuscaler.",
            Nested({"mode": "Manual"}),
        ),
        "network_profile": Nested(
            {
                "network_plugin": because("Azure's own network plugin, which the settings below need.", "azure"),
                "network_plugin_mode": because(
                    "Pods have addresses of an overlay network, so the virtual network needs room for the nodes only.", "overlay"
                ),
                "network_data_plane": because("Cilium forwards the traffic of pods; its network policies need it.", "cilium"),
                "network_policy": because(
                    "Without a network policy engine, AKS accepts NetworkPolicies and ignores them, gpuscaler's own too.", "cilium"
                ),
            }
        ),
        "default_node_pool": because(
            "A system pool apart from all others: other pods cannot take the room of the cluster's DNS. gpuscaler leaves it alone.",
            Nested(_system_pool(description)),
        ),
        "maintenance_window_auto_upgrade": because(
            "Upgrades drain nodes, which ends long training runs. They come on Sundays from 02:00 UTC, when people can expect them.",
            Nested(_window()),
        ),
        "maintenance_window_node_os": because(
            "The same for node images. gpuscaler buys nothing in a pool while AKS upgrades it.", Nested(_window())
        ),
    }


def _api_access(description: Description) -> dict[str, Tree]:
    allowed = description.cluster.api_access
    if not allowed or ANYWHERE in allowed:
        return {}
    why = "Only these addresses reach the API server. AKS adds the one by which the nodes leave their network."
    return {"api_server_access_profile": because(why, Nested({"authorized_ip_ranges": list(allowed)}))}


def _login(description: Description) -> dict[str, Tree]:
    if not has_groups(description):
        return {}
    why = (
        "People log in with Microsoft Entra ID, whose groups the RoleBindings of the teams name by their object ids. Without it, everyone "
        "who may fetch credentials gets the same local administrator. Kubernetes' own RBAC decides what they may do."
    )
    return {"azure_active_directory_role_based_access_control": because(why, Nested({"azure_rbac_enabled": False}))}


def _window() -> dict[str, Tree]:
    return {
        "frequency": "Weekly",
        "interval": 1,
        "day_of_week": "Sunday",
        "start_time": "02:00",
        "utc_offset": "+00:00",
        "duration": 8,
    }


def _system_pool(description: Description) -> dict[str, Tree]:
    among = zones(description)
    return {
        "name": SYSTEM_POOL,
        "vm_size": because("AKS's own pods, such as CoreDNS, need no GPUs.", description.general_types[0]),
        "auto_scaling_enabled": because("Its load does not grow with the GPU pools.", False),
        "node_count": because(
            "Two at least, or one in each zone, so that the loss of a machine does not stop DNS. A system pool may not go to zero.",
            max(2, len(among)),
        ),
        **({"zones": because("One zone may fail, and the rest goes on.", among)} if among else {}),
        "only_critical_addons_enabled": because("The taint CriticalAddonsOnly keeps all other pods off this pool.", True),
        "os_sku": "Ubuntu",
        "os_disk_size_gb": _general_disk(description),
        "max_pods": because(WHY_PODS, MAX_PODS),
        "node_public_ip_enabled": because(_why_address(description), not description.cluster.private),
        "temporary_name_for_rotation": because(
            "Lets Terraform change the size or disk of this pool by way of a second one, instead of making a new cluster.",
            "systemtmp",
        ),
        "upgrade_settings": because("A tenth of the nodes, at least one, is added during an upgrade.", Nested({"max_surge": "10%"})),
    }


def _why_address(description: Description) -> str:
    if description.cluster.private:
        return "Nodes have private addresses only. They reach the internet by an address of the cluster."
    return "Nodes have public addresses, as the description says."


def _general_disk(description: Description) -> int:
    return -(-description.general.disk // 2**30)


def _general_pool(description: Description, name: str, type_: str) -> dict[str, Tree]:
    among = zones(description)
    body: dict[str, Any] = {
        "name": name,
        "kubernetes_cluster_id": Expression(f"{cluster(description)}.id"),
        "orchestrator_version": because(
            "The version of the cluster, so that its pools follow it.", Expression(f"{cluster(description)}.kubernetes_version")
        ),
        "vm_size": type_,
        "mode": because("A pool of mode System would attract AKS's own pods.", "User"),
        "auto_scaling_enabled": because(
            "AKS's autoscaler is switched on pool by pool. It scales this one, and gpuscaler scales those with GPUs.",
            True,
        ),
        "min_count": description.general.min,
        "max_count": description.general.max,
        **({"zones": because("One zone may fail, and the rest goes on.", among)} if among else {}),
        "os_sku": "Ubuntu",
        "os_disk_size_gb": _general_disk(description),
        "max_pods": because(WHY_PODS, MAX_PODS),
        "node_public_ip_enabled": because(_why_address(description), not description.cluster.private),
        "upgrade_settings": because("A tenth of the nodes, at least one, is added during an upgrade.", Nested({"max_surge": "10%"})),
        "lifecycle": because(
            "The autoscaler changes the number of nodes; Terraform would set it back.",
            Nested({"ignore_changes": [Expression("node_count")]}),
        ),
    }
    return body
