import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuscaler.cli.generate import generate
from gpuscaler.clouds.azure.api import rights
from gpuscaler.clouds.azure.api.errors import failure_of
from gpuscaler.clouds.azure.api.rights import CLUSTER, NODES, RIGHTS, SUBNET, SUBSCRIPTION, describe_denial, right_of

ID = "aaaaaaaa-0000-0000-0000-000000000000"
WHOLE = f"/subscriptions/{ID}"
NODE_GROUP = "MC_rg_prod_eastus"
CLUSTER_ID = f"{WHOLE}/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/prod"
SUBNET_ID = f"{WHOLE}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main/subnets/nodes"
ISSUER = "https://eastus.oic.prod-aks.azure.com/tenant/cluster/"
AKS = ("--subscription", ID.upper(), "--cluster", "prod", "--resource-group", "rg", "--node-resource-group", NODE_GROUP)


def document(*options: str) -> dict[str, Any]:
    done = CliRunner().invoke(generate, ["azure-role", *options])
    assert done.exit_code == 0, done.output
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def allowed(*options: str) -> dict[str, set[str]]:
    """The actions that the roles allow, by the scope at which they are assigned."""
    made = document(*options)
    actions = {role["Name"]: set(role["Actions"]) for role in made["roles"]}
    return {assignment["scope"]: actions[assignment["role"]] for assignment in made["assignments"]}


def test_what_changes_machines_is_allowed_only_in_the_node_resource_group_and_on_the_cluster() -> None:
    made = allowed(*AKS)

    assert set(made) == {f"{WHOLE}/resourceGroups/{NODE_GROUP}", CLUSTER_ID, WHOLE}
    assert "Microsoft.Compute/virtualMachineScaleSets/write" in made[f"{WHOLE}/resourceGroups/{NODE_GROUP}"]
    assert "Microsoft.ContainerService/managedClusters/agentPools/write" in made[CLUSTER_ID]
    changing = {action for action in made[WHOLE] if not action.endswith("/read")}
    assert changing == {"Microsoft.Compute/capacityReservationGroups/deploy/action"}


def test_every_right_is_granted_where_it_is_needed() -> None:
    made = allowed(*AKS, "--subnet", SUBNET_ID)
    places = {NODES: f"{WHOLE}/resourceGroups/{NODE_GROUP}", CLUSTER: CLUSTER_ID, SUBSCRIPTION: WHOLE, SUBNET: SUBNET_ID}

    for right in RIGHTS:
        for scope in right.scopes:
            assert right.action in made[places[scope]], right


def test_no_action_has_a_wildcard_and_nothing_is_allowed_that_deletes_groups_or_grants_rights() -> None:
    actions = {right.action for right in RIGHTS}

    assert not any("*" in action for action in actions)
    assert not any(action.endswith("/delete") or "Microsoft.Authorization" in action for action in actions)
    assert len(actions) == len(RIGHTS)


def test_every_permission_of_the_roles_is_used_by_a_call() -> None:
    source = "".join(file.read_text() for file in Path(rights.__file__).parents[1].rglob("*.py") if file.name != "rights.py").lower()
    # What a write of an agent pool needs on what it refers to; the URLs of operations come from Azure.
    elsewhere = ("deploy/action", "subnets/join/action", "operations/read", "operationresults/read", "instanceview/read")
    used = [right.action for right in RIGHTS if not right.action.endswith(elsewhere)]

    words = {action: action.lower().removesuffix("/action").rpartition("/")[0].rpartition("/")[2] for action in used}
    assert [action for action, word in words.items() if word not in source] == []


def test_roles_can_be_assigned_only_in_the_groups_that_they_are_for() -> None:
    made = document(*AKS, "--subnet", SUBNET_ID)

    assert {role["Name"]: role["AssignableScopes"] for role in made["roles"]} == {
        "gpuscaler prod in rg": [f"{WHOLE}/resourceGroups/{NODE_GROUP}", f"{WHOLE}/resourceGroups/rg"],
        "gpuscaler prod in rg subscription": [WHOLE],
        "gpuscaler prod in rg subnets": [f"{WHOLE}/resourceGroups/net"],
    }
    assert all(role["IsCustom"] and role["DataActions"] == [] for role in made["roles"])


def test_read_only_roles_allow_no_change() -> None:
    made = allowed(*AKS, "--read-only", "--subnet", SUBNET_ID)

    assert {action.rpartition("/")[2] for actions in made.values() for action in actions} == {"read"}
    assert SUBNET_ID not in made
    assert {role["Name"] for role in document(*AKS, "--read-only")["roles"]} == {
        "gpuscaler prod in rg read-only",
        "gpuscaler prod in rg read-only subscription",
    }


def test_without_aks_nothing_of_clusters_is_allowed_in_resource_groups() -> None:
    made = allowed("--subscription", ID, "--node-resource-group", "a", "--node-resource-group", "b")

    assert set(made) == {f"{WHOLE}/resourceGroups/a", f"{WHOLE}/resourceGroups/b", WHOLE}
    assert not any("managedClusters" in action for actions in made.values() for action in actions)


def test_an_unknown_node_resource_group_is_named_as_aks_names_it_with_advice() -> None:
    done = CliRunner().invoke(generate, ["azure-role", *AKS[:-2]])

    scopes = [assignment["scope"] for assignment in json.loads(done.stdout)["assignments"]]
    assert scopes[0].endswith("/resourceGroups/MC_rg_prod_LOCATION")
    assert "az aks show --name prod --resource-group rg --query nodeResourceGroup" in done.stderr


