"""The Terraform files of AKS, evaluated by Terraform itself with a stand-in for the provider."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.generating.terraform.running import TerraformError, needs_terraform, plan, validate, written
from tests.generating.terraform.stand_in import Table, load
from tests.generating.test_terraform_azure import ALL

from gpuscaler.generating.azure.terraform import azure_terraform_files


def table() -> Table:
    """The bindings of 4.55, the last there are, with what later versions have: providers/azurerm.yaml names the sources."""
    found = deepcopy(dict(load("azurerm")))
    types: Any = found["types"]
    types["azurerm"]["blocks"] = {"features": {"required": True, "many": False}}
    cluster, pool = types["azurerm_kubernetes_cluster"], types["azurerm_kubernetes_cluster_node_pool"]
    cluster["blocks"]["node_provisioning_profile"] = {
        "required": True,
        "many": False,
        "arguments": _optional("mode", "default_node_pools"),
    }
    for upgrades in (cluster["blocks"]["default_node_pool"]["blocks"]["upgrade_settings"], pool["blocks"]["upgrade_settings"]):
        upgrades["arguments"] |= _optional("max_surge", "max_unavailable", "undrainable_node_behavior")
    credential = types["azurerm_federated_identity_credential"]["arguments"]
    credential |= _optional("user_assigned_identity_id")
    for gone in ("parent_id", "resource_group_name"):
        del credential[gone]
    return found


def _optional(*names: str) -> dict[str, Any]:
    return {name: {"required": False, "type": "string"} for name in names}


def answers(kind: str, _config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"node_resource_group": "MC_x"} if kind == "azurerm_kubernetes_cluster" else {}


@needs_terraform
@pytest.mark.parametrize("name", ALL)
def test_terraform_accepts_the_files(tmp_path: Path, name: str) -> None:
    validate(written(tmp_path, azure_terraform_files(ALL[name])), table())


@needs_terraform
@pytest.mark.parametrize("name", ALL)
def test_a_plan_has_every_pool(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path, azure_terraform_files(ALL[name]), explain=True)
    planned = plan(folder, table(), {"subscription_id": "0b1f6471-1bf0-4dda-aec3-111122223333"}, answers, examples=True)
    pools = {values["name"]: values for address, values in planned.items() if "_node_pool." in address}
    for group in ALL[name].groups:
        values = pools[group.name]
        assert (values["vm_size"], values["priority"]) == (group.instance_type.name, {"spot": "Spot", "on-demand": "Regular"}[group.market])
        assert values["zones"] == ([group.zone] if group.zone else None)


@needs_terraform
def test_terraform_refuses_what_the_provider_does_not_know(tmp_path: Path) -> None:
    folder = written(tmp_path, azure_terraform_files(ALL["s2-azure"]))
    for path in folder.glob("*.tf"):
        path.write_text(path.read_text().replace("vm_size", "machine_size"))
    with pytest.raises(TerraformError, match='An argument named "machine_size" is not expected here'):
        validate(folder, table())
