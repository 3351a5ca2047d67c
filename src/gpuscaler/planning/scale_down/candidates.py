"""Sorts every node: blocked by itself or by its pods, idle, or a candidate for consolidation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from msgspec import Struct

from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.table import NodeTable
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.scale_down.blockers import (
    Blocker,
    Protection,
    duplicate_blockers,
    health_guard,
    is_leaving,
    needed_blocker,
    node_blocker,
    own_blocker,
    promised_nodes,
    unreadable_pod_blockers,
)
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.pod_classes import Classes, Grouping, Load, Residents, RunningClass


class Candidate(Struct, frozen=True, eq=False):
    """A node without blockers of its own: only room elsewhere, price and allowances can keep it.

    ``row`` is its row in the room. ``load`` is empty when it is idle. ``evictions`` counts the pods of ``load`` by the key of the
    PodDisruptionBudget that covers them.
    """

    node: Node
    row: int
    member: Member
    load: Load
    evictions: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def price(self) -> float:
        """Dollars per hour; 0 when the offering is unknown."""
        return self.member.offering.price if self.member.offering is not None else 0.0

    @property
    def pods(self) -> int:
        return sum(len(pods) for pods in self.load.values())


@dataclass
class Survey:
    """All nodes of a cluster, sorted. ``idle`` and ``busy`` are candidates ordered by name; every other node is in ``blocked``.

    ``classes`` are the classes of the pods on busy candidates, ordered.
    """

    idle: list[Candidate] = field(default_factory=list)
    busy: list[Candidate] = field(default_factory=list)
    blocked: dict[str, Blocker] = field(default_factory=dict)
    classes: tuple[RunningClass, ...] = ()


@dataclass(slots=True)
class Inspection:
    """The cached inspection of one node. ``node``, ``pods`` and ``member`` are the objects that were inspected.

    ``own`` is the blocker of the node itself, whatever runs on it. ``leaves``: the Node object shows that it is being removed.
    ``residents`` and what protects them (``blocker``, ``evictions``) are computed last. They are valid for ``budgets``, and only at
    ``now`` if that is set.
    """

    node: Node
    pods: Mapping[str, Pod] | None
    member: Member | None
    own: Blocker | None
    leaves: bool
    budgets: Mapping[str, PodDisruptionBudget] | None = None
    now: float | None = None
    residents: Residents | None = None
    blocker: Blocker | None = None
    evictions: Mapping[str, int] = field(default_factory=dict)


class CandidateCache:
    """Caches inspections of nodes for repeated surveys of a cluster under one policy.

    An inspection is reused only while node, pods and budgets are the same objects that it was made from. It keeps these objects alive, so
    it equals a new inspection. ``steady`` holds blockers that do not depend on time: they stay until one of those objects changes, and
    their nodes need no new inspection before.
    """

    def __init__(self) -> None:
        self.inspections: dict[str, Inspection] = {}
        self.steady: dict[str, Blocker] = {}
        #: Nodes that are being removed according to their Node object.
        self.leaving: frozenset[str] = frozenset()
        #: Nodes with the same provider ID as another node.
        self.twins: Mapping[str, Blocker] = {}
        # A class lives as long as some inspection has pods of it.
        self.classes: Classes = WeakValueDictionary()
        self._table: NodeTable | None = None
        self._budgets: Mapping[str, PodDisruptionBudget] | None = None

    def inspect(self, situation: Situation) -> None:
        """Inspect every node, ordered by name."""
        table, members, on_node = situation.cluster.table, situation.members, situation.cluster.on_node
        if self._budgets is not situation.cluster.budgets:
            self._budgets = situation.cluster.budgets
            self.steady = {name: inspection.own for name, inspection in self.inspections.items() if inspection.own is not None}
        if self._table is table:
            for name, cached in self.inspections.items():
                if cached.pods is not on_node.get(name):
                    cached.pods, cached.residents = on_node.get(name), None
                    self._forget_pods(name, cached)
            return
        before, self.inspections, self._table = self.inspections, {}, table
        self.twins = duplicate_blockers(table.nodes)
        for name, node in zip(table.names, table.nodes, strict=True):
            pods, member, inspection = on_node.get(name), members.get(name), before.pop(name, None)
            if (
                inspection is None
                or inspection.node is not node
                or inspection.pods is not pods
                or not (inspection.member is member or inspection.member == member)
            ):
                inspection = Inspection(node, pods, member, own_blocker(node, member), is_leaving(node, frozenset()))
                self._forget_pods(name, inspection)
            self.inspections[name] = inspection
        for name in before:
            self.steady.pop(name, None)
        self.leaving = frozenset(name for name, inspection in self.inspections.items() if inspection.leaves)

    def _forget_pods(self, name: str, inspection: Inspection) -> None:
        """Keep only the node's own blocker in ``steady``: after a change of its pods no other one is certain."""
        if inspection.own is not None:
            self.steady[name] = inspection.own
        else:
            self.steady.pop(name, None)


