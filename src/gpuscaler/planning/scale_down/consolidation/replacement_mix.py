"""The details of one replacement: the machines to buy, the place of every pod, and the saving of each removal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Array
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates
from gpuscaler.planning.mix import Solution
from gpuscaler.planning.plans import Choice, Move, PlannedMachine
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.consolidation.replacement_choices import PurchaseItems
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays
from gpuscaler.planning.scale_down.moves.packing import Packed


@dataclass(frozen=True)
class ReplacementPlan:
    """``machines`` to buy for ``cost`` dollars per hour.

    Per candidate: its ``moves``, the machines it ``needs`` and its ``share`` of their cost. ``packed`` holds the pods that find room on
    machines that stay.
    """

    machines: tuple[PlannedMachine, ...]
    cost: float
    moves: Mapping[Candidate, tuple[Move, ...]]
    needs: Mapping[Candidate, tuple[str, ...]]
    share: Mapping[Candidate, float]
    packed: Packed

    def saving_of(self, candidate: Candidate) -> float:
        """Dollars per hour that removing ``candidate`` saves, less its share of the new machines."""
        return candidate.price - self.share[candidate]


@dataclass(frozen=True)
class Replacement:
    """One new machine of a solution, with the number of its pods by item."""

    name: str
    kind: MachineKind
    pods: Mapping[int, int]


def bought_machines(solution: Solution, templates: Templates, already: int) -> list[Replacement]:
    """The machines of a solution one by one; their names continue after ``already`` earlier ones."""
    groups = sorted(solution.groups, key=lambda group: (group.kind, sorted(group.pods.items())))
    kinds = [(templates.kinds[group.kind], group.pods) for group in groups for _ in range(group.times)]
    return [Replacement(f"replacement-{already + number}", kind, pods) for number, (kind, pods) in enumerate(kinds, 1)]


def replacement_plan(
    arrays: CandidateArrays,
    purchases: PurchaseItems,
    candidates: Sequence[Candidate],
    *,
    bought: Sequence[Replacement],
    packed: Packed,
    names: Sequence[str],
) -> ReplacementPlan:
    """Give every pod of ``candidates`` a slot on a new machine or a place on a machine that stays, and divide the cost.

    The cost of a machine is divided among its pods in proportion to the share of it that they request.
    """
    slots: list[list[int]] = [[] for _ in purchases.size]
    for number in range(len(bought) - 1, -1, -1):
        for item, count in bought[number].pods.items():
            slots[item] += [number] * count
    places: list[list[int]] = [[] for _ in range(len(arrays.sizes))]
    for size, rows, counts in packed.placed:
        places[size] += np.repeat(rows, counts).tolist()
    moves: dict[Candidate, list[Move]] = {candidate: [] for candidate in candidates}
    weight = np.zeros((len(candidates), len(bought)))
    for index, candidate in enumerate(candidates):
        for running_class in sorted(
            (running_class for running_class in candidate.load if running_class in purchases.item_of),
            key=lambda running_class: running_class.order,
        ):
            item = purchases.item_of[running_class]
            for key in sorted(pod.key for pod in candidate.load[running_class]):
                if slots[item]:
                    number = slots[item].pop()
                    weight[index, number] += share_of_machine(arrays, purchases.size[item], bought[number].kind)
                    moves[candidate].append(Move(key, bought[number].name))
                else:
                    moves[candidate].append(Move(key, names[places[purchases.size[item]].pop()]))
    price = np.array([machine.kind.price for machine in bought])
    share = (weight / np.maximum(weight.sum(axis=0), 1e-12)) @ price
    return ReplacementPlan(
        machines=tuple(replacement_machine(replacement, moves) for replacement in bought),
        cost=float(price.sum()),
        moves={candidate: tuple(candidate_moves) for candidate, candidate_moves in moves.items()},
        needs={c: tuple(bought[n].name for n in np.flatnonzero(weight[i]).tolist()) for i, c in enumerate(candidates)},
        share={candidate: float(amount) for candidate, amount in zip(candidates, share, strict=True)},
        packed=packed,
    )


def share_of_machine(arrays: CandidateArrays, size: int, kind: MachineKind) -> float:
    """The largest share of a new machine that one pod requests."""
    allocatable = kind.offering.allocatable
    amounts = zip(arrays.resources, arrays.sizes.requests[size].tolist(), strict=True)
    return max(float(amount / allocatable[name]) for name, amount in amounts if allocatable.get(name))


def replacement_machine(replacement: Replacement, moves: Mapping[Candidate, Sequence[Move]]) -> PlannedMachine:
    offering = replacement.kind.offering
    members = sorted(replacement.kind.members, key=lambda o: (o.price, o.key))
    choices = tuple(Choice(o.instance_type, o.market, o.zone, o.price) for o in members)
    return PlannedMachine(
        id=replacement.name,
        pool=offering.pool,
        instance_type=offering.instance_type,
        market=offering.market,
        zone=offering.zone,
        price_per_hour=offering.price,
        purpose="replacement",
        pods=tuple(sorted(move.pod for candidate_moves in moves.values() for move in candidate_moves if move.to == replacement.name)),
        choices=choices,
    )


def left_by_item(purchases: PurchaseItems, counts: Array, packed: Packed) -> Array:
    """How many of ``counts[item]`` pods found no place; among items of one size, the last items are left over."""
    left = packed.left.copy()
    missing = np.zeros_like(counts)
    for item in range(len(counts) - 1, -1, -1):
        size = purchases.size[item]
        missing[item] = min(int(counts[item]), int(left[size]))
        left[size] -= missing[item]
    return missing
