"""Others that change the sizes of pools, or replace their machines: AKS, node auto-provisioning, Azure Monitor, scale sets themselves."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.azure.account import CLUSTER, AzureScaleSet, adopted, agent_pools, az, azure_check, scale_sets
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

AUTOSCALE = "azure/AutoscaleSetting"
_TWO = "two programs set the size of the pool against each other: machines are bought twice, or ended with running pods"
_REPLACED = "Azure replaces machines with running pods, without a drain"


def find_rivals(evidence: Evidence) -> Iterator[Finding]:
    """D3: AKS's own autoscaler on a pool, and node auto-provisioning."""
    for pool in agent_pools(evidence):
        scales = pool.is_on("enableAutoScaling")
        profile = bool(pool.document.value("properties", "virtualMachinesProfile", "scale", "autoscale"))
        if pool.adopted and (scales or profile):
            yield Finding(
                "D3",
                CRITICAL,
                pool.title,
                "enableAutoScaling" if scales else "virtualMachinesProfile.scale.autoscale",
                "true" if scales else "a range of sizes",
                "false" if scales else "manual",
                "AKS's own autoscaler scales the pool, so gpuscaler sets it aside: with both, each undoes the other's work",
                Fix((pool.update("--disable-cluster-autoscaler"),)),
            )
    has_pools = any(adopted(evidence))
    for cluster in evidence.of(CLUSTER):
        if has_pools and cluster.text("properties", "nodeProvisioningProfile", "mode").lower() == "auto":
            place = ("--resource-group", cluster.text("ResourceGroup"), "--name", cluster.text("name"))
            command = az("aks", "update", *place, "--node-provisioning-mode", "Manual", subscription=cluster.text("Subscription"))
            yield Finding(
                "D3",
                CRITICAL,
                f"ManagedCluster {cluster.text('ResourceGroup')}/{cluster.text('name')}",
                "nodeProvisioningProfile.mode",
                "Auto",
                "Manual",
                "node auto-provisioning buys machines for the same pending pods, so each pod may get two machines",
                Fix((command,), "or limit its NodePools to pods that gpuscaler's pools do not take"),
            )


def find_autoscale_settings(evidence: Evidence) -> Iterator[Finding]:
    """D47: Azure Monitor's settings that change the capacity of scale sets."""
    by_id = {scale_set.document.text("id").lower(): scale_set for scale_set in scale_sets(evidence) if scale_set.adopted}
    for setting in evidence.of(AUTOSCALE):
        scale_set = by_id.get(setting.text("properties", "targetResourceUri").lower())
        if scale_set is not None and setting.flag("properties", "enabled"):
            yield _autoscale(setting, scale_set)


def _autoscale(setting: Document, scale_set: AzureScaleSet) -> Finding:
    name, ident = setting.text("name"), setting.text("id").split("/")
    group = ident[4] if len(ident) > 4 else scale_set.group
    options = ("--resource-group", group, "--name", name, "--enabled", "false")
    return Finding(
        "D47",
        CRITICAL,
        scale_set.title,
        f"autoscale setting {name}",
        "an enabled setting of Azure Monitor",
        "no enabled setting for a scale set that gpuscaler scales",
        _TWO,
        Fix((az("monitor", "autoscale", "update", *options, subscription=scale_set.subscription),)),
    )


def find_rebalancing(evidence: Evidence) -> Iterable[Finding]:
    """D5: Azure ends machines to balance zones."""
    path = ("resiliencyPolicy", "automaticZoneRebalancingPolicy", "enabled")
    for scale_set in scale_sets(evidence):
        if scale_set.adopted and scale_set.is_on(*path):
            yield Finding(
                "D5",
                CRITICAL,
                scale_set.title,
                ".".join(path),
                "true",
                "false",
                "Azure ends machines with running pods to balance zones, and starts others",
                Fix((scale_set.update("--set", f"{'.'.join(path)}=false"),)),
            )


#: Policies by path, with what they do.
_POLICIES = {
    ("automaticRepairsPolicy", "enabled"): "Azure replaces machines that gpuscaler replaces as well",
    ("spotRestorePolicy", "enabled"): "Azure brings evicted machines back that were replaced already",
    ("skuProfile", "automaticSkuMigrationPolicy", "enabled"): "Azure replaces machines with running pods by other sizes",
    ("resiliencyPolicy", "resilientVMCreationPolicy", "enabled"): "Azure replaces machines that are starting, under other names",
    ("upgradePolicy", "automaticOSUpgradePolicy", "enableAutomaticOSUpgrade"): _REPLACED,
}


def find_policies(evidence: Evidence) -> Iterator[Finding]:
    """D6: what a scale set does to its machines by itself."""
    for scale_set in scale_sets(evidence):
        # AKS sets the policies of its own scale sets, and changes them back.
        if not scale_set.adopted or scale_set.agent_pool:
            continue
        for path, effect in _POLICIES.items():
            if scale_set.is_on(*path):
                yield _policy(scale_set, ".".join(path), "true", "false", effect)
        mode = scale_set.document.text("properties", "upgradePolicy", "mode")
        if mode.lower() in ("automatic", "rolling"):
            yield _policy(scale_set, "upgradePolicy.mode", mode, "Manual", f"after each change of the model, {_REPLACED}")


def _policy(scale_set: AzureScaleSet, field: str, seen: str, expected: str, effect: str) -> Finding:
    fix = Fix((scale_set.update("--set", f"{field}={expected}"),))
    return Finding("D6", WARNING, scale_set.title, field, seen, expected, effect, fix)


CHECKS = (
    azure_check("D3", "other programs that scale the same pools", (), find_rivals),
    azure_check("D5", "balancing of zones", (), find_rebalancing),
    azure_check("D6", "what scale sets do by themselves", (), find_policies),
    azure_check("D47", "settings of Azure Monitor that scale", (AUTOSCALE,), find_autoscale_settings),
)
