"""Terraform of the GPU pools: an agent pool for each type, market and zone.

Sources, read 2026-11-26: the page of the provider azurerm about ``azurerm_kubernetes_cluster_node_pool`` (of 2025); its issues 30990
(``gpu_driver``) and 19355 (``max_surge`` of spot pools); AKS's pages "Add an Azure Spot node pool", "Use node taints" and "Use GPUs".
"""

from collections.abc import Iterator
from typing import Final

from gpuscaler.clouds.azure.templates.node_templates import SPOT_TAINT
from gpuscaler.generating.azure.cluster import MAX_PODS, WHY_PODS, cluster
from gpuscaler.generating.description.resolved import POOL_TAINT, Description, NodeGroup
from gpuscaler.generating.writing.explained import Tree, because, plain
from gpuscaler.generating.writing.hcl import Block, Expression, Nested
from gpuscaler.model.offerings import ON_DEMAND, SPOT
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT


def pool_blocks(description: Description) -> Iterator[Tree]:
    """Yield a block for each group. The first of each market has all reasons; the others differ in few values."""
    seen = set[str]()
    for group in description.groups:
        first, body = group.market not in seen, _pool(description, group)
        block = Block("resource", ("azurerm_kubernetes_cluster_node_pool", group.name), body if first else plain(body))
        yield because(_summary(group, first=first), block)
        seen.add(group.market)


def _summary(group: NodeGroup, *, first: bool) -> str:
    where = f"zone {group.zone}" if group.zone else "a location without zones"
    market = "Spot" if group.market == SPOT else "On-demand"
    text = f"{market} machines of pool {group.pool} in {where}: one size, one market and one place, so that Azure has no choice."
    return text if first else f"{text} The reasons are those of the first pool of this market."


def _pool(description: Description, group: NodeGroup) -> dict[str, Tree]:
    spot, private, driver = group.market == SPOT, description.cluster.private, _driver(group)
    body: dict[str, Tree] = {
        "name": because(
            "At most 12 lower-case letters and digits: the pool's name, the number of its type if there are several, the market and the "
            "zone. gpuscaler's run file names the pool so.",
            group.name,
        ),
        "kubernetes_cluster_id": Expression(f"{cluster(description)}.id"),
        "orchestrator_version": because(
            "The version of the cluster, so that its pools follow it.", Expression(f"{cluster(description)}.kubernetes_version")
        )
        if description.cluster.create
        else None,
        "vm_size": because(
            f"{group.gpus} GPU{'s' if group.gpus > 1 else ''} a machine. A pool of several sizes would leave the choice to Azure.",
            group.instance_type.name,
        ),
        "mode": because("A pool of mode System could not go to zero, and would attract AKS's own pods.", "User"),
        "priority": because("The market. It cannot be changed later.", "Spot" if spot else "Regular"),
        "eviction_policy": because("Evicted machines go away. Deallocate would leave stopped ones that keep quota and disks.", "Delete")
        if spot
        else None,
        "spot_max_price": because(
            "-1 is the on-demand price. A lower limit would evict machines when the price rises above it, and grant none.", -1
        )
        if spot
        else None,
        "zones": because(
            "One zone for each pool: volumes and gangs need the zone that was chosen, and one that is sold out stops no other.",
            [group.zone],
        )
        if group.zone
        else None,
        "auto_scaling_enabled": because("gpuscaler scales this pool. AKS's autoscaler beside it would undo what gpuscaler does.", False),
        "node_count": because(
            "No machine until a pod needs one. The minimum and the maximum are settings of gpuscaler, which buys the machines.", 0
        ),
        "scale_down_mode": because("Machines that are not needed are deleted. Stopped ones would keep quota and disks.", "Delete"),
        "gpu_driver": because(_WHY_DRIVER[driver], driver),
        "os_sku": because("Azure Linux gets no automatic security patches on GPU nodes.", "Ubuntu"),
        "os_disk_size_gb": because("Images with CUDA take tens of GiB each. The size is the description's, in GiB.", group.disk_gib),
        "os_disk_type": because(
            "A disk of this size fits all sizes of machines; an ephemeral one only those with a local disk.", "Managed"
        ),
        "max_pods": because(WHY_PODS, MAX_PODS),
        "node_public_ip_enabled": because(
            "Nodes have private addresses only." if private else "Nodes have public addresses, as the description says.", not private
        ),
        "node_labels": _labels(group) or None,
        "node_taints": _taints(group) or None,
        # AKS refuses this of spot pools.
        "upgrade_settings": because("An upgrade adds one machine at a time; its GPUs need quota, too.", Nested({"max_surge": "1"}))
        if not spot
        else None,
        "lifecycle": because(
            "gpuscaler changes the number of machines. Without this, each run of Terraform would delete all of them.",
            Nested({"ignore_changes": [Expression("node_count")]}),
        ),
    }
    return {name: value for name, value in body.items() if value is not None}


_WHY_DRIVER: Final = {
    "Install": "AKS installs the NVIDIA driver, but no device plugin; the GPU Operator would install a second driver. Without this line, "
    "the provider would delete the pool at its next run and make it again.",
    "None": "AKS has no driver for these GPUs; an operator of their maker installs one.",
}


def _driver(group: NodeGroup) -> str:
    """Return which driver AKS installs. Confidential GPUs need a signed one of the GPU Operator (AKS, "Use confidential GPUs")."""
    known = group.instance_type.gpu_manufacturer == "nvidia" and not group.instance_type.name.startswith("Standard_NCC")
    return "Install" if known else "None"


def _labels(group: NodeGroup) -> dict[str, Tree]:
    if group.market != SPOT:
        return dict(group.labels)
    reason = "AKS puts this label on spot nodes. It stands here because Terraform would remove it otherwise."
    return {SPOT_TAINT.key: because(reason, SPOT_TAINT.value), **group.labels}


def _taints(group: NodeGroup) -> list[Tree]:
    taints = [taint for taint in group.taints if taint.key != ARRIVING_TAINT]
    taints += [SPOT_TAINT] if group.market == SPOT else []
    return [because(_why_taint(taint), str(taint)) for taint in taints]


def _why_taint(taint: Taint) -> str:
    if taint == SPOT_TAINT:
        return "AKS puts this taint on spot nodes: only pods that tolerate it run on machines that may go away."
    if taint.key == POOL_TAINT:
        return "Only some teams may use this pool: pods of the others do not tolerate this taint."
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
        f"{'; '.join(filter(None, parts))}. `az vm list-usage --location {description.cluster.region} --output table` shows them, and "
        f"`az vm list-skus --location {description.cluster.region} --size Standard_N --all --output table` which sizes you may use where"
    )
