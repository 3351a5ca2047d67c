"""The capacity of the cluster for planning: existing nodes, and ordered machines as the nodes they will become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import Mask, NodeTable
from gpuscaler.planning.capacity.limits import Fleet, LimitUsage, fleets, limit_usage
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import Member, Membership
from gpuscaler.planning.capacity.upcoming import Promised, upcoming_nodes
from gpuscaler.planning.feasibility.min_gpus import UNKEPT, MinGpus, Minimum, Minimums, SizeOf, requested_size
from gpuscaler.planning.feasibility.snapshot import Room, Rows
from gpuscaler.planning.state import State


class NodePools(NamedTuple):
    """The pool of each node by its name, the amounts that it counts for under limits, and the size that it asks of its pods.

    ``minimums`` is empty if no pool keeps its machines closed.
    """

    members: Mapping[str, Member]
    usages: Mapping[str, LimitUsage]
    minimums: Mapping[str, Minimum]


@dataclass(frozen=True)
class NodeInventory:
    """The part of a snapshot that changes only with the nodes and the ordered machines.

    ``node_pools`` has the pool of each node that is not ``unlisted``. ``coming`` has the nodes that upcoming machines will become, by
    machine id; ``registered`` the ids of those whose Node exists, by node name; ``pools`` the pools of upcoming machines, by id.
    ``rows`` are the nodes, then the other machines; ``usable`` flags rows that take new pods; ``names`` has the name of each row in
    plans.
    """

    nodes: Mapping[str, Node]
    node_pools: NodePools
    coming: Mapping[str, Node]
    registered: Mapping[str, str]
    pools: Mapping[str, Member]
    rows: Rows
    usable: Mask
    names: tuple[str, ...]
    unlisted: frozenset[str] = frozenset()

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Rows by node names and by their names in plans."""
        if not self.coming:
            return self.rows.table.row
        return {**self.rows.table.row, **{name: row for row, name in enumerate(self.names)}}


@dataclass(frozen=True)
class CapacitySnapshot:
    """The capacity at one moment.

    ``open_rows`` flags rows that count as capacity. ``have`` has the machines of each pool; it is empty where no limit and no minimum
    needs it.
    """

    inventory: NodeInventory
    room: Room
    open_rows: Mask
    have: Mapping[str, Fleet]
    warnings: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.inventory.names

    @property
    def row_of(self) -> Mapping[str, int]:
        return self.inventory.row_of

    @property
    def by_node(self) -> Mapping[str, Member]:
        return self.inventory.node_pools.members

    @property
    def members(self) -> Mapping[int, Member]:
        """The pool of each row that has one."""
        of = {**self.by_node, **self.inventory.pools}
        return {row: of[name] for row, name in enumerate(self.names) if name in of}


