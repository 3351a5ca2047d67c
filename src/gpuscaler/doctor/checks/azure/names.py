"""Names in the run file that Azure does not know, and scale sets of the cluster that are not adopted."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.azure.account import AGENT_POOL, SCALE_SET, agent_pools, azure_check, scale_sets, settings_of
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix

MISSING, MACHINE = "azure/Missing", "azure/VirtualMachine"
_TAG = "gpuscaler.io_cluster"
_NOT_ADOPTED = "gpuscaler does not adopt it: no machine is bought there, whatever pods wait for it"
#: Names that a finding lists.
_NAMED = 10


def find_unknown_names(evidence: Evidence) -> Iterator[Finding]:
    """D1: subscriptions, clusters, resource groups and pools of the run file that do not exist."""
    seen: set[str] = set()
    for missing in evidence.of(MISSING):
        finding = _missing(missing)
        if finding.seen not in seen:
            seen.add(finding.seen)
            yield finding
    if evidence.of(MISSING) or AGENT_POOL in evidence.unread or SCALE_SET in evidence.unread or "azure/ManagedCluster" in evidence.unread:
        return
    for settings in settings_of(evidence):
        subscription = settings.text("Subscription")
        known = [item.name for item in (*agent_pools(evidence), *scale_sets(evidence)) if item.subscription.lower() == subscription.lower()]
        folded = {name.lower() for name in known}
        for name in settings.texts("Pools"):
            if name.lower() not in folded:
                yield Finding(
                    "D1",
                    CRITICAL,
                    "run file",
                    "azure.subscriptions.pools",
                    name,
                    f"an agent pool or scale set of subscription {subscription}, which has {', '.join(sorted(known)[:_NAMED]) or 'none'}",
                    "the pool is not adopted: no machine is bought there",
                    Fix(advice="correct the name in the run file; `az aks nodepool list` and `az vmss list` show those that exist"),
                )


def _missing(missing: Document) -> Finding:
    kind, name, group = missing.text("Kind"), missing.text("Name"), missing.text("Group")
    subscription = missing.text("Subscription")
    unknown = missing.text("Code").lower() == "subscriptionnotfound"
    aks = kind == "AKS cluster"
    where = f"resource group {group}" if aks else f"subscription {subscription}"
    field = "cluster" if aks else "resource_groups"
    listing = "account" if unknown else "aks" if aks else "group"
    return Finding(
        "D1",
        CRITICAL,
        "run file",
        "azure.subscriptions.id" if unknown else f"azure.subscriptions.{field}",
        f"subscription {subscription}, which Azure does not know" if unknown else f"{kind} {name}, which is not in {where}",
        "a subscription in which the caller has a role"
        if unknown
        else "the name of a cluster, and the resource group that the cluster itself is in, not its MC_… group"
        if aks
        else "the name of a resource group with scale sets",
        "no pool is found there, so no machine is ever bought",
        Fix(advice=f"correct it in the run file; az {listing} list shows names"),
    )


def find_not_adopted(evidence: Evidence) -> Iterator[Finding]:
    """D1: scale sets with GPUs whose machines are nodes of the cluster, and that no tag or name makes pools."""
    clusters = {item.text("Subscription").lower(): item.text("Cluster") for item in settings_of(evidence)}
    for scale_set in scale_sets(evidence):
        document = scale_set.document
        if scale_set.agent_pool or scale_set.adopted or not document.flag("Member") or not scale_set.has_gpus:
            continue
        reason, cluster = document.text("Reason"), clusters.get(scale_set.subscription.lower(), "")
        if "exclude" in reason:
            continue
        foreign = document.flag("Foreign")
        yield Finding(
            "D1",
            CRITICAL,
            scale_set.title,
            "tags",
            reason or "no tag of its cluster, although its machines are nodes of the cluster",
            f"{_TAG}={cluster or 'NAME'}",
            _NOT_ADOPTED,
            Fix((scale_set.tag(_TAG, cluster),))
            if cluster and not foreign
            else Fix(
                advice="correct the tag, or the cluster's name in the run file, whichever is wrong"
                if foreign
                else "name the scale set in pools of its subscription in the run file"
            ),
        )


def find_availability_sets(evidence: Evidence) -> Iterable[Finding]:
    """D47: machines of acs-engine and aks-engine, which are not in scale sets."""
    counts: dict[tuple[str, str], int] = {}
    for machine in evidence.of(MACHINE):
        key = (machine.text("ResourceGroup"), machine.text("availabilitySet", "id").rpartition("/")[2])
        counts[key] = counts.get(key, 0) + 1
    for (group, name), count in counts.items():
        yield _availability_set(f"AvailabilitySet {group}/{name}", "virtualMachines", f"{count} machines in an availability set")
    for pool in agent_pools(evidence):
        if pool.is_word("AvailabilitySet", "type"):
            yield _availability_set(pool.title, "type", "AvailabilitySet")


def _availability_set(title: str, field: str, seen: str) -> Finding:
    return Finding(
        "D47",
        CRITICAL,
        title,
        field,
        seen,
        "a scale set, or a node pool of AKS of type VirtualMachineScaleSets or VirtualMachines",
        "gpuscaler does not scale it: machines of acs-engine and of availability sets are only made by deploying a template again",
        Fix(advice="make the pool again as a node pool of AKS or as a scale set, move its pods there, and delete the old machines"),
    )


CHECKS = (
    azure_check("D1", "names in the run file, and tags that make scale sets pools of the cluster", (), find_unknown_names),
    azure_check("D1", "scale sets of the cluster's nodes", (), find_not_adopted),
    azure_check("D47", "machines in availability sets", (MACHINE,), find_availability_sets),
)
