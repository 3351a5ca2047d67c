"""The first look at every node: blocked by what it is or what it runs, idle, or a candidate for consolidation."""

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
    NEEDED,
    Blocker,
    Protection,
    is_leaving,
    node_blocker,
    own_blocker,
    promised_nodes,
    twins,
    unhealthy,
    unread,
)
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.pod_classes import Classes, Grouping, Load, Residents, RunningClass


class Candidate(Struct, frozen=True, eq=False):
    """A node that nothing but room, price and accounts keeps. ``row`` is its row in the room; ``load`` is empty when it is idle.

    ``evictions`` counts the pods of ``load`` by the key of the PodDisruptionBudget over them.
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
        """Dollars per hour; 0 when the offering is not known."""
        return self.member.offering.price if self.member.offering is not None else 0.0

    @property
    def pods(self) -> int:
        return sum(len(pods) for pods in self.load.values())


@dataclass
class Survey:
    """``idle`` and ``busy`` are candidates in the order of their names; every other node is in ``blocked``.

    ``classes`` are those of the pods on busy candidates, in their order.
    """

    idle: list[Candidate] = field(default_factory=list)
    busy: list[Candidate] = field(default_factory=list)
    blocked: dict[str, Blocker] = field(default_factory=dict)
    classes: tuple[RunningClass, ...] = ()


@dataclass(slots=True)
class Inspection:
    """What one node and its pods say by themselves. ``node``, ``pods`` and ``member`` are what was looked at.

    ``own`` is what keeps the node whatever runs on it; ``leaves``: it says itself that somebody is removing it.
    ``residents``, and what protects them (``blocker``, ``evictions``), are asked for last; they hold under ``budgets``, and at ``now``
    alone where that is given.
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
    """Looks at nodes for one who surveys a cluster again and again under one policy.

    A look is used again only while node, pods and budgets are the very objects that it was made from, which it keeps alive; so it is what
    a new look would be. ``steady`` says what keeps nodes until one of those changes, whatever the time: they need no other look meanwhile.
    """

    def __init__(self) -> None:
        self.looks: dict[str, Inspection] = {}
        self.steady: dict[str, Blocker] = {}
        #: Nodes that say themselves that somebody is removing them.
        self.leaving: frozenset[str] = frozenset()
        #: Nodes that say that they are the same machine as another.
        self.twins: Mapping[str, Blocker] = {}
        # A class lives as long as some look has pods of it.
        self.classes: Classes = WeakValueDictionary()
        self._table: NodeTable | None = None
        self._budgets: Mapping[str, PodDisruptionBudget] | None = None

    def look(self, situation: Situation) -> None:
        """Look at every node, in the order of their names."""
        table, members, on_node = situation.cluster.table, situation.members, situation.cluster.on_node
        if self._budgets is not situation.cluster.budgets:
            self._budgets = situation.cluster.budgets
            self.steady = {name: look.own for name, look in self.looks.items() if look.own is not None}
        if self._table is table:
            for name, look in self.looks.items():
                if look.pods is not on_node.get(name):
                    look.pods, look.residents = on_node.get(name), None
                    self._unsettle(name, look)
            return
        before, self.looks, self._table = self.looks, {}, table
        self.twins = twins(table.nodes)
        for name, node in zip(table.names, table.nodes, strict=True):
            pods, member, known = on_node.get(name), members.get(name), before.pop(name, None)
            if known is None or known.node is not node or known.pods is not pods or not (known.member is member or known.member == member):
                known = Inspection(node, pods, member, own_blocker(node, member), is_leaving(node, frozenset()))
                self._unsettle(name, known)
            self.looks[name] = known
        for name in before:
            self.steady.pop(name, None)
        self.leaving = frozenset(name for name, look in self.looks.items() if look.leaves)

    def _unsettle(self, name: str, look: Inspection) -> None:
        """Only what a node is by itself is sure to keep it."""
        if look.own is not None:
            self.steady[name] = look.own
        else:
            self.steady.pop(name, None)


def survey(situation: Situation, memory: CandidateCache) -> Survey:
    """What each node of the cluster is; ``memory`` has looked at them already."""
    cluster, taken = situation.cluster, situation.taken
    promised = promised_nodes(situation)
    unread_somewhere, unread_here = unread(cluster)
    guard = unhealthy(cluster.nodes.values(), situation.members, promised) or unread_somewhere
    if guard is not None:
        return Survey(blocked=dict.fromkeys(memory.looks, guard))
    found, members, row_of = Survey(blocked=memory.steady.copy()), situation.members, situation.room.table.row
    asking = _Asking(situation, memory.classes)
    special = promised | situation.state.disrupting | situation.state.spared.keys() | situation.state.unlisted
    here = {**unread_here, **memory.twins}
    looks, odd = memory.looks, special.union(taken, here)
    for name in sorted((looks.keys() - memory.steady.keys()) | (looks.keys() & odd)):
        look = looks[name]
        blocker = look.own if name not in special else node_blocker(situation, look.node, promised)
        if blocker is None:
            blocker = here.get(name) or (NEEDED if name in taken else None)
        if blocker is None:
            residents = asking.residents(look)
            load, blocker = residents.load, look.blocker
            if blocker is not None and not residents.ages:
                memory.steady[name] = blocker
        if blocker is not None:
            found.blocked[name] = blocker
            continue
        candidate = Candidate(look.node, row_of[name], members[name], load, look.evictions)
        (found.busy if load else found.idle).append(candidate)
    movable = {one for candidate in found.busy for one in candidate.load}
    found.classes = tuple(sorted(movable, key=lambda one: one.order))
    return found


class _Asking:
    """Asks what runs on nodes and what protects it, where a look does not tell yet."""

    def __init__(self, situation: Situation, classes: Classes) -> None:
        self._now = situation.now
        self._budgets = situation.cluster.budgets
        self._protection = Protection(situation.cluster, situation.policy, situation.now)
        self._grouping = Grouping(situation.cluster, situation.now, classes)

    def residents(self, look: Inspection) -> Residents:
        """What runs on a node, with what protects it brought up to date in ``look``."""
        now = self._now
        held = look.residents
        if held is not None and look.budgets is self._budgets and look.now in (None, now):
            return held
        if held is None or look.now not in (None, now):
            held = look.residents = self._grouping.load(look.node)
        look.now = now if held.ages else None
        look.budgets = self._budgets
        look.blocker = self._protection.blocker(held)
        look.evictions = {} if look.blocker is not None else self._protection.evictions(held.load)
        return held
