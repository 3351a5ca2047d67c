"""Agent pools and scale sets: each as Azure describes it, with what gpuscaler makes of it."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuscaler.clouds.azure.api.arm import CONTAINERSERVICE, Arm
from gpuscaler.clouds.azure.api.ids import agent_pool_path
from gpuscaler.clouds.azure.discovery.accounts import Account, name_of
from gpuscaler.clouds.azure.discovery.findings import other_autoscaler
from gpuscaler.clouds.azure.discovery.ownership import AKS, agent_pool_in, decide_agent_pool, decide_scale_set
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.documents.reading import agent_pool_of, scale_set_of
from gpuscaler.clouds.azure.documents.resources import Cluster
from gpuscaler.clouds.azure.documents.skus import Sku, sku_in_catalogue
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.azure.inspecting.inspection import AGENT_POOL, Inspection, entries_of
from gpuscaler.model.azure_names import fold_id

#: Sizes that are looked for, by (subscription, location).
Places = dict[tuple[str, str], set[str]]
#: Sizes that are known, by subscription, location and folded name.
Sizes = Mapping[tuple[str, str, str], Sku]


async def read_agent_pools(arm: Arm, account: Account, cluster: Cluster | None, inspection: Inspection) -> list[dict[str, Any]]:
    """The agent pools of the cluster, each with these fields of our own.

    ``Sizes``, ``Zones`` and ``Markets`` are those of its machines. ``Adopted`` says that gpuscaler takes it for a pool; ``Reason`` why not.
    A pool that AKS manages and the settings do not name is adopted only if it has accelerators: ``Source`` is then ``aks``.
    """
    if cluster is None:
        return []
    path = agent_pool_path(cluster.subscription, cluster.group, cluster.name)
    documents = entries_of(await inspection.ask(AGENT_POOL, path, arm.pages(path, version=CONTAINERSERVICE)))
    return [_agent_pool(document, account, cluster) for document in documents]


def _agent_pool(raw: Mapping[str, Any], account: Account, cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = {
        **raw,
        "Subscription": cluster.subscription,
        "ResourceGroup": cluster.group,
        "Cluster": cluster.name,
        "NodeResourceGroup": cluster.node_resource_group,
        "Location": cluster.location,
        "Sizes": [],
        "Adopted": False,
    }
    try:
        pool = agent_pool_of(raw, cluster)
    except ReadingError as error:
        return {**document, "Incomplete": str(error)}
    ownership = decide_agent_pool(name_of(raw), pool.tags, named=account.pools, exclude=account.exclude)
    reason = ownership.reason or other_autoscaler(pool)
    resources = PoolResources(agent_pool=pool, cluster=cluster)
    return {
        **document,
        "Sizes": list(resources.sizes),
        "Zones": list(resources.zones),
        "Markets": list(resources.markets),
        "Source": "" if reason else ownership.source,
        "Reason": reason,
    }


def scale_set_documents(
    documents: Iterable[Mapping[str, Any]], account: Account, cluster: Cluster | None, members: Collection[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Scale sets, each with these fields of our own, and those of agent pools.

    ``AgentPool`` is the pool that AKS made it for, empty if there is none. ``Member`` says that nodes of the cluster are its machines,
    which are in ``members``, ``Foreign`` that it belongs to another cluster. ``Kept`` are disks, interfaces and addresses that outlive
    their machine, ``Upgrades`` is the field that lets Azure replace machines.
    """
    return [_scale_set(document, account, cluster, members) for document in documents]


def _scale_set(raw: Mapping[str, Any], account: Account, cluster: Cluster | None, members: Collection[tuple[str, str]]) -> dict[str, Any]:
    document: dict[str, Any] = {**raw, "Subscription": account.subscription, "Location": "", "Sizes": [], "Adopted": False}
    try:
        scale_set = scale_set_of(raw)
    except ReadingError as error:
        return {**document, "Incomplete": str(error)}
    pool = agent_pool_in(scale_set)
    ownership = decide_scale_set(
        scale_set.name,
        scale_set.tags,
        cluster=account.cluster,
        named=account.pools,
        extra=account.tags,
        exclude=account.exclude,
    )
    resources = PoolResources(scale_set)
    return {
        **document,
        "ResourceGroup": scale_set.group,
        "Location": scale_set.location,
        "Cluster": cluster.name if cluster is not None and pool else "",
        "AgentPool": pool,
        "Sizes": list(resources.sizes),
        "Zones": list(resources.zones),
        "Markets": list(resources.markets),
        "Mode": scale_set.mode,
        "Capacity": scale_set.capacity,
        "Source": "" if pool else ownership.source,
        "Reason": "" if pool else ownership.reason,
        "Foreign": not pool and ownership.foreign,
        "Member": (fold_id(scale_set.group), fold_id(scale_set.name)) in members,
        "Kept": list(scale_set.kept),
        "Upgrades": scale_set.upgrades,
    }


def add_machines(pools: Iterable[dict[str, Any]], sets: Iterable[dict[str, Any]], sizes: Sizes) -> None:
    """Add what the sizes say: ``Gpus`` of each, whether the pool is adopted, and ``Incomplete`` if no size is known."""
    adopted: dict[str, bool] = {}
    for document in pools:
        _add_sizes(document, sizes)
        document["Adopted"] = bool(document.get("Source")) and (document["Source"] != AKS or document["HasGpus"])
        adopted[fold_id(str(document.get("name")))] = document["Adopted"]
    for document in sets:
        _add_sizes(document, sizes)
        pool = fold_id(str(document.get("AgentPool") or ""))
        document["Adopted"] = adopted.get(pool, False) if pool else bool(document.get("Source"))


def _add_sizes(document: dict[str, Any], sizes: Sizes) -> None:
    place = (str(document["Subscription"]), str(document["Location"]))
    known = {size: sizes.get((*place, fold_id(size))) or sku_in_catalogue(size) for size in document["Sizes"]}
    document["Gpus"] = {size: sku.gpus for size, sku in known.items() if sku is not None}
    document["HasGpus"] = any(document["Gpus"].values())
    unknown = [size for size, sku in known.items() if sku is None]
    if unknown and "Incomplete" not in document:
        document["Incomplete"] = f"nothing is known of the size {', '.join(unknown)}"
