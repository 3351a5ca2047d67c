"""Broken Azure subscriptions: what is found, and whether the printed commands mend it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.doctor.azure_accounts import CLIENT_ID, ISSUER, NODES, SIZE, WHOLE, WORKERS, Ward, azure_ward

from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING
from gpuscaler.embedded.azure import making
from gpuscaler.model.overrides import PoolOverride

SET, POOL, CLUSTER = "ScaleSet workers/gpus", "AgentPool aks/gpu", "ManagedCluster rg/aks"
IDENTITY = f"{WHOLE}/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/app"
USE = "azure.workload.identity/use"


@dataclass(frozen=True)
class Case:
    """A subscription in which ``make`` breaks something: the findings, whether no command mends them, the severity of the first.

    ``unchecked`` are checks that then cannot be made.
    """

    name: str
    make: Callable[[Ward], Any]
    finds: tuple[tuple[str, str], ...]
    by_hand: bool = False
    severity: str = CRITICAL
    unchecked: frozenset[str] = frozenset()


def scale_set(**settings: Any) -> Callable[[Ward], Any]:
    return lambda ward: ward.own(**settings)


def agent_pool(size: Any = SIZE, **settings: Any) -> Callable[[Ward], Any]:
    return lambda ward: ward.pool("gpu", size, **settings)


def in_cluster(**settings: Any) -> Callable[[Ward], Any]:
    return lambda ward: ward.cluster.settings.update(settings)


def lock(place: str, level: str) -> Callable[[Ward], Any]:
    def make(ward: Ward) -> None:
        ward.own()
        ward.put(f"{place}/providers/Microsoft.Authorization/locks/keep", properties={"level": level})

    return make


def autoscale_setting(ward: Ward) -> None:
    target = ward.own().id.upper()
    place = f"{WHOLE}/resourceGroups/rg/providers/Microsoft.Insights/autoscalesettings/cpu"
    ward.put(place, properties={"enabled": True, "targetResourceUri": target})


def quota(name: str, limit: int, *, most: int | None = None) -> Callable[[Ward], Any]:
    def make(ward: Ward) -> None:
        ward.overrides = () if most is None else (PoolOverride("demand", max=most),)
        making.set_quota(ward.account, name, limit)

    return make


def restricted(*zones: str, pool_zones: tuple[str, ...] = ()) -> Callable[[Ward], Any]:
    def make(ward: Ward) -> None:
        ward.pool("gpu", "Standard_NC8as_T4_v3", zones=pool_zones)
        making.restrict(ward.account, "Standard_NC8as_T4_v3", zones)

    return make


def renamed(**names: Any) -> Callable[[Ward], Any]:
    def make(ward: Ward) -> None:
        for field, value in names.items():
            setattr(ward, field, value)

    return make


def untagged_nodes(ward: Ward) -> None:
    ward.add_node(ward.own(tags={}, count=1))


def nodes_of_another(ward: Ward) -> None:
    ward.add_node(ward.own(tags={"gpuscaler.io_cluster": "other"}, count=1))


def availability_set(ward: Ward) -> None:
    """As acs-engine's template deploys a pool: virtual machines in an availability set."""
    machines = [
        {
            "id": f"{WORKERS}/providers/Microsoft.Compute/virtualMachines/k8s-agentpool1-12345678-{number}",
            "name": f"k8s-agentpool1-12345678-{number}",
            "properties": {"availabilitySet": {"id": f"{WORKERS}/providers/Microsoft.Compute/availabilitySets/agentpool1-as"}},
        }
        for number in range(2)
    ]
    ward.answer("*/resourcegroups/workers/providers/microsoft.compute/virtualmachines", {"value": machines})


def deployment(kind: str = "Deployment", *, labels: dict[str, str] | None = None, account: str = "app", **container: Any) -> dict[str, Any]:
    spec = {"serviceAccountName": account, "containers": [{"name": "app", "image": "example.com/app:1", **container}]}
    version = {"Deployment": "apps/v1", "Job": "batch/v1"}[kind]
    template = {"metadata": {"labels": {"app": "app", **(labels or {})}}, "spec": spec}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "app", "namespace": "ml"}, "spec": {"template": template}}


def service_account(client_id: str | None = CLIENT_ID) -> dict[str, Any]:
    annotations = {} if client_id is None else {"azure.workload.identity/client-id": client_id}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "app", "namespace": "ml", "annotations": annotations}}


