"""Reads subscriptions once, all of them concurrently. Nothing is changed; what cannot be read is named with the reason."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpuscaler.clouds.azure.api.arm import COMPUTE, CONTAINERSERVICE, Arm
from gpuscaler.clouds.azure.api.ids import cluster_path, group_path, resource_id, scale_set_path
from gpuscaler.clouds.azure.discovery.accounts import Account
from gpuscaler.clouds.azure.documents.reading import cluster_of
from gpuscaler.clouds.azure.documents.resources import Cluster
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.azure.inspecting.inspection import (
    AGENT_POOL,
    CLUSTER,
    IDENTITY,
    MACHINE,
    MISSING,
    RIGHT,
    SCALE_SET,
    SETTINGS,
    Inspection,
    entries_of,
)
from gpuscaler.clouds.azure.inspecting.policies import read_policies
from gpuscaler.clouds.azure.inspecting.pools import Places, add_machines, read_agent_pools, scale_set_documents
from gpuscaler.clouds.azure.inspecting.rights import read_rights, scopes_of
from gpuscaler.clouds.azure.inspecting.surroundings import read_autoscale_settings, read_identities, read_locks, read_sizes
from gpuscaler.model.azure_names import fold_id, machine_name


async def inspect_account(
    arm: Arm,
    accounts: Sequence[Account],
    *,
    api: str = "auto",
    machines: Iterable[str] = (),
    client_ids: Collection[str] = (),
    own_client_id: str = "",
) -> Inspection:
    """Read the subscriptions of ``accounts``.

    ``machines`` are the provider ids of the cluster's nodes, ``client_ids`` the client ids of identities that its ServiceAccounts name,
    ``own_client_id`` that of gpuscaler's own.
    """
    members = _scale_sets_of(machines)
    inspection = Inspection()
    settings = [
        {
            "Subscription": account.subscription,
            "Cluster": account.cluster,
            "ClusterGroup": account.cluster_group,
            "ResourceGroups": account.resource_groups,
            "Pools": account.pools,
        }
        for account in accounts
    ]
    inspection.add(SETTINGS, settings, Api=api)
    for read in await asyncio.gather(*(_inspect_subscription(arm, account, members, client_ids) for account in accounts)):
        inspection.merge(read)
    own = next(
        (item for item in inspection.documents[IDENTITY] if fold_id(str(item["properties"]["clientId"])) == fold_id(own_client_id)), None
    )
    if own is not None:
        await asyncio.gather(*(_read_rights(arm, account, own, inspection) for account in accounts))
    return inspection


async def _read_rights(arm: Arm, account: Account, identity: Mapping[str, Any], inspection: Inspection) -> None:
    """The rights of gpuscaler's identity where ``account`` has machines; nothing if its cluster is not known."""
    clusters = [
        document
        for document in inspection.documents[CLUSTER]
        if (fold_id(document["Subscription"]), fold_id(document["ResourceGroup"]), fold_id(str(document.get("name"))))
        == (fold_id(account.subscription), fold_id(account.cluster_group), fold_id(account.cluster))
    ]
    if account.cluster_group and not clusters:
        inspection.note(RIGHT, f"it is not known where the machines of the AKS cluster {account.cluster} are")
        return
    nodes = [str(document["properties"]["nodeResourceGroup"]) for document in clusters]
    gone = {fold_id(str(missing["Name"])) for missing in inspection.documents[MISSING]}
    groups = list({fold_id(group): group for group in (*nodes, *account.resource_groups) if fold_id(group) not in gone}.values())
    scopes = list(scopes_of(account.subscription, groups, account.cluster_group, account.cluster if clusters else ""))
    await read_rights(arm, account.subscription, scopes, identity, inspection)


def _scale_sets_of(machines: Iterable[str]) -> frozenset[tuple[str, str]]:
    """(resource group, scale set) of the machines of nodes, in lower case."""
    names = (machine_name(ident) for ident in machines)
    return frozenset((fold_id(name.group), fold_id(name.scale_set)) for name in names if name is not None and name.scale_set)