def survey(situation: Situation, memory: CandidateCache) -> Survey:
    """Sort the nodes of the cluster, which ``memory`` has inspected already."""
    cluster, taken = situation.cluster, situation.taken
    promised = promised_nodes(situation)
    unlocated_blocker, located_blockers = unreadable_pod_blockers(cluster)
    guard = health_guard(cluster.nodes.values(), situation.members, promised) or unlocated_blocker
    if guard is not None:
        return Survey(blocked=dict.fromkeys(memory.inspections, guard))
    survey, members, row_of = Survey(blocked=memory.steady.copy()), situation.members, situation.room.table.row
    reader = _ResidentReader(situation, memory.classes)
    special = promised | situation.state.disrupting | situation.state.spared.keys() | situation.state.unlisted
    node_blockers = {**located_blockers, **memory.twins}
    inspections, unsteady = memory.inspections, special.union(taken, node_blockers)
    for name in sorted((inspections.keys() - memory.steady.keys()) | (inspections.keys() & unsteady)):
        inspection = inspections[name]
        blocker = inspection.own if name not in special else node_blocker(situation, inspection.node, promised)
        if blocker is None:
            blocker = node_blockers.get(name) or needed_blocker(situation, name)
        if blocker is None:
            residents = reader.residents(inspection)
            load, blocker = residents.load, inspection.blocker
            if blocker is not None and not residents.ages:
                memory.steady[name] = blocker
        if blocker is not None:
            survey.blocked[name] = blocker
            continue
        candidate = Candidate(inspection.node, row_of[name], members[name], load, inspection.evictions)
        (survey.busy if load else survey.idle).append(candidate)
    movable = {running_class for candidate in survey.busy for running_class in candidate.load}
    survey.classes = tuple(sorted(movable, key=lambda running_class: running_class.order))
    return survey


class _ResidentReader:
    """Adds the pods of nodes, and what protects them, to inspections that lack them or have outdated ones."""

    def __init__(self, situation: Situation, classes: Classes) -> None:
        self._now = situation.now
        self._budgets = situation.cluster.budgets
        self._protection = Protection(situation.cluster, situation.policy, situation.now)
        self._grouping = Grouping(situation.cluster, situation.now, classes)

    def residents(self, inspection: Inspection) -> Residents:
        """The residents of a node; also updates what protects them in ``inspection``."""
        now = self._now
        held = inspection.residents
        if held is not None and inspection.budgets is self._budgets and inspection.now in (None, now):
            return held
        if held is None or inspection.now not in (None, now):
            held = inspection.residents = self._grouping.load(inspection.node)
        inspection.now = now if held.ages else None
        inspection.budgets = self._budgets
        inspection.blocker = self._protection.blocker(held)
        inspection.evictions = {} if inspection.blocker is not None else self._protection.evictions(held.load)
        return held