def workload_identity(
    *objects: dict[str, Any],
    subject: str = "system:serviceaccount:ml:app",
    issuer: str = ISSUER,
    audience: str = "api://AzureADTokenExchange",
    enabled: bool = True,
) -> Callable[[Ward], Any]:
    """A cluster with workload identity and the identity ``app``, which accepts tokens of ``subject``."""

    def make(ward: Ward) -> None:
        ward.objects += objects
        ward.cluster.settings["oidcIssuerProfile"] = {"enabled": True, "issuerURL": ISSUER}
        ward.cluster.settings["securityProfile"] = {"workloadIdentity": {"enabled": enabled}}
        ward.put(IDENTITY, properties={"clientId": CLIENT_ID, "principalId": "p"})
        credential = {"issuer": issuer, "subject": subject, "audiences": [audience]}
        ward.put(f"{IDENTITY}/federatedIdentityCredentials/app", properties=credential)

    return make


def only_spot(*objects: dict[str, Any]) -> Callable[[Ward], Any]:
    def make(ward: Ward) -> None:
        ward.remove_pools("demand")
        ward.objects += objects

    return make


def policy(rule: dict[str, Any], *, effect: str = "[parameters('effect')]") -> Callable[[Ward], Any]:
    """A scale set of our own, and a policy of the subscription with ``rule``, in a set of policies."""

    def make(ward: Ward) -> None:
        ward.own()
        definitions = f"{WHOLE}/providers/Microsoft.Authorization"
        ward.put(
            f"{definitions}/policyDefinitions/sizes",
            properties={
                "parameters": {"effect": {"defaultValue": "Audit"}, "allowed": {}},
                "policyRule": {"if": rule, "then": {"effect": effect}},
            },
        )
        member = {
            "policyDefinitionId": f"{definitions}/policyDefinitions/sizes",
            "parameters": {"effect": {"value": "[parameters('howStrict')]"}, "allowed": {"value": "[parameters('sizes')]"}},
        }
        ward.put(
            f"{definitions}/policySetDefinitions/rules",
            properties={"parameters": {"howStrict": {"defaultValue": "Deny"}}, "policyDefinitions": [member]},
        )
        ward.put(
            f"{definitions}/policyAssignments/rules",
            properties={
                "displayName": "Allowed sizes",
                "policyDefinitionId": f"{definitions}/policySetDefinitions/rules",
                "parameters": {"sizes": {"value": ["Standard_D2s_v5"]}},
            },
        )

    return make


OF_SETS = {"field": "type", "equals": "Microsoft.Compute/virtualMachineScaleSets"}
NOT_ALLOWED = {"not": {"field": "Microsoft.Compute/virtualMachineScaleSets/sku.name", "in": "[parameters('allowed')]"}}
GPU: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
AKS_SETS = {("D47", f"ScaleSet MC_rg_aks_eastus/aks-{name}-78497185-vmss") for name in ("spot", "demand")}

