"""Terraform of the GPU pools: an agent pool for each type, market and zone.

Sources, read 2026-11-26: the page of the provider azurerm about ``azurerm_kubernetes_cluster_node_pool`` (of 2025-12); its issues 30990
(``gpu_driver``) and 19355 (``max_surge`` of spot pools); AKS's pages "Add an Azure Spot node pool", "Use node taints" and "Use GPUs".
"""

from collections.abc import Iterator
from typing import Any

from gpuscaler.clouds.azure.templates.node_templates import SPOT_TAINT
from gpuscaler.generating.azure.cluster import MAX_PODS, cluster
from gpuscaler.generating.description.resolved import POOL_TAINT, Description, NodeGroup
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, Nested
from gpuscaler.model.offerings import ON_DEMAND, SPOT
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT


def pool_blocks(description: Description) -> Iterator[Tree]:
    """Yield a block for each group. The first of each market has all reasons; the others differ in few values."""
    seen = set[str]()
    for group in description.groups:
        block = Block(
            "resource", ("azurerm_kubernetes_cluster_node_pool", group.name), _pool(description, group, first=group.market not in seen)
        )
        yield because(_summary(group, first=group.market not in seen), block)
        seen.add(group.market)


def _summary(group: NodeGroup, *, first: bool) -> str:
    where = f"zone {group.zone}" if group.zone else "a location without zones"
    text = f"{group.market} machines of pool {group.pool} in {where}: one size, one market and one place, so that Azure has no choice."
    return text if first else f"{text} The reasons are those of the first pool of this market."


def _pool(description: Description, group: NodeGroup, *, first: bool) -> dict[str, Tree]:
    def why(reason: str, value: Tree) -> Tree:
        return because(reason, value) if first else value

    spot = group.market == SPOT
    driver = _driver(group)
    create = description.cluster.create
    body: dict[str, Any] = {
        "name": why(
            "At most 12 lower-case letters and digits: the pool's name, the number of its type if there are several, the market and the "
            "zone. gpuscaler's run file names the pool so.",
            group.name,
        ),
        "kubernetes_cluster_id": why("The cluster.", Expression(f"{cluster(description)}.id")),
        **(
            {
                "orchestrator_version": why(
                    "The version of the cluster, so that its pools follow it.", Expression(f"{cluster(description)}.kubernetes_version")
                )
            }
            if create
            else {}
        ),
        "vm_size": why(
            f"{group.gpus} GPU{'s' if group.gpus > 1 else ''} a machine. A pool of several sizes would leave the choice to Azure.",
            group.instance_type.name,
        ),
        "mode": why("A pool of mode System could not go to zero, and would attract AKS's own pods.", "User"),
        "priority": why("The market. It cannot be changed later.", "Spot" if spot else "Regular"),
        **(
            {
                "eviction_policy": why(
                    "Evicted machines go away. Deallocate would leave stopped ones that keep quota and disks.",
                    "Delete",
                ),
                "spot_max_price": why(
                    "-1 is the on-demand price. A lower limit would evict machines when the price rises above it, and grant none.", -1
                ),
            }
            if spot
            else {}
        ),
        **(
            {
                "zones": why(
                    "One zone for each pool: volumes and gangs need the zone that was chosen, and one that is sold out stops no other.",
                    [group.zone],
                )
            }
            if group.zone
            else {}
        ),
        "auto_scaling_enabled": why("gpuscaler scales this pool. AKS's autoscaler beside it would undo what gpuscaler does.", False),
        "node_count": why("No machine until a pod needs one. gpuscaler keeps the minimum and the maximum of its own settings.", 0),
        "scale_down_mode": why("Machines that are not needed are deleted. Deallocated ones would keep quota and disks.", "Delete"),
        "gpu_driver": why(
            "AKS installs the NVIDIA driver, but no device plugin; the GPU Operator would install a second driver. Without this line, the "
            "provider would delete the pool and make it again."
            if driver == "Install"
            else "AKS has no driver for these GPUs; an operator of their maker installs one.",
            driver,
        ),
        "os_sku": why("AKS tests its NVIDIA driver with Ubuntu; Azure Linux gets no automatic security patches on GPU nodes.", "Ubuntu"),
        "os_disk_size_gb": why("Images with CUDA take tens of GiB each. The size is the description's, in GiB.", group.disk_gib),
        "os_disk_type": why("A disk of this size fits all sizes of machines; an ephemeral one only those with a local disk.", "Managed"),
        "max_pods": why(
            "AKS keeps 20 MB of memory back for each pod that a node may have: with its default of 250 pods, that is 5 GB.",
            MAX_PODS,
        ),
        "node_public_ip_enabled": why(
            "Nodes have private addresses only."
            if description.cluster.private
            else "Nodes have public addresses, as the description says.",
            not description.cluster.private,
        ),
        **_labels_and_taints(group, spot=spot, first=first),
        **(
            {}
            if spot
            else {"upgrade_settings": why("An upgrade adds one machine at a time; its GPUs need quota, too.", Nested({"max_surge": "1"}))}
        ),
        "lifecycle": why(
            "gpuscaler changes the number of machines. Without this, each run of Terraform would delete all of them.",
            Nested({"ignore_changes": [Expression("node_count")]}),
        ),
    }
    return body


