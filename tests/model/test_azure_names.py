"""Names of one machine of Azure, as nodes, lists and scheduled events write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.model.azure_names import (
    MachineName,
    base_36,
    canonical_provider_id,
    event_resource,
    fold_id,
    machine_name,
    node_name,
    pool_in_name,
)


@pytest.mark.parametrize(
    ("node", "resource"),
    [
        ("aks-gpu-12345678-vmss00000a", "aks-gpu-12345678-vmss_10"),
        ("aks-gpu-12345678-vmss000046", "aks-gpu-12345678-vmss_150"),
        ("aks-gpu-12345678-vms0", "aks-gpu-12345678-vms0"),
        ("aks-gpu-12345678-vmss_3d81a2f4", "aks-gpu-12345678-vmss_3d81a2f4"),
    ],
)
def test_a_node_is_listed_by_its_number_in_base_ten(node: str, resource: str) -> None:
    assert event_resource(node) == resource
    assert node_name(resource) == node


@given(st.integers(min_value=0, max_value=36**6 - 1))
def test_every_instance_id_of_six_digits_is_found_again(number: int) -> None:
    node = f"aks-gpu-12345678-vmss{base_36(number).rjust(6, '0')}"
    assert event_resource(node) == f"aks-gpu-12345678-vmss_{number}"
    assert node_name(event_resource(node)) == node


def test_provider_ids_are_read_in_any_case() -> None:
    text = "azure:///subscriptions/S/resourceGroups/mc_rg/providers/Microsoft.Compute/virtualMachineScaleSets/aks-gpu-12345678-vmss/virtualMachines/7"
    assert machine_name(text) == MachineName("S", "mc_rg", "aks-gpu-12345678-vmss", "7")
    lower = machine_name(text.lower())
    assert lower is not None
    assert lower.name == "7"
    assert fold_id(text) == fold_id(text.upper())
    single = "azure:///subscriptions/S/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/aks-gpu-12345678-vms0"
    assert machine_name(single) == MachineName("S", "rg", "", "aks-gpu-12345678-vms0")


@pytest.mark.parametrize(
    "text", ["", "aws:///us-east-1a/i-0abc", "azure://", "azure:///subscriptions/S/resourceGroups/rg", "azure:///a/b/c/d"]
)
def test_other_provider_ids_are_no_machines_of_azure(text: str) -> None:
    assert machine_name(text) is None


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("aks-gpu-12345678-vmss", "gpu"),
        ("aks-gpu-12345678-vmss00000a", "gpu"),
        ("k8s-agentpool2-12345678-0", "agentpool2"),
        ("k8s-agentpool2-1234abcd-vmss", "agentpool2"),
        ("gke-pool-12345678-x", ""),
        ("aks-gpu", ""),
    ],
)
def test_the_pool_is_read_from_names_of_aks_and_its_ancestors(name: str, pool: str) -> None:
    assert pool_in_name(name) == pool


def test_nodes_and_lists_agree_on_a_machine_however_azure_spells_it() -> None:
    listed = "azure:///subscriptions/S/resourceGroups/MC_rg/providers/Microsoft.Compute/virtualMachineScaleSets/a-vmss/virtualMachines/7"
    assert canonical_provider_id(listed) == canonical_provider_id(listed.replace("MC_rg", "mc_rg"))
    assert canonical_provider_id("aws:///us-east-1a/i-0Abc") == "aws:///us-east-1a/i-0Abc"