CASES = [
    # D1: names in the run file (S2-26, S2-33), and scale sets of the cluster that no tag names.
    Case("unknown-cluster", renamed(cluster_name="prod"), (("D1", "run file"),), by_hand=True, unchecked=frozenset({"D29"})),
    Case(
        "wrong-group-of-cluster",
        renamed(cluster_group="MC_rg_aks_eastus"),
        (("D1", "run file"),),
        by_hand=True,
        unchecked=frozenset({"D29"}),
    ),
    Case("unknown-resource-group", renamed(groups=("worker",)), (("D1", "run file"),), by_hand=True),
    Case("unknown-pool", renamed(pools=("agentpool3",)), (("D1", "run file"),), by_hand=True),
    Case(
        "unknown-subscription",
        renamed(subscription="22222222-2222-4222-8222-222222222222"),
        (("D1", "run file"),),
        by_hand=True,
        unchecked=frozenset({"D28", "D29"}),
    ),
    Case("untagged-nodes", untagged_nodes, (("D1", SET),)),
    Case("nodes-of-another", nodes_of_another, (("D1", SET),), by_hand=True),
    # D3: two autoscalers.
    Case("aks-autoscaler", agent_pool(enableAutoScaling=True, minCount=0, maxCount=5), (("D3", POOL),)),
    Case("node-auto-provisioning", in_cluster(nodeProvisioningProfile={"mode": "Auto"}), (("D3", CLUSTER),)),
    # D5, D6: what scale sets do by themselves.
    Case(
        "zone-balance",
        scale_set(properties={"resiliencyPolicy": {"automaticZoneRebalancingPolicy": {"enabled": True}}}),
        (("D5", SET),),
    ),
    Case("repairs", scale_set(properties={"automaticRepairsPolicy": {"enabled": True}}), (("D6", SET),), severity=WARNING),
    Case("spot-restore", scale_set(spot=True, properties={"spotRestorePolicy": {"enabled": True}}), (("D6", SET),), severity=WARNING),
    Case("upgrades", scale_set(properties={"upgradePolicy": {"mode": "Automatic"}}), (("D6", SET),), severity=WARNING),
    # D15, D19, D20: shapes and markets.
    Case(
        "shapes",
        scale_set(
            flexible=True,
            properties={"skuProfile": {"vmSizes": [{"name": SIZE}, {"name": "Standard_NC48ads_A100_v4"}]}},
        ),
        (("D15", SET),),
        by_hand=True,
        severity=WARNING,
    ),
    Case(
        "lowest-price",
        scale_set(flexible=True, spot=True, properties={"skuProfile": {"vmSizes": [{"name": SIZE}], "allocationStrategy": "LowestPrice"}}),
        (("D19", SET),),
        severity=WARNING,
    ),
    Case(
        "mixed-markets",
        scale_set(
            flexible=True,
            spot=True,
            properties={"priorityMixPolicy": {"baseRegularPriorityCount": 1, "regularPriorityPercentageAboveBase": 50}},
        ),
        (("D20", SET),),
        severity=WARNING,
    ),
    # D16: sizes (S2-7).
    Case("restricted-size", restricted(), (("D16", POOL),), by_hand=True),
    Case("restricted-zones", restricted("1", pool_zones=("1", "2")), (("D16", POOL),), by_hand=True, severity=WARNING),
    Case("restricted-all-zones", restricted("1", "2", pool_zones=("1", "2")), (("D16", POOL),), by_hand=True),
    # D17: quotas.
    Case("no-quota", quota("StandardNCADSA100v4Family", 0), (("D17", "Quota eastus/StandardNCADSA100v4Family"),)),
    Case("no-spot-quota", quota("lowPriorityCores", 10), (("D17", "Quota eastus/lowPriorityCores"),)),
    Case("quota-below-maximum", quota("cores", 100, most=10), (("D17", "Quota eastus/cores"),), severity=WARNING),
    # D22: operating systems.
    Case(
        "old-node-image",
        agent_pool(nodeImageVersion="AKSUbuntu-1804gen2gpucontainerd-202506.01.0"),
        (("D22", POOL),),
        by_hand=True,
        severity=WARNING,
    ),
    Case(
        "old-image",
        scale_set(
            properties={
                "virtualMachineProfile": {
                    "storageProfile": {"imageReference": {"publisher": "Canonical", "offer": "UbuntuServer", "sku": "16.04-LTS"}}
                }
            }
        ),
        (("D22", SET),),
        by_hand=True,
        severity=WARNING,
    ),
    # D25: sizes of pools (S2-6).
    Case("gpus-in-system-pool", agent_pool(mode="System", count=1), (("D25", POOL),), severity=WARNING),
    Case("minimum", scale_set(tags={"gpuscaler.io_cluster": "aks", "min": "1", "max": "4"}), (("D25", SET),), severity=INFO),
    Case("maximum-0", scale_set(tags={"gpuscaler.io_cluster": "aks", "max": "0"}), (("D25", SET),), by_hand=True),
    # D27: keys (S2-11, S2-20).
    Case(
        "key-of-storage",
        lambda ward: ward.objects.append(deployment("Job", env=[{"name": "STORAGE_ACCOUNT_KEY", "value": "c2VjcmV0"}])),
        (("D27", "Job ml/app"),),
        by_hand=True,
        severity=WARNING,
    ),
    Case("service-principal", in_cluster(servicePrincipalProfile={"clientId": CLIENT_ID}), (("D27", CLUSTER),), severity=WARNING),
    # D28: workload identity (S2-25).
    Case("no-label", workload_identity(service_account(), deployment()), (("D28", "Deployment ml/app"),)),
    Case(
        "no-annotation",
        workload_identity(service_account(None), deployment(labels={USE: "true"})),
        (("D28", "ServiceAccount ml/app"),),
        by_hand=True,
        severity=WARNING,
    ),
    Case(
        "newline-in-client-id",
        workload_identity(service_account(f"{CLIENT_ID}\n"), deployment(labels={USE: "true"})),
        (("D28", "ServiceAccount ml/app"),),
    ),
    Case("no-webhook", workload_identity(service_account(), deployment(labels={USE: "true"}), enabled=False), (("D28", CLUSTER),)),
    Case("other-subject", workload_identity(service_account(), subject="system:serviceaccount:default:app"), (("D28", "Identity rg/app"),)),
    Case(
        "other-issuer",
        workload_identity(service_account(), issuer="https://eastus.oic.prod-aks.azure.com/tenant/old/"),
        (("D28", "Identity rg/app"),),
    ),
    Case("other-audience", workload_identity(service_account(), audience="api://other"), (("D28", "Identity rg/app"),)),
    # D29: rights of gpuscaler's identity.
    Case(
        "no-right-to-end",
        lambda ward: ward.forbid("Microsoft.Compute/virtualMachineScaleSets/delete/action"),
        (("D29", f"Identity gpuscaler at {NODES}"), ("D29", f"Identity gpuscaler at {WORKERS}")),
    ),
    Case(
        "no-right-to-read-quotas",
        lambda ward: ward.forbid("Microsoft.Compute/locations/usages/read"),
        (("D29", f"Identity gpuscaler at {WHOLE}"),),
        severity=WARNING,
    ),
    Case(
        "no-role",
        lambda ward: ward.account.documents.pop(f"{WORKERS}/providers/Microsoft.Authorization/roleAssignments/1".lower()),
        (("D29", f"Identity gpuscaler at {WORKERS}"),),
        by_hand=True,
    ),
    # D47: what else keeps gpuscaler from buying and ending.
    Case("overprovision", scale_set(properties={"overprovision": True}), (("D47", SET),)),
    Case("eviction-of-scale-set", scale_set(spot=True, eviction="Deallocate"), (("D47", SET),), by_hand=True),
    Case("eviction-of-pool", agent_pool(spot=True, scaleSetEvictionPolicy="Deallocate"), (("D47", POOL),), by_hand=True),
    Case("scale-down-mode", agent_pool(scaleDownMode="Deallocate"), (("D47", POOL),)),
    Case(
        "left-disks",
        scale_set(properties={"virtualMachineProfile": {"storageProfile": {"osDisk": {"deleteOption": "Detach"}}}}),
        (("D47", SET),),
        by_hand=True,
        severity=WARNING,
    ),
    Case("autoscale-setting", autoscale_setting, (("D47", SET),)),
    Case("lock-of-group", lock(WORKERS, "CanNotDelete"), (("D47", "Lock workers/keep"),)),
    Case("lock-of-subscription", lock(WHOLE, "ReadOnly"), (("D47", f"Lock {WHOLE.rpartition('/')[2]}/keep"),)),
    Case(
        "lock-beside-machines",
        lock(f"{NODES}/providers/Microsoft.Network/loadBalancers/kubernetes", "CanNotDelete"),
        (("D47", "Lock MC_rg_aks_eastus/keep"),),
        severity=WARNING,
    ),
    Case(
        "lockdown",
        lambda ward: (renamed(api="vmss")(ward), in_cluster(nodeResourceGroupProfile={"restrictionLevel": "ReadOnly"})(ward)),
        (("D47", "run file"),),
        by_hand=True,
    ),
    Case("spot-toleration", only_spot(deployment(**GPU)), (("D47", "Deployment ml/app"),)),
    Case("policy", policy({"allOf": [OF_SETS, NOT_ALLOWED]}), (("D47", SET), *AKS_SETS), by_hand=True),
    # S2-8, S2-12, S2-13: pools of acs-engine.
    Case("availability-set", availability_set, (("D47", "AvailabilitySet workers/agentpool1-as"),), by_hand=True),
    Case("pool-of-availability-set", agent_pool(type="AvailabilitySet"), (("D47", POOL),), by_hand=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_broken_subscription_has_its_findings_and_the_commands_mend_them(case: Case) -> None:
    async with azure_ward() as ward:
        assert not await ward.found()
        case.make(ward)
        report = await ward.look()

        expected = set(case.finds)
        assert {(finding.check, finding.object) for finding in report.findings} == expected
        assert report.findings[0].severity == case.severity
        assert {entry.check for entry in report.unchecked} == case.unchecked
        for finding in report.findings:
            assert finding.fix.commands or finding.fix.advice
            for command in finding.fix.commands:
                ward.apply(command)
        assert await ward.found() == (expected if case.by_hand else set())


@pytest.mark.parametrize(
    "make",
    [
        workload_identity(service_account(), subject="system:serviceaccount:default:app"),
        workload_identity(service_account(), issuer="https://eastus.oic.prod-aks.azure.com/tenant/old/"),
        lambda ward: ward.forbid("Microsoft.Compute/virtualMachineScaleSets/delete/action"),
    ],
    ids=["subject", "issuer", "rights"],
)
async def test_no_account_of_a_tenant_gets_an_identity_or_its_rights(make: Callable[[Ward], Any]) -> None:
    async with azure_ward() as ward:
        make(ward)
        ward.named = frozenset()
        findings = (await ward.look()).findings

        assert findings
        assert not any(finding.fix.commands for finding in findings)