def test_the_federated_credential_is_for_the_service_account_of_the_chart() -> None:
    assert "federatedCredential" not in document(*AKS)
    assert document(*AKS, "--issuer", ISSUER)["federatedCredential"] == {
        "name": "gpuscaler-gpuscaler-controller",
        "issuer": ISSUER,
        "subject": "system:serviceaccount:gpuscaler:gpuscaler-controller",
        "audiences": ["api://AzureADTokenExchange"],
    }
    other = document(*AKS, "--issuer", ISSUER, "--namespace", "ml", "--service-account", "scaler")["federatedCredential"]
    assert other["subject"] == "system:serviceaccount:ml:scaler"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--subscription", "*", "--node-resource-group", "a"], "expected the id of a subscription"),
        (["--subscription", ID], "saw neither --cluster nor --node-resource-group"),
        (["--subscription", ID, "--node-resource-group", "*"], "expected the name of a resource group"),
        (["--subscription", ID, "--node-resource-group", "a/providers/b"], "expected the name of a resource group"),
        (["--subscription", ID, "--node-resource-group", "a", "--cluster", "prod"], "expected both"),
        (["--subscription", ID, "--node-resource-group", "a", "--resource-group", "rg"], "expected both"),
        ([*AKS, "--cluster", "a/b"], "expected letters, digits"),
        ([*AKS, "--resource-group", "rg."], "expected the name of a resource group"),
        ([*AKS, "--subnet", "nodes"], "expected the id of a subnet"),
        ([*AKS, "--subnet", SUBNET_ID.replace("nodes", "*")], "expected the id of a subnet"),
        ([*AKS, "--issuer", "http://eastus.oic.prod-aks.azure.com"], "expected a URL such as https"),
        ([*AKS, "--issuer", ISSUER, "--namespace", "a:b"], "expected the name of a namespace"),
        ([*AKS, "--issuer", ISSUER, "--service-account", "*"], "expected the name of a ServiceAccount"),
    ],
)
def test_input_that_would_add_permissions_to_the_roles_is_refused(options: list[str], says: str) -> None:
    done = CliRunner().invoke(generate, ["azure-role", *options])

    assert done.exit_code == 2
    assert says in done.output


WRITE = "Microsoft.Compute/virtualMachineScaleSets/write"
SCALE_SET = f"{WHOLE}/resourceGroups/{NODE_GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/aks-gpu-12345678-vmss"
CLIENT = "The client 'c' with object id 'o'"


def denial(code: str, message: str) -> str:
    return describe_denial(failure_of(403, {"error": {"code": code, "message": message}}))


def test_a_missing_right_is_named_with_its_action_scope_and_purpose() -> None:
    text = f"{CLIENT} does not have authorization to perform action '{WRITE}' over scope '{SCALE_SET}' or the scope is invalid."

    assert denial("AuthorizationFailed", text) == (
        f"Azure does not allow {WRITE}; add it to the role (gpuscaler generate azure-role prints one) at {SCALE_SET.removeprefix(WHOLE)}, "
        "to buy machines: it sets the capacity of scale sets"
    )


def test_of_a_linked_scope_the_right_that_is_missing_is_named() -> None:
    join = "Microsoft.Network/virtualNetworks/subnets/join/action"
    text = (
        f"{CLIENT} has permission to perform action 'Microsoft.ContainerService/managedClusters/agentPools/write' on scope '{CLUSTER_ID}'; "
        f"however, it does not have permission to perform action '{join}' on the linked scope(s) '{SUBNET_ID}' or the linked scope(s) are "
        "invalid."
    )

    said = denial("LinkedAuthorizationFailed", text)
    assert said.startswith(f"Azure does not allow {join}; add it to the role")
    assert f" at {SUBNET_ID.removeprefix(WHOLE)}, to change agent pools" in said


def test_a_locked_node_resource_group_is_not_described_as_a_missing_right() -> None:
    text = (
        f"{CLIENT} has permission to perform action '{WRITE}' on scope '{SCALE_SET}'; however, the access is denied because of the deny "
        "assignment with name 'kubernetes.azure.com/x: node resource group deny assignment created by Azure Kubernetes Services for "
        f"nrg-lockdown' and Id '1' at scope '{WHOLE}/resourcegroups/{NODE_GROUP}'."
    )

    assert denial("DenyAssignmentAuthorizationFailed", text).startswith(f"Azure does not allow {WRITE}: a deny assignment")


@pytest.mark.parametrize("text", ["", "The client has no access", "perform action '", "perform action 'x' over scope '"])
def test_a_denial_that_names_no_action_or_scope_is_described_as_far_as_it_goes(text: str) -> None:
    short = "Azure does not allow x; add it to the role (gpuscaler generate azure-role prints one)"

    assert denial("AuthorizationFailed", text) in ("", short)


def test_every_right_is_in_the_reference_and_no_other() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "azure.md").read_text()
    section = page.split("## Rights\n")[1].split("\n## ")[0]

    assert set(re.findall(r"`(Microsoft\.[\w./]+)`", section)) == {right.action for right in RIGHTS}


def test_rights_are_found_in_any_case() -> None:
    found = right_of(WRITE.upper())

    assert found is not None
    assert found.action == WRITE
    assert right_of("Microsoft.Compute/disks/write") is None
