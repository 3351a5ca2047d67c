"""Lists of machines that are read again only where something may have changed.

Listing the machines of a scale set is one of Azure's expensive reads; the scale sets of a resource group are listed in one call. So the
scale sets are listed each time, and the machines of those whose ETag, capacity or state changed, in which machines come or go, or whose
list is old.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gpuscaler.clouds.azure.api.arm import COMPUTE, CONTAINERSERVICE, Arm, GoneError
from gpuscaler.clouds.azure.api.ids import agent_pool_path, scale_set_path
from gpuscaler.clouds.azure.buying.groups import is_busy, list_machines, list_pool_machines
from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.documents.reading import agent_pool_of, scale_set_of
from gpuscaler.clouds.azure.documents.resources import AgentPool, Cluster, ScaleSet, VirtualMachine, is_word
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.azure.machines.listing import has_come, is_leaving
from gpuscaler.model.azure_names import fold_id

#: How long a list of machines is used while its scale set shows no change, in seconds: Cluster Autoscaler's is as old.
OLDEST_LIST: Final = 300.0
#: How often the groups are usually read, in seconds; less often while Azure's limits leave little.
USUAL_SECONDS: Final = 10.0
_SETTLED: Final = ("succeeded", "failed", "")
#: Codes of resource groups and clusters that do not exist; others may be about rights.
_DELETED: Final = ("resourcegroupnotfound", "resourcenotfound")


class PoolMachines(Struct, frozen=True):
    """The machines of a pool, read at ``at``, with the ``capacity`` and ``etag`` of the group; ``busy`` while an operation runs in it."""

    at: float
    capacity: int
    etag: str
    busy: bool
    machines: tuple[VirtualMachine, ...] = ()

    @property
    def missing(self) -> int:
        """How many machines are still coming. When nothing runs, a number without machines brings none."""
        return max(0, self.capacity - sum(has_come(machine) and not is_leaving(machine) for machine in self.machines)) if self.busy else 0

    @property
    def changes(self) -> bool:
        """Whether machines come or go."""
        return self.busy or any(not is_settled(machine) for machine in self.machines)


class _GroupState(Struct, frozen=True):
    capacity: int
    etag: str
    busy: bool


def is_settled(machine: VirtualMachine) -> bool:
    """Whether a machine's state is final."""
    return machine.state.lower() in _SETTLED and machine.power in ("", "running", "deallocated", "stopped")


