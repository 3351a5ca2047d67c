"""An index of nodes and of the cloud's list, computed once for all callers.

In most passes neither has changed, so results are cached as long as the nodes and the list are the same objects. The cache does not change
results, only how often they are computed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct

from gpuscaler.lifecycle.observed.live_nodes import LiveNodes
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import ALIVE, STOPPING, TERMINATED, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import POOL_LABEL
from gpuscaler.planning.capacity.idle import busy_until

T = TypeVar("T")


class Listed:
    """The machines of a cloud's list, by id; empty if there is no list."""

    def __init__(self, instances: tuple[Instance, ...] | None) -> None:
        self.instances = instances
        self.by_id: Mapping[str, Instance] = {instance.id: instance for instance in instances or ()}
        self.alive: Mapping[str, Instance] = {name: instance for name, instance in self.by_id.items() if instance.state in ALIVE}
        #: The end of machines whose end is known.
        self.ends: Mapping[str, float] = {name: instance.ends for name, instance in self.by_id.items() if instance.ends}
        #: Machines that are listed as terminated.
        self.over: Mapping[str, Instance] = {name: instance for name, instance in self.by_id.items() if instance.state == TERMINATED}
        #: Machines that gpuscaler has protected from scale-in while it lowered the desired capacity of their group.
        self.guarded: tuple[Instance, ...] = tuple(instance for instance in self.by_id.values() if instance.guarded and instance.protected)
        #: Machines that their cloud is ending by itself.
        self.ended: tuple[Instance, ...] = tuple(
            instance for instance in self.by_id.values() if instance.cause and instance.state == STOPPING
        )
        #: Machines that their group gave up during their start.
        self.given_up: tuple[Instance, ...] = tuple(
            instance for instance in self.by_id.values() if instance.doubt and instance.state == STOPPING
        )

    @cached_property
    def by_pool(self) -> Mapping[str, tuple[Instance, ...]]:
        """Return the machines that are alive, by the names of their pools."""
        instances: dict[str, list[Instance]] = {}
        for instance in self.alive.values():
            instances.setdefault(instance.pool, []).append(instance)
        return {name: tuple(machines) for name, machines in instances.items()}


class Unpooled(Struct, frozen=True, gc=False):
    """Listed machines of this cluster whose pool is not configured: how many, and the id of one, ``machine``."""

    pool: str
    machine: str
    machines: int