class CapacityBuilder:
    """Builds one snapshot after another for one policy; the :class:`NodeInventory` is reused as long as the nodes are the same objects."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._membership = Membership(policy)
        self._pools = {pool.name: pool for pool in policy.pools}
        self._keeping = Minimums(policy.pools) if any(pool.keeps_closed for pool in policy.pools) else None
        limits = (policy.limits.machines, policy.limits.gpus, policy.limits.dollars_per_hour, *(pool.max for pool in policy.pools))
        spares = any(pool.min or pool.spare.machines or pool.spare.gpus for pool in policy.pools)
        self._counting = spares or any(limit is not None for limit in limits)
        self._offerings = policy.offerings
        self._promised: dict[str, Promised] = {}
        self._inventory: NodeInventory | None = None
        self._fleets: tuple[Mapping[str, LimitUsage], object, Mapping[str, Fleet]] | None = None
        self._behind: tuple[Templates, Rows] | None = None
        self._wide: tuple[Rows, Rows] | None = None

    def build(self, cluster: Cluster, state: State, size_of: SizeOf = requested_size) -> CapacitySnapshot:
        """Return rows for nodes and upcoming machines. A registered machine of the ledger is one row, as its offering promises (I3).

        ``size_of`` gives the size of a pod where it is compared with the minimum of a machine.
        """
        coming, warnings = upcoming_nodes(cluster, self._offerings, state, self._promised)
        registered = {m.node: m.id for m in state.upcoming if m.id in coming and m.node in cluster.nodes}
        pools = {m.id: Member(self._pools[m.pool], None) for m in state.upcoming if m.id in coming}
        inventory = self._inventory
        if (
            inventory is None
            or inventory.nodes is not cluster.nodes
            or (inventory.rows.min_gpus is not None and inventory.rows.min_gpus.size_of is not size_of)
            or (inventory.coming, inventory.registered, inventory.pools, inventory.unlisted) != (coming, registered, pools, state.unlisted)
        ):
            node_pools = self._node_pools(cluster.nodes, state.unlisted)
            minimums = None
            if self._keeping is not None:
                of_coming = {m.id: self._keeping.on(m.pool, m.instance_type, 0) for m in state.upcoming if m.id in coming}
                minimums = {**node_pools.minimums, **of_coming}
            inventory = build_inventory(cluster, node_pools, coming, registered, pools, minimums=minimums, size_of=size_of)
            inventory = self._inventory = replace(inventory, unlisted=state.unlisted)
        else:
            inventory.rows.forget()
        return CapacitySnapshot(
            inventory=inventory,
            room=Room(cluster, inventory.rows),
            open_rows=mask_without(
                inventory.usable, [inventory.rows.table.row[name] for name in state.disrupting if name in cluster.nodes]
            ),
            have=self._have(state, inventory),
            warnings=tuple(warnings),
        )

    def _node_pools(self, nodes: Mapping[str, Node], unlisted: frozenset[str]) -> NodePools:
        """The pool of every node, computed again for nodes that changed or that the cloud's list has lost or gained."""
        inventory = self._inventory
        if inventory is not None and inventory.nodes is nodes and inventory.unlisted == unlisted:
            return inventory.node_pools
        before, node_pools = (inventory.nodes, inventory.node_pools) if inventory is not None else ({}, NodePools({}, {}, {}))
        by_node, usages, minimums = dict(node_pools.members), dict(node_pools.usages), dict(node_pools.minimums)
        moved = unlisted ^ (inventory.unlisted if inventory is not None else frozenset())
        changed = {name: node for name, node in nodes.items() if before.get(name) is not node or name in moved}
        for name in (before.keys() - nodes.keys()) | changed.keys():
            by_node.pop(name, None)
            usages.pop(name, None)
            minimums.pop(name, None)
        fresh = self._membership.of(changed, unlisted)
        by_node.update(fresh)
        usages.update({name: limit_usage(nodes[name], member) for name, member in fresh.items()})
        if self._keeping is not None:
            for name, member in fresh.items():
                instance_type = member.offering.instance_type if member.offering is not None else ""
                minimums[name] = self._keeping.on(member.pool.name, instance_type, usages[name].gpus)
        return NodePools(by_node, usages, minimums)

    def _have(self, state: State, inventory: NodeInventory) -> Mapping[str, Fleet]:
        if not self._counting:
            return {}
        cached, usages = self._fleets, inventory.node_pools.usages
        others = (state.upcoming, state.ending)
        if cached is None or cached[0] is not usages or cached[1] != others:
            cached = self._fleets = (usages, others, fleets(self._policy, self._offerings, state, usages))
        return cached[2]

    def with_templates(self, capacity: CapacitySnapshot, templates: Templates) -> Room:
        """The room of a snapshot with ``templates`` appended as rows with boundless resources."""
        rows = capacity.inventory.rows
        behind = self._behind if self._behind is not None and self._behind[0] is templates else None
        if behind is None:
            behind = self._behind = (templates, Rows(NodeTable(templates.boundless), templates.min_gpus))
            self._wide = None
        else:
            behind[1].forget()
        if self._wide is None or self._wide[0] is not rows:
            self._wide = (rows, rows.joined(behind[1]))
        else:
            self._wide[1].forget()
        return capacity.room.over_more(self._wide[1])


def build_inventory(
    cluster: Cluster,
    node_pools: NodePools,
    coming: Mapping[str, Node],
    registered: Mapping[str, str],
    pools: Mapping[str, Member],
    *,
    minimums: Mapping[str, Minimum] | None,
    size_of: SizeOf,
) -> NodeInventory:
    """Build a :class:`NodeInventory`.

    ``minimums`` are those of kept nodes and upcoming machines; None if no pool keeps its machines closed.
    """
    table = cluster.table
    if registered:
        table = table.followed_by([coming[registered[node.name]] if node.name in registered else node for node in table.nodes])
    names = tuple(registered.get(name, name) for name in table.names)
    ready = [is_usable(node) for node in table.nodes]
    waiting = [machine_id for machine_id in coming if machine_id not in registered.values()]
    if waiting:
        table = table.extended([coming[machine_id] for machine_id in waiting])
    ready += [True] * len(waiting)
    names += tuple(waiting)
    min_gpus = None if minimums is None else MinGpus.of([minimums.get(name, UNKEPT) for name in names], size_of)
    usable = np.array(ready, dtype=np.bool_)
    return NodeInventory(cluster.nodes, node_pools, coming, registered, pools, Rows(table, min_gpus), usable, names)


def is_usable(node: Node) -> bool:
    """Whether a node is ready and not being deleted."""
    return node.ready and not node.deleted


def mask_without(mask: Mask, rows: Sequence[int]) -> Mask:
    """A copy of ``mask`` that is False on ``rows``."""
    mask = mask.copy()
    mask[list(rows)] = False
    return mask
