"""The first look at every node: blocked by what it is or what it runs, idle, or a candidate for consolidation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscaler.model.nodes import Node
from gpuscaler.planning.membership import Member
from gpuscaler.planning.scale_down.blockers import Blocker, Protection, node_blocker, promised_nodes, unhealthy
from gpuscaler.planning.scale_down.running import Grouping, Load, RunningClass
from gpuscaler.planning.scale_down.situation import Situation


@dataclass(frozen=True, eq=False)
class Candidate:
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


def survey(situation: Situation) -> Survey:
    """Look at every node of the cluster."""
    cluster = situation.cluster
    protection = Protection(cluster, situation.policy, situation.now)
    found = Survey()
    promised = promised_nodes(situation)
    guard = unhealthy(cluster.nodes.values(), promised)
    grouping = Grouping(cluster, situation.now)
    for name in sorted(cluster.nodes):
        node = cluster.nodes[name]
        blocker = guard or node_blocker(situation, node, promised)
        if blocker is None:
            residents = grouping.load(node)
            blocker = protection.blocker(residents)
        if blocker is not None:
            found.blocked[name] = blocker
            continue
        load = residents.load
        row = situation.room.table.row[name]
        candidate = Candidate(node, row, situation.members[name], load, protection.evictions(load))
        (found.busy if load else found.idle).append(candidate)
    movable = {one for candidate in found.busy for one in candidate.load}
    found.classes = tuple(sorted(movable, key=lambda one: one.order))
    return found
