"""Consolidation by deletion: machines whose pods all fit on machines that stay."""

from collections.abc import Sequence

import numpy as np

from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.plans import Move
from gpuscaler.planning.scale_down.budgets import CONSOLIDATION
from gpuscaler.planning.scale_down.emptying import Emptied, empty_together
from gpuscaler.planning.scale_down.fleet import Fleet, fleet_of, leaving_order
from gpuscaler.planning.scale_down.homes import Homes
from gpuscaler.planning.scale_down.ledger import Ledger
from gpuscaler.planning.scale_down.packing import pack
from gpuscaler.planning.scale_down.running import RunningClass
from gpuscaler.planning.scale_down.situation import Situation
from gpuscaler.planning.scale_down.survey import Candidate

#: Candidates that are tried one by one after all have been tried together.
SINGLE_TRIES = 40


def delete_together(
    situation: Situation, ledger: Ledger, candidates: Sequence[Candidate], classes: Sequence[RunningClass], homes: Homes
) -> list[Candidate]:
    """Empty as many of ``candidates`` as fit elsewhere; returns those that stay without a blocker. ``classes`` are their pods'."""
    fleet = fleet_of(candidates, classes, situation.room, homes)
    order = leaving_order(fleet, situation.room)
    admitted = np.zeros(len(candidates), dtype=np.bool_)
    for number in order.tolist():
        candidate = fleet.candidates[number]
        blocker = ledger.allowances.refusal(candidate.member.pool, CONSOLIDATION, candidate.evictions)
        if blocker is None:
            ledger.allowances.take(candidate.member.pool, candidate.evictions)
            admitted[number] = True
        else:
            ledger.blocked[candidate.name] = blocker
    emptied = empty_together(fleet, leaving=admitted, order=order, targets=homes.targets)
    for number in np.flatnonzero(admitted & ~emptied.leaving).tolist():
        ledger.allowances.give_back(candidates[number].member.pool, candidates[number].evictions)
    squeeze(ledger, fleet, order, homes.targets, emptied)
    leave(situation, ledger, fleet, order, emptied)
    homes.targets[fleet.rows[emptied.leaving]] = False
    return [candidates[number] for number in order.tolist() if not emptied.leaving[number] and candidates[number].name not in ledger.blocked]


def squeeze(ledger: Ledger, fleet: Fleet, order: Array, targets: Mask, emptied: Emptied) -> None:
    """One more look at the machines that came back, each alone: packing everything at once is not exact."""
    tried = 0
    receiving = emptied.receiving
    for number in order.tolist():
        candidate = fleet.candidates[number]
        if emptied.leaving[number] or tried >= SINGLE_TRIES:
            continue
        rows = targets.copy()
        rows[fleet.rows[emptied.leaving]] = False
        rows[fleet.rows[number]] = False
        if int(fleet.rows[number]) in receiving or (fleet.load[number] > emptied.packed.free[rows].sum(axis=0)).any():
            continue
        if ledger.allowances.refusal(candidate.member.pool, CONSOLIDATION, candidate.evictions):
            continue
        tried += 1
        alone = np.zeros(len(order), dtype=np.bool_)
        alone[number] = True
        packed = pack(fleet.sizes, fleet.total(alone), emptied.packed.free, rows)
        if not packed.left.any():
            ledger.allowances.take(candidate.member.pool, candidate.evictions)
            ledger.blocked.pop(candidate.name, None)
            emptied.leaving[number] = True
            emptied.packed.placed += packed.placed
            emptied.packed.free = packed.free
            receiving |= {row for _, where, _ in packed.placed for row in where.tolist()}


def leave(situation: Situation, ledger: Ledger, fleet: Fleet, order: Array, emptied: Emptied) -> None:
    """Write the removals: the pods of each machine take the places that were found for pods of their size."""
    names = situation.room.table.names
    places: list[list[int]] = [[] for _ in range(len(fleet.sizes))]
    for size, rows, counts in emptied.packed.placed:
        places[size] += np.repeat(rows, counts).tolist()
    rank = {one: number for number, one in enumerate(fleet.size_of)}
    for number in order.tolist():
        if not emptied.leaving[number]:
            continue
        candidate = fleet.candidates[number]
        moves = []
        for one in sorted((one for one in candidate.load if one in rank), key=rank.__getitem__):
            here = places[fleet.size_of[one]]
            pods = candidate.load[one]
            keys = [pods[0].key] if len(pods) == 1 else sorted([pod.key for pod in pods])
            moves += [Move(key, names[here.pop()]) for key in keys]
        ledger.remove(candidate, deletion_reason(candidate, moves), saving=candidate.price, moves=moves)


def deletion_reason(candidate: Candidate, moves: Sequence[Move]) -> str:
    targets = len({move.to for move in moves})
    pods = f"its {len(moves)} pods fit" if len(moves) != 1 else "its pod fits"
    return f"{pods} on {targets} other node{'s' if targets != 1 else ''}, which saves ${candidate.price:.4f} per hour"