class MachineIndex:
    """An index of the nodes, and of the machines that are ``listed``."""

    def __init__(self, nodes: Mapping[str, Node], listed: Listed) -> None:
        self.nodes = nodes
        self.listed = listed

    def unpooled(self, policy: Policy, released_pools: Iterable[str] = ()) -> tuple[Unpooled, ...]:
        """Return machines listed for pools that are neither in ``policy`` nor in ``released_pools``, in the order of these pools."""
        pools = {pool.name for pool in policy.pools}.union(released_pools)
        unknown_pools = sorted(self.listed.by_pool.keys() - pools)
        return tuple(Unpooled(pool, self.listed.by_pool[pool][0].id, len(self.listed.by_pool[pool])) for pool in unknown_pools)

    @classmethod
    def of(cls, cluster: Cluster, inventory: Inventory | None) -> "MachineIndex":
        return cls(cluster.nodes, Listed(None if inventory is None else inventory.instances))

    @cached_property
    def by_machine(self) -> Mapping[str, tuple[Node, ...]]:
        """Return the nodes by the ids of their machines. Sometimes several nodes have the same provider ID."""
        nodes: dict[str, tuple[Node, ...]] = {}
        for node in self.nodes.values():
            if node.provider_id:
                nodes[node.provider_id] = (*nodes[node.provider_id], node) if node.provider_id in nodes else (node,)
        return nodes

    @cached_property
    def unnamed(self) -> Mapping[str, Node]:
        """Return the nodes without a provider ID."""
        return {name: node for name, node in self.nodes.items() if not node.provider_id}

    @cached_property
    def unready(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes.values() if not node.ready)

    @cached_property
    def announcing(self) -> tuple[Node, ...]:
        """Return the nodes with a scheduled event of their machine."""
        return tuple(node for node in self.nodes.values() if node.scheduled_event is not None and node.provider_id)

    @cached_property
    def unlisted(self) -> frozenset[str]:
        """Return the nodes that must not be touched, whatever labels they have: their machines are not on the list.

        Before the cloud has listed its machines, these are all nodes but those of machines that are known from an order or an earlier list.
        """
        if self.listed.instances is None:
            return frozenset(name for name, node in self.nodes.items() if node.bought is None)
        instances = self.listed.by_id
        return frozenset(name for name, node in self.nodes.items() if node.provider_id not in instances)

    def outside(self, younger_than: float) -> frozenset[str]:
        """Return the nodes that belong to no pool: their machines are not on the list, or are listed as terminated.

        Nodes created after ``younger_than`` are left out if the ledger has their machine, because the next list may have it. Before there
        is a list, nodes with the pool label are left out, too: they are not touched, but count as machines of that pool. Otherwise more
        than the limits allow could be bought after a restart.
        """
        if self.listed.instances is None:
            return frozenset(name for name in self.unlisted if POOL_LABEL not in self.nodes[name].labels)
        late = {name for name in self.unlisted if self.nodes[name].bought is not None and self.nodes[name].created > younger_than}
        return (self.unlisted - late) | self._over

    @cached_property
    def _over(self) -> frozenset[str]:
        """Return nodes whose machines have ended and that are not Ready."""
        over = self.listed.over
        return frozenset(node.name for name in over for node in self.by_machine.get(name, ()) if not node.ready) if over else frozenset()

    @cached_property
    def foreign(self) -> frozenset[str]:
        """Return the machines of nodes that are :attr:`unlisted`."""
        return frozenset(self.nodes[name].provider_id for name in self.unlisted)

    @cached_property
    def nodeless(self) -> tuple[Instance, ...]:
        """Return machines that are alive and have no node, in the order of the list."""
        return tuple(instance for name, instance in self.listed.alive.items() if name not in self.by_machine)


class MachineIndexes:
    """The latest index, and the idle nodes. Only what has changed is recomputed.

    ``live_nodes`` also remembers the labels and taints that nodes had before people changed them.
    """

    def __init__(self) -> None:
        self.live_nodes = LiveNodes()
        self._latest: MachineIndex | None = None
        self._on_node: Mapping[str, Mapping[str, Pod]] = {}
        #: Nodes that are busy without a known end, and for other nodes with pods the time until which they are busy.
        self._busy: set[str] = set()
        self._ending: dict[str, float] = {}
        self._answers: dict[Callable[..., Any], tuple[tuple[object, ...], Any]] = {}

    def cached(self, ask: Callable[..., T], *about: object) -> T:
        """Return ``ask(*about)``. The function must have no other inputs: it is called again only if one of ``about`` is another object."""
        cached = self._answers.get(ask)
        if cached is None or any(before is not other for before, other in zip(cached[0], about, strict=True)):
            cached = self._answers[ask] = about, ask(*about)
        answer: T = cached[1]
        return answer

    def of(self, cluster: Cluster, inventory: Inventory | None) -> MachineIndex:
        index, instances = self._latest, None if inventory is None else inventory.instances
        if index is None or index.nodes is not cluster.nodes or index.listed.instances is not instances:
            listed = index.listed if index is not None and index.listed.instances is instances else Listed(instances)
            index = self._latest = MachineIndex(cluster.nodes, listed)
        return index

    def idle(self, cluster: Cluster, now: float) -> Set[str]:
        """Return the names of the idle nodes; ``now`` is in seconds since the epoch."""
        before, pods_on = self._on_node, cluster.on_node
        if before is not pods_on:
            self._note(before.keys() - pods_on.keys(), {})
            self._note([name for name, pods in pods_on.items() if before.get(name) is not pods], pods_on)
            self._on_node = pods_on
        return cluster.nodes.keys() - self._busy - {name for name, until in self._ending.items() if now <= until}

    def _note(self, changed: Iterable[str], pods_on: Mapping[str, Mapping[str, Pod]]) -> None:
        for name in changed:
            self._busy.discard(name)
            self._ending.pop(name, None)
            until = busy_until(pods_on.get(name, {}).values())
            if until == math.inf:
                self._busy.add(name)
            elif until > -math.inf:
                self._ending[name] = until
