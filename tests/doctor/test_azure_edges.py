"""Checks of Azure subscriptions on odd documents, and on objects that the simulated account does not have."""

from typing import Any

import pytest
from tests.doctor.azure_accounts import SUBSCRIPTION, WHOLE
from tests.doctor.test_azure_broken import GPU, deployment, service_account

from gpuscaler.cli.doctor.reading import evidence_of_objects, with_documents
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks

KINDS = (
    "Settings ManagedCluster AgentPool ScaleSet VirtualMachine Sku Usage Lock AutoscaleSetting PolicyAssignment Identity Missing".split()
)
KINDS += ["DeniedAction", "PoolSetting"]
FIELDS = (
    "id name tags properties Subscription ResourceGroup Location Cluster NodeResourceGroup AgentPool Sizes Zones Markets Mode Gpus "
    "Reason Kept Upgrades Foreign Member Incomplete availabilitySet Known Family VCpus Restricted RestrictedEverywhere Spot limit Rule "
    "Group Groups displayName Credentials Kind Name Code Action Scope Purpose Max Pools ResourceGroups Api Source Size"
).split()
PROPERTIES = (
    "enableAutoScaling virtualMachinesProfile scaleDownMode scaleSetEvictionPolicy type mode nodeImageVersion overprovision "
    "resiliencyPolicy automaticRepairsPolicy spotRestorePolicy skuProfile upgradePolicy virtualMachineProfile priorityMixPolicy level "
    "enabled targetResourceUri clientId subject issuer audiences oidcIssuerProfile securityProfile servicePrincipalProfile "
    "nodeProvisioningProfile"
).split()


@pytest.mark.parametrize("value", [None, "", "x", -1, 2**70, float("inf"), float("nan"), True, [], [None], {"a": []}], ids=repr)
def test_odd_answers_do_not_break_a_check(value: Any) -> None:
    whole = dict.fromkeys(FIELDS, value)
    inner = {
        **whole,
        "properties": dict.fromkeys(PROPERTIES, value),
        "Adopted": True,
        "HasGpus": True,
        "name": "gpu",
        "tags": {"max": value},
    }
    known = {**inner, "Subscription": "s", "Location": "l", "Size": "a", "Sizes": ["a"], "Markets": ["on-demand"], "Family": "cores"}
    documents = {f"azure/{kind}": [whole, inner, known, {**known, "name": {"value": "cores"}}] for kind in KINDS}
    evidence = with_documents(evidence_of_objects([service_account(), deployment(**GPU)], now=1e9), documents, {})
    report = run_checks(evidence, CHECKS)

    assert not [entry.reason for entry in report.unchecked if "please report it" in entry.reason]


POOL = {
    "name": "gpu",
    "Subscription": SUBSCRIPTION,
    "ResourceGroup": "rg",
    "Cluster": "aks",
    "NodeResourceGroup": "MC_rg_aks_eastus",
    "Location": "eastus",
    "Sizes": ["Standard_NC24ads_A100_v4"],
    "Markets": ["spot"],
    "Adopted": True,
    "HasGpus": True,
}


def of_pools(*pools: dict[str, Any], objects: list[dict[str, Any]], **others: list[dict[str, Any]]) -> Report:
    documents = {"azure/AgentPool": [{**POOL, **pool} for pool in pools], **{f"azure/{kind}": items for kind, items in others.items()}}
    return run_checks(with_documents(evidence_of_objects(objects, now=1.79e9), documents, {}), CHECKS)


SPOT = {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Equal", "value": "spot", "effect": "NoSchedule"}


def pod(phase: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": "example.com/app:1", **GPU}]
    metadata = {"name": "train", "namespace": "ml"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pools", "pod", "found"),
    [
        (({},), pod("Pending"), True),
        (({}, {"name": "demand", "Markets": ["on-demand"]}), pod("Pending"), False),
        (({}, {"name": "system", "Markets": ["on-demand"], "Adopted": False}), pod("Pending"), True),
        (({},), pod("Running"), False),
        (({},), pod("Succeeded"), False),
        (({},), pod("Pending", tolerations=[SPOT]), False),
        (({},), pod("Pending", tolerations=[{"operator": "Exists"}]), False),
        (({},), pod("Pending", tolerations=[{**SPOT, "value": "Spot"}]), True),
        (({},), pod("Pending", tolerations=[{**SPOT, "effect": "NoExecute"}]), True),
        (({},), pod("Pending", containers=[{"name": "cpu", "image": "example.com/cpu:1"}]), False),
    ],
)
def test_pods_need_the_toleration_of_spot_nodes_only_where_nothing_else_has_gpus(
    pools: tuple[dict[str, Any], ...], pod: dict[str, Any], *, found: bool
) -> None:
    findings = of_pools(*pools, objects=[pod]).findings

    assert ("D47" in {finding.check for finding in findings}) == found


def test_the_only_system_pool_cannot_become_a_user_pool() -> None:
    alone = {"properties": {"mode": "System"}, "Markets": ["on-demand"]}
    (finding,) = of_pools(alone, objects=[]).findings
    assert (finding.check, finding.fix.commands) == ("D25", ())

    other = {"name": "system", "properties": {"mode": "System"}, "Adopted": False, "HasGpus": False}
    (finding,) = of_pools(alone, other, objects=[]).findings
    assert finding.fix.commands[0].endswith(f"--name gpu --mode User --subscription {SUBSCRIPTION}")


def test_secrets_are_found_wherever_they_come_from_and_never_printed() -> None:
    value = "AccountKey=c2VjcmV0LXZhbHVl"
    objects = [
        deployment(env=[{"name": "AZURE_STORAGE_CONNECTION_STRING", "value": value}]),
        deployment("Job", env=[{"name": "AZURE_CLIENT_SECRET", "valueFrom": {"secretKeyRef": {"name": "sp", "key": "secret"}}}]),
    ]
    secret = {"kind": "Secret", "metadata": {"name": "sp", "namespace": "ml"}, "data": {"secret": "dmFsdWU="}}
    findings = of_pools(objects=[*objects, secret]).findings

    assert [(finding.check, finding.object, finding.seen) for finding in findings] == [
        ("D27", "Deployment ml/app", "a credential as plain text"),
        ("D27", "Job ml/app", "Azure client secret from a Secret, which does not expire by itself"),
    ]
    assert value not in str(findings)


def test_a_webhook_of_its_own_chart_serves_pods_with_identities() -> None:
    cluster = {"name": "aks", "ResourceGroup": "rg", "id": f"{WHOLE}/x", "properties": {}}
    workload = deployment(labels={"azure.workload.identity/use": "true"})
    assert "D28" in {finding.check for finding in of_pools(objects=[workload, service_account()], ManagedCluster=[cluster]).findings}

    webhook = deployment(account="webhook")
    webhook["metadata"] = {"name": "azure-wi-webhook-controller-manager", "namespace": "azure-workload-identity-system"}
    assert not of_pools(objects=[workload, service_account(), webhook], ManagedCluster=[cluster]).findings
