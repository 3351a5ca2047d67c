"""Headroom: idle machines and unused GPUs that a pool keeps. Held nodes are neither removed nor filled with moved pods."""

from collections.abc import Mapping, Set

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.pools import Pool
from gpuscaler.planning.capacity.idle import is_idle
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down.blockers import Blocker, is_arriving
from gpuscaler.planning.scale_down.contract import Situation


def headroom_nodes(situation: Situation, staying: frozenset[str], leaving: Set[str]) -> Mapping[str, Blocker]:
    """The nodes that the ``spare`` of each pool keeps, with the reason. Nodes of ``staying`` are not removed anyway, so they come first."""
    blockers: dict[str, Blocker] = {}
    for pool in situation.policy.pools:
        if pool.spare.machines or pool.spare.gpus:
            nodes = _usable(situation, pool, leaving)
            blockers.update(_machines(situation, pool, nodes, staying))
            blockers.update(_gpus(situation, pool, nodes, staying))
    return blockers


def _usable(situation: Situation, pool: Pool, leaving: Set[str]) -> list[str]:
    """The pool's nodes on which new pods could start now."""
    cluster = situation.cluster
    pool_members = {name: member for name, member in situation.members.items() if member.pool.name == pool.name and name in cluster.nodes}
    return sorted(
        name
        for name, member in pool_members.items()
        if (node := cluster.nodes[name]).ready and not node.unschedulable and not is_arriving(node, member) and name not in leaving
    )


def _machines(situation: Situation, pool: Pool, nodes: list[str], staying: frozenset[str]) -> dict[str, Blocker]:
    """The cheapest of the idle machines that no pending pod needs."""
    on_node = situation.cluster.on_node
    idle = [name for name in nodes if name not in situation.taken and is_idle(on_node.get(name, {}).values(), situation.now)]
    idle.sort(key=lambda name: (name not in staying, _price(situation, name), name))
    reason = Blocker("spare", f"pool {pool.name} keeps {pool.spare.machines} idle machine{'s' if pool.spare.machines != 1 else ''} ready")
    return dict.fromkeys(idle[: pool.spare.machines], reason)


def _gpus(situation: Situation, pool: Pool, nodes: list[str], staying: frozenset[str]) -> dict[str, Blocker]:
    """Nodes with unused GPUs that add up to the spare; those with the fewest first, so that whole machines can still leave."""
    room = situation.room
    unused = {name: _unused_gpus(room, room.table.row[name]) for name in nodes}
    order = sorted((name for name in nodes if unused[name]), key=lambda name: (name not in staying, unused[name], name))
    blockers: dict[str, Blocker] = {}
    missing = pool.spare.gpus
    for name in order:
        if missing <= 0:
            break
        wanted = f"{pool.spare.gpus} GPU{'s' if pool.spare.gpus != 1 else ''}"
        blockers[name] = Blocker("spare", f"pool {pool.name} keeps {wanted} unused, {unused[name]} of them here")
        missing -= unused[name]
    return blockers


def _unused_gpus(room: Room, row: int) -> int:
    return count_accelerators({name: max(0, int(room.free(name)[row])) for name in room.table.nodes[row].allocatable})


def _price(situation: Situation, name: str) -> float:
    offering = situation.members[name].offering
    return offering.price if offering is not None else 0.0
