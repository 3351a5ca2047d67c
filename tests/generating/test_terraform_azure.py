"""The Terraform files of AKS: what each pool gets, gpuscaler's roles, and whether the provider knows all of it."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import pytest
from tests.generating.corpus import description as scene
from tests.generating.terraform.azurerm import table
from tests.generating.terraform.running import TerraformError, needs_terraform, plan, validate, written

from gpuscaler.cli.generate import azure_role
from gpuscaler.clouds.azure.api.rights import custom_roles, federated_credential
from gpuscaler.clouds.azure.templates.node_templates import taint_of
from gpuscaler.generating.azure.names import CLIENT_ID_OUTPUT
from gpuscaler.generating.azure.terraform import PROVIDER_VERSIONS, azure_terraform_files
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description

TABLE = table()
WIDE = """
cloud: azure
cluster: {name: Research-1, region: westeurope, zones: ["1", "2", "3"], subscription: 0B1F6471-1BF0-4DDA-AEC3-111122223333,
  api_access: [203.0.113.7/32, 198.51.100.0/24]}
controller: {namespace: scaling}
teams: [{name: vision, group: 9f3c1e52-7c7b-4a44-8d1f-111122223333}]
general: {types: [Standard_D8s_v5, Standard_E8s_v5], min: 3, max: 9}
gpu_pools:
- {name: train-large, gpus: 1, gpu_memory: 24G, min: 2, max: 8, labels: {team: "vision", "odd.example.com/key": "x.y"}}
- name: amd
  types: [Standard_ND96isr_MI300X_v5]
  markets: [on-demand]
  zones: ["2"]
  teams: [vision]
  taints: [{key: amd.com/gpu, effect: NoSchedule}]
- {name: confidential, types: [Standard_NCC40ads_H100_v5], markets: [on-demand], taints: [{key: gpuscaler.io/arriving, effect: NoSchedule}]}
"""
EXISTING = """
cloud: azure
cluster: {name: prod, region: eastus, create: false, private: false, resource_group: Prod_RG}
gpu_pools:
- {name: gpu, types: [Standard_NC4as_T4_v3]}
"""


def descriptions() -> dict[str, Description]:
    return {"s2-azure": scene("s2-azure"), "wide": read_description(WIDE), "existing": read_description(EXISTING)}


ALL = descriptions()


@cache
def blocks(name: str, *, explain: bool = False) -> dict[tuple[str, ...], dict[str, Any]]:
    """All blocks of a description's files by kind and labels, strings without their quotes."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for file in azure_terraform_files(ALL[name]):
        for kind, entries in plain(hcl2.loads(file.text(explain=explain))).items():
            for entry in entries:
                depth = {"resource": 2, "data": 2, "terraform": 0}.get(kind, 1)
                for labels, body in labelled(entry, depth):
                    assert (kind, *labels) not in found
                    found[kind, *labels] = body
    return found


def plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            plain(key): plain(value) for key, value in tree.items() if key not in {"__is_block__", "__comments__", "__inline_comments__"}
        }
    if isinstance(tree, list):
        return [plain(value) for value in tree]
    return tree[1:-1] if isinstance(tree, str) and tree[:1] == tree[-1:] == '"' else tree


def labelled(entry: dict[str, Any], depth: int) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if not depth:
        yield (), entry
        return
    for label, inner in entry.items():
        for labels, body in labelled(inner, depth - 1):
            yield (label, *labels), body


def pools(name: str) -> dict[str, dict[str, Any]]:
    """The GPU pools by name."""
    found = {labels[2]: body for labels, body in blocks(name).items() if labels[:2] == ("resource", "azurerm_kubernetes_cluster_node_pool")}
    return {name: body for name, body in found.items() if not name.startswith("general")}