class MachineLists:
    """The machines of all pools, as of the last :meth:`refresh`. ``now`` is the wall clock."""

    def __init__(self, arm: Arm, *, now: Callable[[], float]) -> None:
        self._arm, self._now = arm, now
        self._lists: dict[str, PoolMachines] = {}
        #: When the groups were last read.
        self.read_at = float("-inf")

    async def refresh(self, azure_pools: Mapping[str, AzurePool], watched: Collection[str] = ()) -> Mapping[str, PoolMachines]:
        """Current machines by pool; ``watched`` are folded paths of groups whose machines are listed again. Raises CloudError."""
        now, stretch = self._now(), self._arm.budget.stretch()
        if stretch > 1.0 and now < self.read_at + USUAL_SECONDS * stretch and self._lists.keys() == azure_pools.keys() and not watched:
            return self._lists
        states = await self._read_states(azure_pools.values())
        read = {
            name: state
            for name, azure_pool in azure_pools.items()
            if self._is_due(name, state := states.get(azure_pool.id, _GroupState(0, "", busy=False)), azure_pool, watched)
        }
        lists = await asyncio.gather(*(self._list(name, azure_pools[name], state) for name, state in read.items()))
        self._lists = {name: known for name, known in self._lists.items() if name in azure_pools} | dict(zip(read, lists, strict=True))
        self.read_at = now
        return self._lists

    def _is_due(self, name: str, state: _GroupState, azure_pool: AzurePool, watched: Collection[str]) -> bool:
        known = self._lists.get(name)
        if known is None or known.changes or state.busy or (known.capacity, known.etag) != (state.capacity, state.etag):
            return True
        return not watched_paths(azure_pool).isdisjoint(watched) or self._now() >= known.at + OLDEST_LIST * self._arm.budget.stretch()

    async def _list(self, name: str, azure_pool: AzurePool, state: _GroupState) -> PoolMachines:
        """The machines of a pool; one that is set to none, and was not listed before, is not asked for."""
        at = self._now()
        if not state.capacity and not state.busy and name not in self._lists:
            return PoolMachines(at, 0, state.etag, busy=False)
        try:
            machines = await self._machines(azure_pool)
        except GoneError:
            # The group was deleted since the pools were read.
            machines = ()
        return PoolMachines(at, state.capacity, state.etag, state.busy, tuple(machine for machine in machines if machine.id))

    async def _machines(self, azure_pool: AzurePool) -> Sequence[VirtualMachine]:
        if azure_pool.scale_set is not None:
            return await list_machines(self._arm, azure_pool.scale_set)
        return await list_pool_machines(self._arm, azure_pool)

    async def _read_states(self, azure_pools: Iterable[AzurePool]) -> dict[str, _GroupState]:
        """Number, ETag and state of each group, by the id of its pool."""
        scale_sets: dict[tuple[str, str], list[AzurePool]] = {}
        clusters: dict[tuple[str, str, str], list[AzurePool]] = {}
        for azure_pool in azure_pools:
            if (scale_set := azure_pool.scale_set) is not None:
                scale_sets.setdefault((fold_id(scale_set.subscription), fold_id(scale_set.group)), []).append(azure_pool)
            elif (agent_pool := azure_pool.agent_pool) is not None:
                clusters.setdefault((agent_pool.subscription, agent_pool.group, agent_pool.cluster), []).append(azure_pool)
        parts = await asyncio.gather(
            *(self._scale_set_states(*place, pools) for place, pools in scale_sets.items()),
            *(self._agent_pool_states(*place, pools) for place, pools in clusters.items()),
        )
        return {ident: state for part in parts for ident, state in part.items()}

    async def _documents(self, path: str, version: str) -> Sequence[object]:
        """The groups in a resource group or cluster, none if that was deleted since the pools were read."""
        try:
            return await self._arm.pages(path, version=version)
        except GoneError as error:
            if error.failure.code.lower() not in _DELETED:
                raise
            return ()

    async def _scale_set_states(self, subscription: str, group: str, azure_pools: Iterable[AzurePool]) -> dict[str, _GroupState]:
        documents = await self._documents(scale_set_path(subscription, group), COMPUTE)
        found = {fold_id(scale_set.id): scale_set for document in documents if (scale_set := _scale_set(document)) is not None}
        states = {}
        for azure_pool in azure_pools:
            own = azure_pool.scale_set
            if own is not None and (fresh := found.get(fold_id(own.id))) is not None:
                states[azure_pool.id] = _GroupState(fresh.capacity, fresh.etag, busy=is_busy(fresh.state))
        return states

    async def _agent_pool_states(
        self, subscription: str, group: str, cluster: str, azure_pools: Iterable[AzurePool]
    ) -> dict[str, _GroupState]:
        documents = await self._documents(agent_pool_path(subscription, group, cluster), CONTAINERSERVICE)
        place = Cluster("", subscription, group, cluster, "", "")
        found = {fold_id(pool.name): pool for document in documents if (pool := _agent_pool(document, place)) is not None}
        states = {}
        for azure_pool in azure_pools:
            own = azure_pool.agent_pool
            if own is not None and (fresh := found.get(fold_id(own.name))) is not None:
                states[azure_pool.id] = _GroupState(fresh.count, fresh.etag, busy=is_busy(fresh.state))
        return states


def watched_paths(azure_pool: AzurePool) -> frozenset[str]:
    """The folded paths by which buying knows the pool's groups."""
    paths = set()
    if (scale_set := azure_pool.scale_set) is not None:
        paths.add(fold_id(scale_set_path(scale_set.subscription, scale_set.group, scale_set.name)))
    if (agent_pool := azure_pool.agent_pool) is not None:
        paths.add(fold_id(agent_pool_path(agent_pool.subscription, agent_pool.group, agent_pool.cluster, agent_pool.name)))
    return frozenset(paths)


def _scale_set(document: object) -> ScaleSet | None:
    try:
        return scale_set_of(document)
    except ReadingError:
        return None


def _agent_pool(document: object, cluster: Cluster) -> AgentPool | None:
    try:
        pool = agent_pool_of(document, cluster)
    except ReadingError:
        return None
    return pool if not is_word(pool.kind, "AvailabilitySet") else None
