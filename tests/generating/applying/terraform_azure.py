"""What `terraform apply` with the provider of Azure makes in a simulated account: Terraform's own program plans, and each resource is made.

Identifiers that Azure gives out are known while Terraform plans, so that references between resources are resolved by Terraform itself.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.control.azure_stage import Stage
from tests.embedded.azure.memory import URL, MemoryHttp
from tests.generating.terraform.azurerm import table
from tests.generating.terraform.running import plan, written
from tests.generating.terraform.stand_in import Answers

from gpuscaler.clouds.azure.api.arm import CONTAINERSERVICE, Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.api.ids import agent_pool_path, cluster_path, group_path
from gpuscaler.embedded.azure import SUBSCRIPTION
from gpuscaler.embedded.azure.compute.governing import put_document
from gpuscaler.embedded.azure.state import SUCCEEDED, Cluster
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.resolved import Description
from gpuscaler.kube.resources import STORAGE_CLASSES

Values = Mapping[str, Any]
ISSUER: Final = "https://eastus.oic.prod-aks.azure.com/tenant/cluster/"
CLIENT_ID: Final = "87654321-1234-4234-8234-123456789abc"
_PRINCIPAL: Final = "87654321-0000-4234-8234-123456789abc"
#: What the provider calls a property of an agent pool, and Azure's name.
PROPERTIES: Final = {
    "vm_size": "vmSize",
    "mode": "mode",
    "priority": "scaleSetPriority",
    "eviction_policy": "scaleSetEvictionPolicy",
    "spot_max_price": "spotMaxPrice",
    "zones": "availabilityZones",
    "auto_scaling_enabled": "enableAutoScaling",
    "node_count": "count",
    "min_count": "minCount",
    "max_count": "maxCount",
    "scale_down_mode": "scaleDownMode",
    "os_sku": "osSKU",
    "os_disk_size_gb": "osDiskSizeGB",
    "os_disk_type": "osDiskType",
    "max_pods": "maxPods",
    "node_public_ip_enabled": "enableNodePublicIP",
    "node_labels": "nodeLabels",
    "node_taints": "nodeTaints",
}


def properties(block: Values) -> dict[str, Any]:
    """The properties of the agent pool that the provider makes of a block."""
    found = {PROPERTIES[name]: value for name, value in block.items() if name in PROPERTIES and value is not None}
    if block.get("gpu_driver"):
        found["gpuProfile"] = {"driver": block["gpu_driver"]}
    if found.get("enableAutoScaling"):
        # AKS' own autoscaler begins with the least number.
        found.setdefault("count", found["minCount"])
    return found | {"osType": "Linux", "type": "VirtualMachineScaleSets"}


def planned(folder: Path, description: Description, aks: Cluster) -> dict[str, Any]:
    """The resources of the files, by address, if ``aks`` is the cluster that they create. Terraform runs in ``folder``."""
    files = [file for file in files_of(description) if file.path.endswith(".tf")]
    return plan(written(folder, files), table(), {"subscription_id": SUBSCRIPTION}, _identifiers(aks), examples=True)


def _identifiers(aks: Cluster) -> Answers:
    def answers(kind: str, values: Values) -> Values:
        name = str(values.get("name"))
        match kind:
            case "azurerm_resource_group":
                return {"id": group_path(SUBSCRIPTION, name)}
            case "azurerm_kubernetes_cluster":
                ident = cluster_path(SUBSCRIPTION, str(values["resource_group_name"]), name)
                nodes = group_path(SUBSCRIPTION, aks.node_group)
                return {"id": ident, "node_resource_group_id": nodes, "oidc_issuer_url": ISSUER}
            case "azurerm_user_assigned_identity":
                group = group_path(SUBSCRIPTION, str(values["resource_group_name"]))
                ident = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}"
                return {"id": ident, "client_id": CLIENT_ID, "principal_id": _PRINCIPAL}
            case "azurerm_role_definition":
                roles = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions"
                return {"role_definition_resource_id": f"{roles}/{name.replace(' ', '-')}"}
        return {}

    return answers


def arm_of(here: Stage) -> Arm:
    """A client for the stage's account, whose answers take no time."""
    http = MemoryHttp(here.endpoint)
    return Arm(FixedToken("token"), fence=lambda _seconds: None, now=here.now, sleep=asyncio.sleep, endpoint_url=URL, http=http)