def problems(body: dict[str, Any], known: Mapping[str, Any], where: str) -> Iterator[str]:
    arguments, nested = known.get("arguments", {}), known.get("blocks", {})
    for name, entry in {**arguments, **nested}.items():
        if entry["required"] and name not in body:
            yield f"{where}: {name} is missing"
    for name, value in body.items():
        if name in nested:
            for inner in value:
                yield from problems(inner, nested[name], f"{where}.{name}")
        elif name not in arguments and not (name == "lifecycle" and "." in where):
            yield f"{where}: {name} is unknown"


def known(kind: str, label: str) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = TABLE["types"][f"data.{label}" if kind == "data" else label]
    return entry


@pytest.mark.parametrize("name", ALL)
def test_the_provider_knows_every_argument(name: str) -> None:
    found = [
        problem
        for (kind, *labels), body in blocks(name).items()
        if kind in {"resource", "data", "provider"}
        for problem in problems(body, known(kind, labels[0]), ".".join(labels))
    ]
    assert found == []


def test_the_table_finds_a_misspelt_and_a_missing_argument() -> None:
    body = {"name": "gpu", "vm_size": "x", "upgrade_settings": [{"maxsurge": 1}], "enable_auto_scaling": False}
    assert list(problems(body, known("resource", "azurerm_kubernetes_cluster_node_pool"), "a.b")) == [
        "a.b: kubernetes_cluster_id is missing",
        "a.b.upgrade_settings: maxsurge is unknown",
        "a.b: enable_auto_scaling is unknown",
    ]


@needs_terraform
@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_terraform_validates_the_files(name: str, explain: bool, tmp_path: Path) -> None:
    validate(written(tmp_path, azure_terraform_files(ALL[name]), explain=explain), TABLE)


@needs_terraform
@pytest.mark.parametrize("name", ALL)
def test_terraform_plans_what_the_files_say(name: str, tmp_path: Path) -> None:
    cluster = {"id": "CLUSTER", "node_resource_group_id": "NODES", "oidc_issuer_url": "https://issuer"}
    folder = written(tmp_path, azure_terraform_files(ALL[name]))
    planned = plan(folder, TABLE, {"subscription_id": "S"}, lambda _kind, _config: cluster)
    assert {address for address in planned if address.startswith("azurerm_")} == {
        ".".join(labels) for kind, *labels in blocks(name) if kind == "resource"
    }
    for group in ALL[name].groups:
        pool = planned[f"azurerm_kubernetes_cluster_node_pool.{group.name}"]
        assert (pool["name"], pool["zones"], pool["node_count"]) == (group.name, [group.zone] if group.zone else None, 0)
        assert {
            key: value for key, value in (pool["node_labels"] or {}).items() if not key.startswith("kubernetes.azure.com/")
        } == group.labels
    assert planned["azurerm_role_assignment.gpuscaler_subscription"]["scope"] == "/subscriptions/S"


@needs_terraform
def test_terraform_finds_what_the_provider_does_not_know(tmp_path: Path) -> None:
    folder = written(tmp_path, azure_terraform_files(ALL["existing"]))
    file = folder / "gpu-pools.tf"
    file.write_text(file.read_text().replace("auto_scaling_enabled", "enable_auto_scaling"))
    with pytest.raises(TerraformError, match="Unsupported argument"):
        validate(folder, TABLE)


