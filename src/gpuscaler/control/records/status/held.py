"""Why machines are kept: the blocker of each node from the newest plan that considered it, and the cost by blocker."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.words import format_dollars, format_duration
from gpuscaler.model.quantities import format_count
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.plans import BlockedNode
from gpuscaler.planning.scale_down.decide import NOT_NOW

#: Blockers that a person has set or can change, in words; the lack of room elsewhere is not among them.
HOLDERS: Mapping[str, str] = {
    "job": "Jobs or gangs without gpuscaler.io/restart-cost, or with a cost above the saving",
    "sole-replica": "pods without another ready replica",
    "pdb": "PodDisruptionBudgets",
    "disruption": "gpuscaler.io/disruption: never",
    "safe-to-evict": "safe-to-evict: false",
    "do-not-drain": "do-not-drain on a pod",
    "do-not-disrupt": "do-not-disrupt on a pod or the node",
    "scale-down-disabled": "scale-down-disabled on the node",
    "local-storage": "data of pods on the node",
    "bare-pod": "pods without a controller",
    "kube-system": "pods in kube-system without a PodDisruptionBudget",
    "unreadable-pod": "pods that cannot be parsed",
    "drain-failed": "failed drains",
    "price-unknown": "unknown prices",
    "minimum-size": "the minimum of their pool",
    "spare": "the spare machines of their pool",
    "budget": "the disruption budgets of their pool",
}


class HeldMachines(Struct, frozen=True):
    """``machines`` that are kept by ``blocker`` and cost ``dollars_per_hour`` in total.

    ``text`` is for people; ``node`` is the name of one of these machines' nodes.
    """

    blocker: str
    machines: int
    dollars_per_hour: float
    node: str
    text: str


def blocked_nodes(latest: Latest, now: float) -> Iterator[BlockedNode]:
    """Why each node stays. Most plans do not consider consolidation: for such nodes the last plan that did is used."""
    for blocked in latest.plan.blocked_nodes:
        if blocked.detail != NOT_NOW.detail:
            yield blocked
        elif (blocked_node := latest.consolidation_blockers.get(blocked.node)) is not None:
            yield replace(
                blocked_node, detail=f"{blocked_node.detail} (found {format_duration(now - latest.consolidation_planned_at)} ago)"
            )
        else:
            yield replace(
                blocked, detail="pods run on it; the check whether they fit elsewhere runs about once a minute, and is still to come"
            )


def held_machines(latest: Latest, members: Mapping[str, Member], now: float) -> tuple[HeldMachines, ...]:
    """What keeps machines of the pools, the most expensive first."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for blocked in blocked_nodes(latest, now):
        if blocked.blocker in HOLDERS and blocked.node in members:
            nodes[blocked.blocker].append(blocked.node)
    held = []
    for blocker, names in nodes.items():
        offerings = (members[name].offering for name in names)
        dollars = sum(offering.price for offering in offerings if offering is not None)
        text = f"{format_count(len(names), 'machine')} ({format_dollars(dollars)}/h) by {HOLDERS[blocker]}"
        held.append(HeldMachines(blocker, len(names), round(dollars, 6), min(names), text))
    return tuple(sorted(held, key=lambda held: (-held.dollars_per_hour, held.blocker)))


def describe_held_machines(held: tuple[HeldMachines, ...]) -> str:
    """All blockers in one line for people."""
    node = held[0].node
    return f"Held: {'; '.join(entry.text for entry in held)}. gpuscaler why node {node} names the object."
