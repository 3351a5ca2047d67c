"""Minimum sizes and headroom of pools: machines bought before any pod needs them."""

import math
from collections.abc import Mapping

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.pools import Pool
from gpuscaler.planning.capacity.existing import CapacitySnapshot
from gpuscaler.planning.capacity.limits import Fleet
from gpuscaler.planning.capacity.node_templates import MachineKind
from gpuscaler.planning.scale_up.draft.draft import NewMachine, PlanDraft


def spare_machines(draft: PlanDraft, pools: tuple[Pool, ...], have: Mapping[str, Fleet], capacity: CapacitySnapshot) -> list[NewMachine]:
    """The machines that bring every pool to its minimum size and its headroom, within the limits.

    Headroom is counted after this plan's pods are placed.
    """
    kept = [pool for pool in pools if pool.min or pool.spare.machines or pool.spare.gpus]
    if not kept:
        return []
    draft.build()
    members = capacity.members
    bought: list[NewMachine] = []
    busy = {taken.row for taken in draft.taken} | busy_rows(draft)
    for pool in sorted(kept, key=lambda pool: (-pool.priority, pool.name)):
        rows = [row for row, member in members.items() if member.pool.name == pool.name]
        new = [machine.row for machine in draft.bought if machine.kind.pool.name == pool.name]
        idle = sum(1 for row in rows if row not in busy and draft.open_rows[row])
        wanted = max(pool.min - have[pool.name].machines - len(new), pool.spare.machines - idle)
        bought += cheapest_machines(draft, pool, wanted)
        if pool.spare.gpus:
            free = sum(free_gpus(draft, row) for row in rows + new if draft.open_rows[row])
            free += sum(count_accelerators(machine.kind.offering.allocatable) for machine in bought if machine.kind.pool.name == pool.name)
            bought += cheapest_gpus(draft, pool, pool.spare.gpus - free)
    return bought


def busy_rows(draft: PlanDraft) -> set[int]:
    """Rows with a pod that is neither a DaemonSet pod nor a static pod."""
    row_of = draft.room.table.row
    return {
        row_of[name]
        for name, pods in draft.cluster.on_node.items()
        if name in row_of and any(pod.owner.kind != "DaemonSet" and not pod.options.mirror for pod in pods.values())
    }


def free_gpus(draft: PlanDraft, row: int) -> int:
    """The free accelerators of a row."""
    node = draft.room.table.nodes[row]
    return count_accelerators({name: max(0, int(draft.room.free(name)[row])) for name in node.allocatable})


def cheapest_machines(draft: PlanDraft, pool: Pool, count: int) -> list[NewMachine]:
    """``count`` of the cheapest machines of ``pool``, or as many as the limits admit."""
    kinds = sorted((kind for kind in draft.templates.kinds if kind.pool.name == pool.name), key=lambda kind: (kind.price, kind.key))
    return buy_machines(draft, kinds[0], count) if kinds else []


def cheapest_gpus(draft: PlanDraft, pool: Pool, gpus: int) -> list[NewMachine]:
    """Machines with ``gpus`` accelerators in all, at the lowest price per accelerator.

    A kind that may turn out to have none is not bought: the next plan would lack as many, and buy again.
    """
    kinds = [kind for kind in draft.templates.kinds if kind.pool.name == pool.name and kind.least_gpus]
    if gpus <= 0 or not kinds:
        return []

    def cost(kind: MachineKind) -> tuple[float, str]:
        return math.ceil(gpus / count_accelerators(kind.offering.allocatable)) * kind.price, kind.key

    best = min(kinds, key=cost)
    return buy_machines(draft, best, math.ceil(gpus / count_accelerators(best.offering.allocatable)))


def spare_gpu_warnings(draft: PlanDraft, pools: tuple[Pool, ...]) -> tuple[str, ...]:
    """A sentence for each pool whose spare GPUs cannot be bought, because every kind may turn out to have none."""
    warnings = []
    for pool in pools if any(pool.spare.gpus for pool in pools) else ():
        kinds = [kind for kind in draft.templates.kinds if kind.pool.name == pool.name]
        if pool.spare.gpus and kinds and not any(kind.least_gpus for kind in kinds):
            warnings.append(
                f"pool {pool.name}: spare GPUs are not bought, because any machine of the pool may have none; put the types without GPUs "
                f"into another pool"
            )
    return tuple(warnings)


def buy_machines(draft: PlanDraft, kind: MachineKind, count: int) -> list[NewMachine]:
    count = draft.remaining.admitted_count(kind, count)
    draft.remaining.spend(kind, count)
    return [NewMachine(kind, -1, ()) for _ in range(count)]
