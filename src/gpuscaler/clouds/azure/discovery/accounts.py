"""Reads the parts of an account: an AKS cluster with its node resource group, and resource groups with other scale sets."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from gpuscaler.clouds.azure.api.arm import COMPUTE, CONTAINERSERVICE, Arm
from gpuscaler.clouds.azure.api.ids import agent_pool_path, cluster_path, group_path, scale_set_path
from gpuscaler.clouds.azure.discovery.ownership import agent_pool_in, decide_agent_pool, decide_scale_set, is_named
from gpuscaler.clouds.azure.discovery.pool_resources import PoolResources
from gpuscaler.clouds.azure.documents.reading import agent_pool_of, cluster_of, machine_of, scale_set_of
from gpuscaler.clouds.azure.documents.resources import Cluster, ScaleSet
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.model.aside import Skipped
from gpuscaler.model.azure_names import fold_id, pool_in_name

#: How often virtual machines of resource groups are searched for those of availability sets, in seconds.
AVAILABILITY_SETS_SECONDS: Final = 3600.0


class Account(Struct, frozen=True):
    """Where pools are in a subscription: see the keys of ``azure.subscriptions`` in the settings. Names may be in any case.

    ``cluster`` is a name for tags too; ``cluster_group`` is the resource group of the AKS cluster of that name, empty without AKS.
    """

    subscription: str
    cluster: str = ""
    cluster_group: str = ""
    resource_groups: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    exclude: tuple[str, ...] = ()


class FoundPool(NamedTuple):
    """Resources of a pool, and how it was found; it is not built yet."""

    resources: PoolResources
    source: str


class Contents(Struct, frozen=True):
    """What a part of an account holds. ``names`` are all agent pools and scale sets there, whether they are adopted or not.

    ``foreign`` are folded ids of scale sets that belong to another cluster, ``unreadable`` why documents with these names cannot be read.
    """

    found: tuple[FoundPool, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    names: tuple[str, ...] = ()
    foreign: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = {}


class ClusterPart:
    """An AKS cluster: its agent pools, and the scale sets of its node resource group."""

    def __init__(self, arm: Arm, account: Account) -> None:
        self._arm, self.account = arm, account
        self.name = f"Cluster {account.subscription}/{account.cluster_group}/{account.cluster}"
        self.advice = (
            "correct cluster in azure.subscriptions: its name, and the resource group that the cluster itself is in, not its MC_… group"
        )

    async def read(self) -> Contents:
        """Its contents now. Raises CloudError, and ReadingError if the cluster cannot be read."""
        account = self.account
        path = cluster_path(account.subscription, account.cluster_group, account.cluster)
        cluster = cluster_of((await self._arm.read(path, version=CONTAINERSERVICE)).body)
        documents, listed = await asyncio.gather(
            self._arm.pages(agent_pool_path(account.subscription, account.cluster_group, account.cluster), version=CONTAINERSERVICE),
            self._arm.pages(scale_set_path(account.subscription, cluster.node_resource_group), version=COMPUTE),
        )
        set_aside = list(_cluster_notes(cluster, self.name))
        scale_sets, unreadable = scale_sets_in(listed)
        unreadable_sets = _skipped_sets(unreadable, cluster.node_resource_group)
        by_pool = {fold_id(agent_pool_in(scale_set)): scale_set for scale_set in scale_sets}
        found, names = [], []
        for document in documents:
            name = name_of(document)
            names.append(name)
            try:
                agent_pool = agent_pool_of(document, cluster)
            except ReadingError as error:
                set_aside.append(skipped_pool(cluster.name, name, str(error)))
                unreadable[name] = str(error)
                continue
            scale_set = by_pool.pop(fold_id(name), None)
            tags = {**agent_pool.tags, **(scale_set.tags if scale_set is not None else {})}
            ownership = decide_agent_pool(name, tags, named=account.pools, exclude=account.exclude)
            if ownership.reason:
                set_aside.append(skipped_pool(cluster.name, name, ownership.reason))
            else:
                found.append(FoundPool(PoolResources(scale_set, agent_pool, cluster), ownership.source))
        own = _own_scale_sets(account, [scale_set for scale_set in scale_sets if not agent_pool_in(scale_set)])
        set_aside += [*own.set_aside, *unreadable_sets]
        return Contents((*found, *own.found), tuple(set_aside), (*names, *own.names), own.foreign, unreadable)


class GroupPart:
    """A resource group with scale sets that AKS does not manage. ``now`` is the wall clock."""

    def __init__(self, arm: Arm, account: Account, group: str, *, now: Callable[[], float]) -> None:
        self._arm, self.account, self._group, self._now = arm, account, group, now
        self.name = f"ResourceGroup {account.subscription}/{group}"
        self.advice = "correct resource_groups in azure.subscriptions"
        self._availability_sets: tuple[Skipped, ...] = ()
        self._searched_at: float | None = None

    async def read(self) -> Contents:
        """Its contents now. Raises CloudError."""
        account = self.account
        listed, _ = await asyncio.gather(
            self._arm.pages(scale_set_path(account.subscription, self._group), version=COMPUTE), self._search_availability_sets()
        )
        scale_sets, unreadable = scale_sets_in(listed)
        managed = [scale_set for scale_set in scale_sets if agent_pool_in(scale_set)]
        skipped = [
            skipped_set(scale_set, "AKS manages it; name its cluster, and the agent pool, in azure.subscriptions")
            for scale_set in managed
            if is_named(scale_set.name, account.pools)
        ]
        own = _own_scale_sets(account, [scale_set for scale_set in scale_sets if scale_set not in managed])
        set_aside = (*skipped, *own.set_aside, *_skipped_sets(unreadable, self._group), *self._availability_sets)
        names = (*own.names, *(scale_set.name for scale_set in managed), *unreadable)
        return Contents(own.found, set_aside, names, own.foreign, unreadable)

    async def _search_availability_sets(self) -> None:
        """Look for machines of availability sets, as acs-engine and aks-engine made them. They are reported, and never scaled."""
        if self._searched_at is not None and self._now() < self._searched_at + AVAILABILITY_SETS_SECONDS:
            return
        path = f"{group_path(self.account.subscription, self._group)}/providers/Microsoft.Compute/virtualMachines"
        try:
            documents = await self._arm.pages(path, version=COMPUTE)
        except CloudError:
            # The list of scale sets, which is what matters, is read on its own.
            return
        self._searched_at = self._now()
        self._availability_sets = availability_sets_in(documents, self._group)


def _own_scale_sets(account: Account, scale_sets: Sequence[ScaleSet]) -> Contents:
    """The scale sets that AKS does not manage, by their tags."""
    found, set_aside, foreign = [], [], set()
    for scale_set in scale_sets:
        ownership = decide_scale_set(
            scale_set.name,
            scale_set.tags,
            cluster=account.cluster,
            named=account.pools,
            extra=account.tags,
            exclude=account.exclude,
        )
        if ownership.foreign:
            foreign.add(fold_id(scale_set.id))
        if ownership.reason:
            set_aside.append(skipped_set(scale_set, ownership.reason))
        elif ownership.source:
            found.append(FoundPool(PoolResources(scale_set), ownership.source))
    return Contents(tuple(found), tuple(set_aside), tuple(scale_set.name for scale_set in scale_sets), frozenset(foreign))


def scale_sets_in(documents: Iterable[object]) -> tuple[list[ScaleSet], dict[str, str]]:
    """(the scale sets, reasons why others cannot be read, by name)."""
    scale_sets, unreadable = [], {}
    for document in documents:
        try:
            scale_sets.append(scale_set_of(document))
        except ReadingError as error:
            unreadable[name_of(document)] = str(error)
    return scale_sets, unreadable


def availability_sets_in(documents: Iterable[object], group: str) -> tuple[Skipped, ...]:
    """Pools of acs-engine and aks-engine whose machines, in the list ``documents``, are in availability sets."""
    counts: dict[str, int] = {}
    for document in documents:
        try:
            machine = machine_of(document)
        except ReadingError:
            continue
        if machine.availability_set_id and (pool := pool_in_name(machine.name)):
            counts[pool] = counts.get(pool, 0) + 1
    return tuple(
        Skipped(
            f"AvailabilitySet {group}/{pool}",
            f"saw {count} machines of pool {pool} in an availability set, as acs-engine and aks-engine made them, expected a scale "
            "set: they are only scaled by deploying the cluster's template again; make the pool again as a scale set",
        )
        for pool, count in sorted(counts.items())
    )


def _cluster_notes(cluster: Cluster, name: str) -> Iterable[Skipped]:
    if cluster.provisions_nodes:
        yield Skipped(
            name,
            "saw nodeProvisioningProfile.mode Auto, expected Manual: node auto-provisioning buys machines for the same pending pods; "
            "switch it off, or limit its NodePools to pods that gpuscaler's pools do not take",
        )


def name_of(document: object) -> str:
    """The name in a document that may be unreadable."""
    name = document.get("name") if isinstance(document, Mapping) else None
    return name if isinstance(name, str) and name else "without a name"


def skipped_pool(cluster: str, name: str, reason: str) -> Skipped:
    return Skipped(f"AgentPool {cluster}/{name}", reason)


def _skipped_sets(unreadable: Mapping[str, str], group: str) -> tuple[Skipped, ...]:
    return tuple(Skipped(f"ScaleSet {group}/{name}", reason) for name, reason in unreadable.items())


def skipped_set(scale_set: ScaleSet, reason: str) -> Skipped:
    return Skipped(f"ScaleSet {scale_set.group}/{scale_set.name}", reason)


def skipped_resources(resources: PoolResources, reason: str) -> Skipped:
    """Why the pool of these resources is not used."""
    if resources.agent_pool is not None:
        return skipped_pool(resources.agent_pool.cluster, resources.agent_pool.name, reason)
    assert resources.scale_set is not None
    return skipped_set(resources.scale_set, reason)
