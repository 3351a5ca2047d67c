"""Minimum sizes and headroom of pools: machines bought before any pod needs them."""

import math
from collections.abc import Mapping

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.pools import Pool
from gpuscaler.planning.capacity.existing import CapacitySnapshot
from gpuscaler.planning.capacity.limits import Fleet
from gpuscaler.planning.capacity.node_templates import MachineKind
from gpuscaler.planning.scale_up.draft.draft import NewMachine, PlanDraft


def spare_machines(desk: PlanDraft, pools: tuple[Pool, ...], have: Mapping[str, Fleet], seen: CapacitySnapshot) -> list[NewMachine]:
    """The machines that bring every pool to its minimum size and its headroom, within the limits.

    Headroom is counted after this plan's pods are placed.
    """
    kept = [pool for pool in pools if pool.min or pool.spare.machines or pool.spare.gpus]
    if not kept:
        return []
    desk.build()
    members = seen.members
    bought: list[NewMachine] = []
    busy = {taken.row for taken in desk.taken} | busy_rows(desk)
    for pool in sorted(kept, key=lambda pool: (-pool.priority, pool.name)):
        rows = [row for row, member in members.items() if member.pool.name == pool.name]
        new = [machine.row for machine in desk.bought if machine.kind.pool.name == pool.name]
        idle = sum(1 for row in rows if row not in busy and desk.open_rows[row])
        wanted = max(pool.min - have[pool.name].machines - len(new), pool.spare.machines - idle)
        bought += cheapest(desk, pool, wanted)
        if pool.spare.gpus:
            free = sum(free_gpus(desk, row) for row in rows + new if desk.open_rows[row])
            free += sum(count_accelerators(machine.kind.offering.allocatable) for machine in bought if machine.kind.pool.name == pool.name)
            bought += cheapest_gpus(desk, pool, pool.spare.gpus - free)
    return bought


def busy_rows(desk: PlanDraft) -> set[int]:
    """Rows with a pod that is neither a DaemonSet pod nor a static pod."""
    row_of = desk.room.table.row
    return {
        row_of[name]
        for name, pods in desk.cluster.on_node.items()
        if name in row_of and any(pod.owner.kind != "DaemonSet" and not pod.options.mirror for pod in pods.values())
    }


def free_gpus(desk: PlanDraft, row: int) -> int:
    """The free accelerators of a row."""
    node = desk.room.table.nodes[row]
    return count_accelerators({name: max(0, int(desk.room.free(name)[row])) for name in node.allocatable})


def cheapest(desk: PlanDraft, pool: Pool, count: int) -> list[NewMachine]:
    """``count`` of the cheapest machines of ``pool``, or as many as the limits admit."""
    kinds = sorted((kind for kind in desk.templates.kinds if kind.pool.name == pool.name), key=lambda kind: (kind.price, kind.key))
    return take(desk, kinds[0], count) if kinds else []


def cheapest_gpus(desk: PlanDraft, pool: Pool, gpus: int) -> list[NewMachine]:
    """Machines with ``gpus`` accelerators in all, at the lowest price per accelerator."""
    kinds = [kind for kind in desk.templates.kinds if kind.pool.name == pool.name and count_accelerators(kind.offering.allocatable)]
    if gpus <= 0 or not kinds:
        return []

    def cost(kind: MachineKind) -> tuple[float, str]:
        return math.ceil(gpus / count_accelerators(kind.offering.allocatable)) * kind.price, kind.key

    best = min(kinds, key=cost)
    return take(desk, best, math.ceil(gpus / count_accelerators(best.offering.allocatable)))


def take(desk: PlanDraft, kind: MachineKind, count: int) -> list[NewMachine]:
    count = desk.remaining.most(kind, count)
    desk.remaining.spend(kind, count)
    return [NewMachine(kind, -1, ()) for _ in range(count)]