async def _inspect_subscription(arm: Arm, account: Account, members: frozenset[tuple[str, str]], client_ids: Collection[str]) -> Inspection:
    inspection = Inspection()
    cluster = await _read_cluster(arm, account, inspection) if account.cluster_group else None
    node_group = cluster.node_resource_group if cluster is not None else ""
    groups = [group for group in account.resource_groups if fold_id(group) != fold_id(node_group)]
    pools, *listed = await asyncio.gather(
        read_agent_pools(arm, account, cluster, inspection),
        *(_read_scale_sets(arm, account, group, inspection, named=group != node_group) for group in filter(None, (node_group, *groups))),
    )
    scale_sets = [document for documents in listed for document in documents]
    await asyncio.gather(*(_read_machines(arm, account, group, inspection) for group in groups))
    sets = scale_set_documents(scale_sets, account, cluster, members)
    places: Places = {}
    for document in (*pools, *sets):
        if document["Location"]:
            places.setdefault((account.subscription, document["Location"]), set()).update(document["Sizes"])
    gone = {fold_id(str(missing["Group"])) for missing in inspection.documents[MISSING] if missing["Kind"] == "resource group"}
    homes = (account.cluster_group if cluster is not None else "", node_group, *(group for group in groups if fold_id(group) not in gone))
    if not any(homes):
        return inspection
    all_groups = list({fold_id(group): group for group in homes if group}.values())
    sizes, *_ = await asyncio.gather(
        read_sizes(arm, places, inspection),
        read_locks(arm, account.subscription, all_groups, inspection),
        read_autoscale_settings(arm, account.subscription, inspection) if sets else _nothing(),
        read_policies(arm, account.subscription, all_groups, inspection),
        read_identities(arm, account.subscription, client_ids, inspection) if client_ids else _nothing(),
    )
    add_machines(pools, sets, sizes)
    inspection.add(AGENT_POOL, pools)
    inspection.add(SCALE_SET, sets)
    return inspection


async def _read_cluster(arm: Arm, account: Account, inspection: Inspection) -> Cluster | None:
    path = cluster_path(account.subscription, account.cluster_group, account.cluster)
    named = {"Kind": "AKS cluster", "Name": account.cluster, "Group": account.cluster_group, "Subscription": account.subscription}
    reply = await inspection.ask(CLUSTER, path, arm.read(path, version=CONTAINERSERVICE), named=named)
    if reply is None:
        return None
    try:
        cluster = cluster_of(reply.body)
    except ReadingError as error:
        inspection.note(CLUSTER, str(error))
        return None
    body: Mapping[str, Any] = reply.body
    inspection.add(CLUSTER, [body], Subscription=cluster.subscription, ResourceGroup=cluster.group, Location=cluster.location)
    return cluster


async def _read_scale_sets(arm: Arm, account: Account, group: str, inspection: Inspection, *, named: bool) -> list[Mapping[str, Any]]:
    path = scale_set_path(account.subscription, group)
    what = {"Kind": "resource group", "Name": group, "Group": group, "Subscription": account.subscription} if named else None
    return entries_of(await inspection.ask(SCALE_SET, path, arm.pages(path, version=COMPUTE), named=what))


async def _read_machines(arm: Arm, account: Account, group: str, inspection: Inspection) -> None:
    """The virtual machines of availability sets, as acs-engine and aks-engine made them."""
    path = f"{group_path(account.subscription, group)}/providers/Microsoft.Compute/virtualMachines"
    what = {"Kind": "resource group", "Name": group, "Group": group, "Subscription": account.subscription}
    documents = entries_of(await inspection.ask(MACHINE, path, arm.pages(path, version=COMPUTE), named=what))
    for document in documents:
        properties = document.get("properties")
        if isinstance(properties, Mapping) and properties.get("availabilitySet"):
            ident = resource_id(str(document.get("id")))
            kept = {"id": document.get("id"), "name": document.get("name"), "availabilitySet": properties["availabilitySet"]}
            inspection.add(MACHINE, [kept], Subscription=account.subscription, ResourceGroup=ident.group if ident is not None else group)


async def _nothing() -> None:
    return None