def references(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for value in tree.values():
            yield from references(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from references(value)
    elif isinstance(tree, str):
        for expression in re.findall(r"(?<!\$)\$\{([^}]*)\}", tree):
            yield expression.strip('"')


@pytest.mark.parametrize("name", ALL)
def test_every_reference_names_something_that_exists(name: str) -> None:
    found = blocks(name)
    seen = set()
    for body in found.values():
        for text in references(body):
            for expression in re.findall(r"\$\{([^}]*)\}", text) or [text]:
                parts = expression.split(".")
                seen.add(expression)
                if parts[0] == "var":
                    assert ("variable", parts[1]) in found
                    continue
                kind, labels, attribute = ("data", parts[1:3], parts[3]) if parts[0] == "data" else ("resource", parts[:2], parts[2])
                assert (kind, *labels) in found, expression
                entry = known(kind, labels[0])
                assert attribute in {*entry["arguments"], *entry.get("attributes", {})}, expression
    assert len(seen) >= 6


@pytest.mark.parametrize("name", ALL)
def test_a_pool_for_each_group_with_one_size_one_market_and_one_zone(name: str) -> None:
    description = ALL[name]
    found = pools(name)
    assert list(found) == [group.name for group in description.groups]
    for group in description.groups:
        pool = found[group.name]
        assert re.fullmatch("[a-z][a-z0-9]{0,11}", pool["name"])
        assert pool["name"] == group.name
        assert pool["vm_size"] == group.instance_type.name
        assert pool.get("zones", []) == ([group.zone] if group.zone else [])
        assert pool["os_disk_size_gb"] == group.disk_gib


@pytest.mark.parametrize("name", ALL)
def test_nothing_but_gpuscaler_scales_gpu_pools(name: str) -> None:
    found = blocks(name)
    for pool in pools(name).values():
        assert pool["auto_scaling_enabled"] is False
        assert not {"min_count", "max_count"} & set(pool)
        assert pool["node_count"] == 0
        assert pool["lifecycle"] == [{"ignore_changes": ["node_count"]}]
        assert pool["scale_down_mode"] == "Delete"
        assert pool["mode"] == "User"
    if ("resource", "azurerm_kubernetes_cluster", "cluster") in found:
        assert found["resource", "azurerm_kubernetes_cluster", "cluster"]["node_provisioning_profile"] == [{"mode": "Manual"}]


@pytest.mark.parametrize("name", ALL)
def test_spot_pools_delete_evicted_machines_and_take_any_price(name: str) -> None:
    description = ALL[name]
    found = pools(name)
    for group in description.groups:
        pool = found[group.name]
        taints = pool.get("node_taints", [])
        if group.market == "spot":
            assert (pool["priority"], pool["eviction_policy"], pool["spot_max_price"]) == ("Spot", "Delete", -1)
            assert pool["node_labels"]["kubernetes.azure.com/scalesetpriority"] == "spot"
            assert taints[-1] == "kubernetes.azure.com/scalesetpriority=spot:NoSchedule"
            # AKS: "Spot pools can't set max surge."
            assert "upgrade_settings" not in pool
        else:
            assert pool["priority"] == "Regular"
            assert not {"eviction_policy", "spot_max_price"} & set(pool)
            assert pool["upgrade_settings"] == [{"max_surge": "1"}]
        assert all(taint_of(text) is not None for text in taints)
        assert not [text for text in taints if text.startswith("gpuscaler.io/")]


def test_labels_and_taints_of_the_description_are_kept() -> None:
    pool = pools("wide")["tralar1spot1"]
    assert pool["node_labels"] == {"kubernetes.azure.com/scalesetpriority": "spot", "team": "vision", "odd.example.com/key": "x.y"}
    assert pool["node_taints"][0] == "nvidia.com/gpu=present:NoSchedule"
    assert pools("wide")["amdod2"]["node_taints"] == ["amd.com/gpu:NoSchedule", "gpu-pool=amd:NoSchedule"]
    assert "node_taints" not in pools("wide")["confidentod1"]


def test_aks_installs_the_driver_where_it_has_one() -> None:
    found = pools("wide")
    assert {name[:3]: pool["gpu_driver"] for name, pool in found.items()} == {"tra": "Install", "amd": "None", "con": "None"}


def test_only_named_addresses_reach_the_api_server() -> None:
    cluster = ("resource", "azurerm_kubernetes_cluster", "cluster")
    assert blocks("wide")[cluster]["api_server_access_profile"] == [{"authorized_ip_ranges": ["203.0.113.7/32", "198.51.100.0/24"]}]
    assert "api_server_access_profile" not in blocks("s2-azure")[cluster]
    open_to_all = next(file for file in azure_terraform_files(ALL["s2-azure"]) if file.path.endswith("/cluster.tf"))
    assert "open to the whole internet" in open_to_all.edit


def test_teams_with_groups_log_in_with_entra_so_that_the_groups_have_members() -> None:
    cluster = ("resource", "azurerm_kubernetes_cluster", "cluster")
    login = "azure_active_directory_role_based_access_control"
    assert blocks("wide")[cluster][login] == [{"azure_rbac_enabled": False}]
    assert login not in blocks("s2-azure")[cluster]
    commands = {name: list(azure_terraform_files(ALL[name]))[-1].apply for name in ("wide", "s2-azure")}
    assert commands["wide"].endswith("--admin")
    assert not commands["s2-azure"].endswith("--admin")


def test_the_system_pool_is_apart_and_never_empty() -> None:
    cluster = blocks("wide")["resource", "azurerm_kubernetes_cluster", "cluster"]
    [pool] = cluster["default_node_pool"]
    assert pool["only_critical_addons_enabled"] is True
    assert pool["auto_scaling_enabled"] is False
    assert (pool["node_count"], pool["zones"], pool["vm_size"]) == (3, ["1", "2", "3"], "Standard_D8s_v5")
    [pool] = blocks("s2-azure")["resource", "azurerm_kubernetes_cluster", "cluster"]["default_node_pool"]
    assert (pool["node_count"], pool["zones"]) == (2, ["1", "2"])
    assert (cluster["oidc_issuer_enabled"], cluster["workload_identity_enabled"]) == (True, True)
    assert cluster["network_profile"][0]["network_policy"] == "cilium"


def test_machines_without_gpus_are_scaled_by_aks() -> None:
    found = blocks("wide")
    general = [
        body
        for labels, body in found.items()
        if labels[:2] == ("resource", "azurerm_kubernetes_cluster_node_pool") and "general" in labels[2]
    ]
    assert [(pool["name"], pool["vm_size"], pool["min_count"], pool["max_count"]) for pool in general] == [
        ("general", "Standard_D8s_v5", 3, 9),
        ("general2", "Standard_E8s_v5", 3, 9),
    ]
    assert all(pool["auto_scaling_enabled"] is True and "node_count" not in pool for pool in general)


def test_an_existing_cluster_is_only_read() -> None:
    found = blocks("existing")
    assert ("data", "azurerm_kubernetes_cluster", "cluster") in found
    assert not [
        labels
        for labels in found
        if labels[1:2] in {("azurerm_kubernetes_cluster",), ("azurerm_resource_group",)} and labels[0] == "resource"
    ]
    assert list(pools("existing")) == ["gpuspot", "gpuod"]
    assert all(pool["node_public_ip_enabled"] is True for pool in pools("existing").values())
    edits = " ".join(file.edit for file in azure_terraform_files(ALL["existing"]))
    assert "az aks update --resource-group Prod_RG --name prod --enable-oidc-issuer --enable-workload-identity" in edits


@pytest.mark.parametrize("name", ALL)
def test_roles_and_their_places_are_those_of_generate_azure_role(name: str) -> None:
    description = ALL[name]
    cluster, group = description.cluster.name, description.cluster.resource_group or f"{description.cluster.name}-rg"
    node = f"{'' if description.cluster.create else 'data.'}azurerm_kubernetes_cluster.cluster"
    places = {
        f"${{{node}.node_resource_group_id}}": "/subscriptions/S/resourceGroups/NODES",
        f"${{{node}.id}}": f"/subscriptions/S/resourceGroups/{group}/providers/Microsoft.ContainerService/managedClusters/{cluster}",
        "${azurerm_resource_group.cluster.id}": f"/subscriptions/S/resourceGroups/{group}",
        f"/subscriptions/${{var.subscription_id}}/resourceGroups/{group}": f"/subscriptions/S/resourceGroups/{group}",
        "/subscriptions/${var.subscription_id}": "/subscriptions/S",
    }
    wanted = custom_roles("S", cluster=cluster, cluster_group=group, node_groups=("NODES",))
    found = blocks(name)
    roles = {labels[2]: body for labels, body in found.items() if labels[:2] == ("resource", "azurerm_role_definition")}
    assert [
        (
            role["name"],
            role["description"],
            role["permissions"],
            [places[scope] for scope in role["assignable_scopes"]],
            places[role["scope"]],
        )
        for role in roles.values()
    ] == [
        (role["Name"], role["Description"], [{"actions": role["Actions"]}], role["AssignableScopes"], role["AssignableScopes"][0])
        for role in wanted["roles"]
    ]
    assignments = [body for labels, body in found.items() if labels[:2] == ("resource", "azurerm_role_assignment")]
    by_reference = {f"${{azurerm_role_definition.{label}.role_definition_resource_id}}": role["name"] for label, role in roles.items()}
    assert [{"role": by_reference[one["role_definition_id"]], "scope": places[one["scope"]]} for one in assignments] == wanted[
        "assignments"
    ]
    assert {one["principal_id"] for one in assignments} == {"${azurerm_user_assigned_identity.gpuscaler.principal_id}"}


@pytest.mark.parametrize("name", ALL)
def test_only_the_controllers_service_account_becomes_the_identity(name: str) -> None:
    description = ALL[name]
    credential = blocks(name)["resource", "azurerm_federated_identity_credential", "gpuscaler"]
    wanted = federated_credential("", description.controller.namespace, SERVICE_ACCOUNT)
    assert (credential["name"], credential["subject"], credential["audience"]) == (wanted["name"], wanted["subject"], wanted["audiences"])
    assert credential["issuer"].endswith("azurerm_kubernetes_cluster.cluster.oidc_issuer_url}")
    assert ("output", CLIENT_ID_OUTPUT) in blocks(name)


def test_the_service_account_is_that_of_the_chart_and_of_generate_azure_role() -> None:
    [option] = [option for option in azure_role.params if option.name == "service_account"]
    assert option.default == SERVICE_ACCOUNT
    credential = blocks("wide")["resource", "azurerm_federated_identity_credential", "gpuscaler"]
    assert credential["subject"] == "system:serviceaccount:scaling:gpuscaler-controller"


@pytest.mark.parametrize("name", ALL)
def test_no_file_has_a_secret(name: str) -> None:
    texts = "".join(file.text(explain=False) for file in azure_terraform_files(ALL[name]))
    assert not re.search("client_secret|service_principal \\{|password|kube_config", texts)


def test_the_subscription_is_a_variable() -> None:
    assert blocks("wide")["variable", "subscription_id"]["default"] == "0b1f6471-1bf0-4dda-aec3-111122223333"
    assert "default" not in blocks("existing")["variable", "subscription_id"]
    assert any("TF_VAR_subscription_id" in file.edit for file in azure_terraform_files(ALL["existing"]))
    assert blocks("wide")["terraform",]["required_providers"] == [
        {"azurerm": {"source": "hashicorp/azurerm", "version": PROVIDER_VERSIONS}}
    ]


def test_quotas_are_named_with_what_they_must_allow() -> None:
    [edit] = [file.edit for file in azure_terraform_files(ALL["s2-azure"]) if file.path.endswith("gpu-pools.tf")]
    assert "2,400 vCPUs of the family of Standard_NC24ads_A100_v4; 80 vCPUs of the family of Standard_NC4as_T4_v3" in edit
    assert "2,400 in Total Regional Low-priority vCPUs" in edit
    assert "az vm list-usage --location eastus" in edit


@pytest.mark.parametrize("name", ALL)
def test_reasons_change_nothing_and_cover_everything(name: str) -> None:
    assert blocks(name, explain=True) == blocks(name)
    assert [(file.path, file.gaps) for file in azure_terraform_files(ALL[name]) if file.gaps] == []


def test_other_clouds_get_none_of_these_files() -> None:
    assert list(azure_terraform_files(scene("s1-eksctl"))) == []
