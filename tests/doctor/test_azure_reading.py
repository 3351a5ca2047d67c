"""Azure subscriptions that the doctor may not read in full, those that tools make, and large ones."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.doctor.azure_accounts import CLIENT_ID, PRINCIPAL, SIZE, WHOLE, WORKERS, Ward, azure_ward
from tests.doctor.test_azure_broken import NOT_ALLOWED, OF_SETS, policy, service_account, workload_identity

from gpuscaler.doctor.findings import CRITICAL, WARNING, grouped
from gpuscaler.embedded.azure import Fault, making

COMPUTE, AUTHORIZATION = "*/providers/Microsoft.Compute", "*/providers/Microsoft.Authorization"
AKS = "*/providers/Microsoft.ContainerService/managedClusters/*"
IDENTITIES = "*/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
OF_POOLS = {"D1", "D3", "D5", "D6", "D15", "D16", "D17", "D19", "D20", "D22", "D25", "D47"}

#: Calls that are denied: the path, the action, and the checks that cannot be made without it.
RIGHTS = {
    "cluster": (AKS, "Microsoft.ContainerService/managedClusters/read", OF_POOLS | {"D27", "D28", "D29"}),
    "agent-pools": (f"{AKS}/agentPools", "Microsoft.ContainerService/managedClusters/agentPools/read", OF_POOLS),
    "scale-sets": (f"{COMPUTE}/virtualMachineScaleSets", "Microsoft.Compute/virtualMachineScaleSets/read", OF_POOLS),
    "scale-sets-of-one-group": (
        f"{WORKERS}/providers/Microsoft.Compute/virtualMachineScaleSets",
        "Microsoft.Compute/virtualMachineScaleSets/read",
        OF_POOLS,
    ),
    "machines": (f"{COMPUTE}/virtualMachines", "Microsoft.Compute/virtualMachines/read", {"D47"}),
    "sizes": (f"{COMPUTE}/skus", "Microsoft.Compute/skus/read", {"D16", "D17"}),
    "usages": (f"{COMPUTE}/locations/*/usages", "Microsoft.Compute/locations/usages/read", {"D17"}),
    "locks": (f"{AUTHORIZATION}/locks", "Microsoft.Authorization/locks/read", {"D47"}),
    "locks-of-the-subscription": (f"{WHOLE}/providers/Microsoft.Authorization/locks", "Microsoft.Authorization/locks/read", {"D47"}),
    "autoscale-settings": ("*/autoscalesettings", "Microsoft.Insights/autoscalesettings/read", {"D47"}),
    "policies": (f"{AUTHORIZATION}/policyAssignments", "Microsoft.Authorization/policyAssignments/read", {"D47"}),
    "definitions": (f"{AUTHORIZATION}/policyDefinitions/*", "Microsoft.Authorization/policyDefinitions/read", {"D47"}),
    "sets-of-definitions": (f"{AUTHORIZATION}/policySetDefinitions/*", "Microsoft.Authorization/policyDefinitions/read", {"D47"}),
    "identities": (IDENTITIES, "Microsoft.ManagedIdentity/userAssignedIdentities/read", {"D28"}),
    "role-assignments": (f"{AUTHORIZATION}/roleAssignments", "Microsoft.Authorization/roleAssignments/read", {"D29"}),
    "role-definitions": (f"{AUTHORIZATION}/roleDefinitions/0", "Microsoft.Authorization/roleDefinitions/read", {"D29"}),
    "credentials": (
        f"{IDENTITIES}/*/federatedIdentityCredentials",
        "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials/read",
        {"D28"},
    ),
}
#: Actions of gpuscaler itself, whose lack is a finding.
NEEDED = ("Microsoft.Compute/", "Microsoft.ContainerService/")


def full(ward: Ward) -> None:
    """A subscription in which there is something of every kind, and nothing is wrong."""
    workload_identity(service_account())(ward)
    policy({"allOf": [OF_SETS, {"field": "location", "notIn": ["eastus"]}]})(ward)


def deny(ward: Ward, path: str, action: str, *, named: bool = True) -> None:
    text = f"The client 'doctor' with object id 'o' does not have authorization to perform action '{action}' over scope '/subscriptions/s'"
    message = f"{text} or the scope is invalid." if named else "Access denied."
    fault = Fault(method="GET", path=path, code="AuthorizationFailed", message=message, status=403)
    ward.harness.endpoint.faults.all.append(fault)


@pytest.mark.parametrize("right", RIGHTS)
async def test_without_a_permission_its_checks_say_that_they_could_not_check(right: str) -> None:
    path, action, checks = RIGHTS[right]
    async with azure_ward() as ward:
        full(ward)
        report = await ward.look()
        assert not report.findings
        assert not report.unchecked

        deny(ward, path, action)
        report = await ward.look()

        assert {entry.check for entry in report.unchecked} >= checks
        for check in checks:
            assert any(action in entry.reason for entry in report.unchecked if entry.check == check)
        # What the caller may not do says nothing about gpuscaler's identity, whose rights are known.
        assert {finding.check for finding in report.findings} <= ({"D29"} if "D29" in checks else set())


@pytest.mark.parametrize("right", [name for name, (_, action, _) in RIGHTS.items() if action.startswith(NEEDED)])
async def test_a_denied_read_is_a_finding_if_the_rights_of_gpuscalers_identity_are_not_known(right: str) -> None:
    path, action, _ = RIGHTS[right]
    async with azure_ward() as ward:
        ward.objects = []
        deny(ward, path, action)
        report = await ward.look()

        (finding,) = report.findings
        assert (finding.check, finding.severity) == ("D29", WARNING)
        assert action in finding.seen
        assert "D29" in {entry.check for entry in report.unchecked}


async def test_a_denial_that_names_no_action_still_says_which_one_is_missing() -> None:
    async with azure_ward() as ward:
        deny(ward, f"{AUTHORIZATION}/locks", "", named=False)
        report = await ward.look()

        (entry,) = report.unchecked
        assert "no permission for Microsoft.Authorization/locks/read at /subscriptions/" in entry.reason


async def test_without_any_permission_nothing_counts_as_right() -> None:
    async with azure_ward() as ward:
        full(ward)
        deny(ward, "*", "", named=False)
        report = await ward.look()

        assert {finding.check for finding in report.findings} == {"D29"}
        assert {entry.check for entry in report.unchecked} >= OF_POOLS | {"D27", "D28"}


async def test_a_subscription_that_cannot_be_read_in_part_leaves_the_findings_of_the_rest() -> None:
    async with azure_ward() as ward:
        ward.own(properties={"overprovision": True})
        deny(ward, AKS, "Microsoft.ContainerService/managedClusters/read")
        report = await ward.look()

        assert ("D47", "ScaleSet workers/gpus") in {(finding.check, finding.object) for finding in report.findings}


async def test_an_answer_that_is_none_of_azures_is_said_and_breaks_nothing() -> None:
    async with azure_ward() as ward:
        ward.answer("*/agentpools", {"value": [{"name": "gpu", "properties": {"count": "many"}}, None, "x"]})
        report = await ward.look()

        assert not report.findings
        reasons = {entry.reason for entry in report.unchecked}
        assert any("expected a document as Azure's REST specification describes it" in reason for reason in reasons)
        assert not [reason for reason in reasons if "please report it" in reason]


def aks_defaults(ward: Ward) -> None:
    """As `az aks create --enable-cluster-autoscaler` makes system pools; the autoscaler may scale those."""
    ward.pool("system", "Standard_D4s_v5", count=3, mode="System", enableAutoScaling=True, minCount=1, maxCount=5)
    ward.pool("cpu", "Standard_D4s_v5", count=1, enableAutoScaling=True, minCount=1, maxCount=5)
    ward.cluster.settings["nodeProvisioningProfile"] = {"mode": "Manual"}
    ward.cluster.settings["servicePrincipalProfile"] = {"clientId": "msi"}
    ward.pool("gpu", "Standard_NC8as_T4_v3", zones=("1", "2", "3"), taints=("sku=gpu:NoSchedule",))


def kaito(ward: Ward) -> None:
    """As gpu-provisioner of KAITO makes pools, which it deletes itself."""
    ward.pool("ws1", SIZE, count=1, labels={"kaito.sh/workspace": "falcon"}, enableAutoScaling=True, minCount=1, maxCount=1)


def excluded(ward: Ward) -> None:
    ward.exclude = ("gpu*",)
    ward.pool("gpu", enableAutoScaling=True, minCount=0, maxCount=3, scaleDownMode="Deallocate")
    ward.own("gpus", properties={"overprovision": True})


def of_others(ward: Ward) -> None:
    """Scale sets of another cluster and of none, and an autoscale setting and locks of what is not ours."""
    ward.own("web", "Standard_D4s_v5", tags={}, properties={"overprovision": True})
    ward.own("prod", tags={"gpuscaler.io_cluster": "prod"}, properties={"overprovision": True})
    target = {"enabled": True, "targetResourceUri": f"{WORKERS}/providers/Microsoft.Compute/virtualMachineScaleSets/web"}
    ward.put(f"{WORKERS}/providers/Microsoft.Insights/autoscalesettings/web", properties=target)
    making.create_group(ward.account, "data")
    ward.put(f"{WHOLE}/resourceGroups/data/providers/Microsoft.Authorization/locks/keep", properties={"level": "CanNotDelete"})
    ward.put(f"{WHOLE}/resourceGroups/rg/providers/Microsoft.Authorization/locks/keep", properties={"level": "CanNotDelete"})
    disk = f"{WORKERS}/providers/Microsoft.Compute/disks/data"
    ward.put(f"{disk}/providers/Microsoft.Authorization/locks/keep", properties={"level": "CanNotDelete"})


def audits(ward: Ward) -> None:
    """Policies that only audit, are not enforced, or deny other things."""
    policy({"allOf": [OF_SETS, NOT_ALLOWED]}, effect="Audit")(ward)
    definition = f"{WHOLE}/providers/Microsoft.Authorization/policyDefinitions/storage"
    rule = {"allOf": [{"field": "type", "equals": "Microsoft.Storage/storageAccounts"}, {"field": "Microsoft.Storage/x", "equals": "y"}]}
    ward.put(definition, properties={"policyRule": {"if": rule, "then": {"effect": "deny"}}})
    ward.put(f"{WHOLE}/providers/Microsoft.Authorization/policyAssignments/storage", properties={"policyDefinitionId": definition})
    every = {"policyRule": {"if": {"field": "type", "like": "*"}, "then": {"effect": "deny"}}}
    ward.put(f"{WHOLE}/providers/Microsoft.Authorization/policyDefinitions/all", properties=every)
    off = {"policyDefinitionId": f"{WHOLE}/providers/Microsoft.Authorization/policyDefinitions/all", "enforcementMode": "DoNotEnforce"}
    ward.put(f"{WHOLE}/providers/Microsoft.Authorization/policyAssignments/off", properties=off)


@pytest.mark.parametrize("make", [aks_defaults, kaito, excluded, of_others, audits], ids=lambda make: make.__name__)
async def test_what_is_right_or_not_ours_has_no_finding(make: Callable[[Ward], Any]) -> None:
    async with azure_ward() as ward:
        make(ward)
        report = await ward.look()

        assert not report.findings
        assert not report.unchecked


async def test_a_lock_of_the_clusters_group_counts_where_pools_are_changed_through_the_cluster() -> None:
    async with azure_ward() as ward:
        ward.put(f"{WHOLE}/resourceGroups/rg/providers/Microsoft.Authorization/locks/keep", properties={"level": "ReadOnly"})
        assert not await ward.found()
        ward.api = "agentpool"
        assert await ward.found() == {("D47", "Lock rg/keep")}


async def test_a_role_of_azure_with_wildcards_at_the_subscription_allows_all() -> None:
    async with azure_ward() as ward:
        for ident in [ident for ident in ward.account.documents if "/roleassignments/" in ident]:
            del ward.account.documents[ident]
        assert {check for check, _ in await ward.found()} == {"D29"}

        role = f"{WHOLE}/providers/Microsoft.Authorization/roleDefinitions/b24988ac"
        permission = {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]}
        ward.put(role, properties={"roleName": "Contributor", "type": "BuiltInRole", "permissions": [permission]})
        assigned = {"principalId": PRINCIPAL, "roleDefinitionId": role, "scope": WHOLE}
        ward.put(f"{WHOLE}/providers/Microsoft.Authorization/roleAssignments/9", properties=assigned)
        assert not await ward.found()

        ward.put(role, properties={"roleName": "Reader", "type": "BuiltInRole", "permissions": [{"actions": ["*/read"], "notActions": []}]})
        findings = (await ward.look()).findings
        assert {finding.object.rpartition("/")[2] for finding in findings if finding.severity == CRITICAL} == {
            "MC_rg_aks_eastus",
            "workers",
        }
        assert all(finding.fix.advice for finding in findings)


async def test_a_policy_whose_conditions_are_not_understood_could_not_be_checked() -> None:
    async with azure_ward() as ward:
        unclear = {"field": "Microsoft.Compute/virtualMachineScaleSets/virtualMachineProfile.encryptionAtHost", "notEquals": True}
        policy({"allOf": [OF_SETS, unclear]})(ward)
        report = await ward.look()

        assert not report.findings
        (entry,) = report.unchecked
        assert entry.check == "D47"
        assert "Allowed sizes" in entry.subject


async def test_a_client_id_that_no_identity_has_could_not_be_checked() -> None:
    async with azure_ward() as ward:
        ward.objects.append(service_account(CLIENT_ID.replace("1", "2")))
        report = await ward.look()

        assert not report.findings
        (entry,) = report.unchecked
        assert "ServiceAccount ml/app" in entry.subject


async def test_a_retirement_that_is_near_is_a_warning_and_a_past_one_critical() -> None:
    async with azure_ward() as ward:
        ward.pool("gpu", "Standard_NV12s_v3")
        (finding,) = (await ward.look()).findings
        assert (finding.check, finding.severity) == ("D16", "warning")
        ward.harness.later(30 * 86_400.0)
        (finding,) = (await ward.look()).findings
        assert (finding.check, finding.severity) == ("D16", CRITICAL)


async def test_five_hundred_scale_sets_are_read_and_checked_in_seconds() -> None:
    async with azure_ward() as ward:
        for number in range(500):
            ward.own(f"gpus{number}", properties={"automaticRepairsPolicy": {"enabled": True}})
        began = time.process_time()
        report = await ward.look()

        assert time.process_time() - began < 20
        assert sum(finding.check == "D6" for finding in report.findings) == 500
        assert len(grouped(report.findings)) == 1
        assert sum(ward.harness.endpoint.calls.values()) < 40