async def apply(here: Stage, resources: Values) -> None:
    """Make the planned resources in the account of the stage, whose cluster must be the one that they create."""
    by_kind: dict[str, dict[str, Values]] = {}
    for address, values in resources.items():
        kind, _, label = address.partition(".")
        by_kind.setdefault(kind, {})[label] = values
    for group in by_kind.pop("azurerm_resource_group").values():
        assert group["name"] == here.aks.group
    (cluster,) = by_kind.pop("azurerm_kubernetes_cluster").values()
    await _apply_cluster(here, cluster, by_kind.pop("azurerm_kubernetes_cluster_node_pool").values())
    for identity in by_kind.pop("azurerm_user_assigned_identity").values():
        put_document(here.account, identity["id"], properties={"clientId": identity["client_id"], "principalId": identity["principal_id"]})
    for credential in by_kind.pop("azurerm_federated_identity_credential").values():
        ident = f"{credential['user_assigned_identity_id']}/federatedIdentityCredentials/{credential['name']}"
        kept = {"issuer": credential["issuer"], "subject": credential["subject"], "audiences": credential["audience"]}
        put_document(here.account, ident, properties=kept)
    _apply_roles(here, by_kind.pop("azurerm_role_definition"), by_kind.pop("azurerm_role_assignment"))
    # What has a resource and is made nowhere here.
    assert by_kind == {}


async def _create_storage_class(here: Stage) -> None:
    """The class of disks that AKS creates in every cluster (AKS' page "Storage classes for Azure Disk", read 2026-11-26)."""
    metadata = {"name": "managed-csi"}
    fields = {"provisioner": "disk.csi.azure.com", "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"}
    await here.user.create(STORAGE_CLASSES, {"metadata": metadata, "allowVolumeExpansion": True, **fields})


async def _apply_cluster(here: Stage, cluster: Values, pools: Any) -> None:
    assert (cluster["name"], cluster["resource_group_name"], cluster["location"]) == (here.aks.name, here.aks.group, here.aks.location)
    (provisioning,), (default,) = cluster["node_provisioning_profile"], cluster["default_node_pool"]
    here.aks.settings |= {
        "kubernetesVersion": cluster["kubernetes_version"],
        "oidcIssuerProfile": {"enabled": cluster["oidc_issuer_enabled"], "issuerURL": ISSUER},
        "securityProfile": {"workloadIdentity": {"enabled": cluster["workload_identity_enabled"]}},
        "nodeProvisioningProfile": {"mode": provisioning["mode"]},
    }
    system = properties(default) | {"mode": "System"}
    if default["only_critical_addons_enabled"]:
        system["nodeTaints"] = ["CriticalAddonsOnly=true:NoSchedule"]
    arm = arm_of(here)
    try:
        for name, wanted in [(default["name"], system), *((pool["name"], properties(pool)) for pool in pools)]:
            path = agent_pool_path(SUBSCRIPTION, here.aks.group, here.aks.name, name)
            await arm.write("PUT", path, version=CONTAINERSERVICE, body={"properties": wanted})
            # The provider follows each operation to its end: AKS does one at a time.
            await here.until(lambda: all(pool.state == SUCCEEDED for pool in here.aks.pools.values()))
    finally:
        await arm.close()
    await _create_storage_class(here)
    assert all(pool["kubernetes_cluster_id"] == here.aks.id for pool in pools)


def _apply_roles(here: Stage, roles: Mapping[str, Values], assignments: Mapping[str, Values]) -> None:
    for role in roles.values():
        permissions = [
            {"actions": permission["actions"], "notActions": permission["not_actions"] or []} for permission in role["permissions"]
        ]
        described = {"roleName": role["name"], "type": "CustomRole", "description": role["description"], "permissions": permissions}
        scopes = role["assignable_scopes"]
        put_document(here.account, role["role_definition_resource_id"], properties={**described, "assignableScopes": scopes})
    for label, given in assignments.items():
        kept = {"principalId": given["principal_id"], "roleDefinitionId": given["role_definition_id"], "scope": given["scope"]}
        put_document(here.account, f"{given['scope']}/providers/Microsoft.Authorization/roleAssignments/{label}", properties=kept)