def _driver(group: NodeGroup) -> str:
    """Return which driver AKS installs. Confidential GPUs need a signed one of the GPU Operator (AKS, "Use confidential GPUs")."""
    known = group.instance_type.gpu_manufacturer == "nvidia" and not group.instance_type.name.startswith("Standard_NCC")
    return "Install" if known else "None"


def _labels_and_taints(group: NodeGroup, *, spot: bool, first: bool) -> dict[str, Tree]:
    def why(reason: str, value: Tree) -> Tree:
        return because(reason, value) if first else value

    labels: dict[str, Tree] = {
        **(
            {
                SPOT_TAINT.key: why(
                    "AKS puts this label on spot nodes. It stands here because Terraform would remove it otherwise.", SPOT_TAINT.value
                )
            }
            if spot
            else {}
        ),
        **{key: why("From the description.", value) for key, value in group.labels.items()},
    }
    taints = [why(_why_taint(taint), str(taint)) for taint in group.taints if taint.key != ARRIVING_TAINT]
    if spot:
        reason = "AKS puts this taint on spot nodes: only pods that tolerate it run on machines that may go away."
        taints.append(why(reason, str(SPOT_TAINT)))
    return {**({"node_labels": labels} if labels else {}), **({"node_taints": taints} if taints else {})}


def _why_taint(taint: Taint) -> str:
    if taint.key == POOL_TAINT:
        return "Only some teams may use this pool: pods in the namespaces of others do not tolerate this taint."
    return (
        f"Keeps pods without GPUs off; those with GPUs need a toleration for {taint.key}. {ARRIVING_TAINT} is not here, "
        "because AKS puts taints of a pool back on nodes that gpuscaler has opened; gpuscaler adds it itself."
    )


def quota_advice(description: Description) -> str:
    """Return which quotas must suffice for all machines that gpuscaler may buy, as the end of a sentence."""
    vcpus = dict[str, int]()
    spot = 0
    for group in description.groups:
        needed = group.instance_type.vcpu * group.max
        if group.market == ON_DEMAND:
            vcpus[group.instance_type.name] = vcpus.get(group.instance_type.name, 0) + needed
        else:
            spot += needed
    parts = [f"{count:,} vCPUs of the family of {name}" for name, count in vcpus.items()]
    parts += [f"{spot:,} in Total Regional Low-priority vCPUs, for all spot machines" if spot else ""]
    return (
        f"compare the quotas, which are 0 for GPUs in many subscriptions, with what gpuscaler may buy at most: "
        f"{'; '.join(filter(None, parts))}. `az vm list-usage --location {description.cluster.region} --output table` shows them"
    )
