"""The cluster as planning counts it: nodes as they are, machines on their way as they will be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import Mask, NodeTable
from gpuscaler.planning.keeping import least_gpus
from gpuscaler.planning.limits import Fleet, fleets
from gpuscaler.planning.membership import Member, members
from gpuscaler.planning.room import Room, Rows
from gpuscaler.planning.state import State, Upcoming
from gpuscaler.planning.templates import Templates
from gpuscaler.planning.upcoming import Promised, arriving


@dataclass(frozen=True)
class Stand:
    """What of a picture only changes with the nodes and the machines on their way.

    ``by_node`` tells the pool of each node, ``coming`` the nodes that upcoming machines will be, by machine id, ``registered`` the id of
    those whose Node exists, by its name, ``pools`` the pools of upcoming machines, by id. ``rows`` are the nodes, then the other machines;
    ``standing`` flags those that are there for new pods, and ``names`` says what each is called in a plan.
    """

    nodes: Mapping[str, Node]
    by_node: Mapping[str, Member]
    coming: Mapping[str, Node]
    registered: Mapping[str, str]
    pools: Mapping[str, Member]
    rows: Rows
    standing: Mask
    names: tuple[str, ...]

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Rows by the names of nodes and by those in plans."""
        if not self.coming:
            return self.rows.table.row
        return {**self.rows.table.row, **{name: row for row, name in enumerate(self.names)}}


@dataclass(frozen=True)
class Picture:
    """``open_rows`` flags rows that count as capacity; ``have`` is what each pool has."""

    stand: Stand
    room: Room
    open_rows: Mask
    have: Mapping[str, Fleet]
    warnings: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.stand.names

    @property
    def row_of(self) -> Mapping[str, int]:
        return self.stand.row_of

    @property
    def by_node(self) -> Mapping[str, Member]:
        return self.stand.by_node

    @property
    def members(self) -> Mapping[int, Member]:
        """The pool of each row that has one."""
        of = {**self.by_node, **self.stand.pools}
        return {row: of[name] for row, name in enumerate(self.names) if name in of}


class Pictures:
    """Pictures for one policy, for callers that need one after the other: what stands is kept while the very same nodes stand."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._pools = {pool.name: pool for pool in policy.pools}
        self._keeping = any(pool.min_gpus_per_pod for pool in policy.pools)
        self._offerings = {offering.key: offering for pool in policy.pools for offering in pool.offerings}
        self._promised: dict[str, Promised] = {}
        self._stand: Stand | None = None
        self._fleets: tuple[Mapping[str, Node], tuple[Upcoming, ...], Mapping[str, Fleet]] | None = None
        self._wide: tuple[Rows, Templates, Rows] | None = None

    def of(self, cluster: Cluster, state: State) -> Picture:
        """Rows for nodes and upcoming machines. A registered machine of the ledger is one row, as its offering promises (I3)."""
        coming, warnings = arriving(cluster, self._offerings, state, self._promised)
        registered = {m.node: m.id for m in state.upcoming if m.id in coming and m.node in cluster.nodes}
        pools = {m.id: Member(self._pools[m.pool], None) for m in state.upcoming if m.id in coming}
        stand = self._stand
        if (
            stand is None
            or stand.nodes is not cluster.nodes
            or (stand.coming, stand.registered, stand.pools) != (coming, registered, pools)
        ):
            stand = self._stand = standing(cluster, self._members(cluster.nodes), coming, registered, pools, keeping=self._keeping)
        else:
            stand.rows.forget()
        return Picture(
            stand=stand,
            room=Room.over(cluster, stand.rows),
            open_rows=without(stand.standing, [stand.rows.table.row[name] for name in state.disrupting if name in cluster.nodes]),
            have=self._have(cluster, state, stand.by_node),
            warnings=tuple(warnings),
        )

    def _members(self, nodes: Mapping[str, Node]) -> Mapping[str, Member]:
        """The pool of every node, found anew for those that changed."""
        if self._stand is None or self._stand.nodes is nodes:
            return self._stand.by_node if self._stand is not None else members(nodes, self._policy)
        before, known = self._stand.nodes, self._stand.by_node
        fresh = members({name: node for name, node in nodes.items() if before.get(name) is not node}, self._policy)
        kept = {name: member for name, member in known.items() if nodes.get(name) is before[name]}
        return kept | fresh

    def _have(self, cluster: Cluster, state: State, by_node: Mapping[str, Member]) -> Mapping[str, Fleet]:
        known = self._fleets
        if known is None or known[0] is not cluster.nodes or known[1] != state.upcoming:
            known = self._fleets = (cluster.nodes, state.upcoming, fleets(cluster, self._policy, state, by_node))
        return known[2]

    def with_templates(self, seen: Picture, templates: Templates) -> Room:
        """The room of a picture with ``templates`` as rows behind the machines, boundless."""
        rows, wide = seen.stand.rows, self._wide
        if wide is None or wide[0] is not rows or wide[1] is not templates:
            wide = self._wide = (rows, templates, rows.extended(templates.boundless, templates.least_gpus))
        else:
            wide[2].forget()
        return seen.room.over_more(wide[2])


def standing(
    cluster: Cluster,
    by_node: Mapping[str, Member],
    coming: Mapping[str, Node],
    registered: Mapping[str, str],
    pools: Mapping[str, Member],
    *,
    keeping: bool,
) -> Stand:
    """What stands; ``keeping`` says that some pool keeps its machines for large pods."""
    table = cluster.table
    if registered:
        table = NodeTable([coming[registered[node.name]] if node.name in registered else node for node in table.nodes])
    names = tuple(registered.get(name, name) for name in table.names)
    ready = [is_standing(node) for node in table.nodes]
    waiting = [machine_id for machine_id in coming if machine_id not in registered.values()]
    if waiting:
        table = table.extended([coming[machine_id] for machine_id in waiting])
    ready += [True] * len(waiting)
    names += tuple(waiting)
    found = {**by_node, **pools} if keeping else {}
    least = least_gpus(member.pool if (member := found.get(name)) is not None else None for name in names) if keeping else None
    return Stand(cluster.nodes, by_node, coming, registered, pools, Rows(table, least), np.array(ready, dtype=np.bool_), names)


def is_standing(node: Node) -> bool:
    """Whether a node is ready and not on its way out of the cluster."""
    return node.ready and not node.deleted


def without(mask: Mask, rows: Sequence[int]) -> Mask:
    """A copy of ``mask`` that is False on ``rows``."""
    mask = mask.copy()
    mask[list(rows)] = False
    return mask
