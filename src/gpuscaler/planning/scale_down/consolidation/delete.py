"""Consolidation by deletion: removes machines if all their pods fit on machines that stay.

Pods with a place that depends on other pods are moved first, one at a time, with every filter. The rest, which are most pods, are moved
all together. If the second step decides that a machine stays after all, its moves of the first step are dropped, and moves that relied
on them are checked again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscaler.planning.plans import Move
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.budgets import CONSOLIDATION
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.decided import RemovalDecisions
from gpuscaler.planning.scale_down.moves.bulk import Emptied, empty_together, stuck_candidates
from gpuscaler.planning.scale_down.moves.bulk_affinity import PeerRules
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays, arrays_of, leaving_order
from gpuscaler.planning.scale_down.moves.destinations import Destinations
from gpuscaler.planning.scale_down.moves.exact import Mover, PodMove, passes_within, replay
from gpuscaler.planning.scale_down.moves.packing import pack
from gpuscaler.planning.scale_down.moves.possible_rooms import PossibleRooms
from gpuscaler.planning.scale_down.moves.rules import MoveRules
from gpuscaler.planning.scale_down.pod_classes import RunningClass

#: How many candidates are tried one by one after all have been tried together.
SINGLE_TRIES = 40


@dataclass
class Deletion:
    """The state of one consolidation.

    ``classes`` are the classes of the pods that have to move, ordered; ``rules_by_class``: how each may move; ``class_rows``: a row where
    each runs.
    ``rooms`` are the rooms in which their moves must be possible.
    ``admitted`` are the candidates with reserved allowances, ``steps`` their exact moves, ``pinned`` the rows that these moves lead to.
    """

    situation: Situation
    decisions: RemovalDecisions
    destinations: Destinations
    classes: Sequence[RunningClass]
    rules_by_class: Mapping[RunningClass, MoveRules]
    class_rows: Mapping[RunningClass, int]
    rooms: PossibleRooms
    admitted: set[Candidate] = field(default_factory=set)
    steps: dict[Candidate, list[PodMove]] = field(default_factory=dict)
    pinned: set[int] = field(default_factory=set)

    def reserve(self, candidate: Candidate) -> Blocker | None:
        """Reserve the allowances of one removal; returns the blocker if one of them refuses it."""
        blocker = self.decisions.allowances.refusal(candidate.member.pool, CONSOLIDATION, candidate.evictions)
        if blocker is None:
            self.decisions.allowances.take(candidate.member.pool, candidate.evictions)
            self.admitted.add(candidate)
        return blocker

    @property
    def stopped(self) -> bool:
        """Whether ``should_stop`` asks to stop; the result then has ``stopped_early`` set."""
        if self.situation.should_stop is not None and self.situation.should_stop():
            self.decisions.stopped_early = True
        return self.decisions.stopped_early

    def release(self, candidate: Candidate) -> None:
        """Undo :meth:`reserve`."""
        self.decisions.allowances.release(candidate.member.pool, candidate.evictions)
        self.admitted.remove(candidate)


def delete(deletion: Deletion, candidates: Sequence[Candidate]) -> tuple[CandidateArrays, Emptied]:
    """Empty as many of ``candidates`` as fit elsewhere.

    Returns the candidates that could be moved in bulk, ordered, and which of them leave.
    """
    rooms, room = deletion.rooms, deletion.situation.room
    passes = passes_within(deletion.situation.policy.work_budget, room)
    peer_rules = PeerRules(rooms, deletion.rules_by_class, deletion.class_rows, passes=passes)
    free = [running_class for running_class in deletion.classes if not deletion.rules_by_class[running_class].exact]
    arrays = arrays_of(candidates, deletion.classes, free=free, destinations=deletion.destinations, peer_rules=peer_rules)
    order = leaving_order(arrays, room).tolist()
    ordered = [candidates[number] for number in order]
    admit(deletion, ordered)
    bound = set(deletion.classes) - set(free)
    if not all(bound.isdisjoint(candidate.load) for candidate in ordered):
        rooms = move_exactly(deletion, ordered, bound, passes=passes)
        peer_rules = PeerRules(rooms, deletion.rules_by_class, deletion.class_rows, passes=passes)
    left = [n for n in order if candidates[n] in deletion.steps or bound.isdisjoint(candidates[n].load)]
    unpinned = [number for number in left if candidates[number].row not in deletion.pinned]
    # If a machine that was cleared exactly stays after all, it keeps all its pods, so its free resources do not change.
    cleared = [candidate.row for candidate in deletion.steps]
    before = arrays.free[cleared]
    arrays = arrays.narrowed(np.array(unpinned, dtype=np.int64), free, rooms.planned, peer_rules)
    arrays.free[cleared] = before
    leaving = np.array([candidate in deletion.admitted for candidate in arrays.candidates], dtype=np.bool_)
    emptied = empty_together(arrays, leaving=leaving, targets=deletion.destinations.targets)
    for number in np.flatnonzero(leaving & ~emptied.leaving).tolist():
        deletion.release(arrays.candidates[number])
    retry_one_by_one(deletion, arrays, emptied)
    recheck_exact_moves(deletion, arrays, emptied)
    record_removals(deletion, arrays, emptied)
    return arrays, emptied


def admit(deletion: Deletion, candidates: Sequence[Candidate]) -> None:
    """Reserve the allowances of candidates in their order, so that the best are removed when not all may be."""
    for candidate in candidates:
        blocker = deletion.reserve(candidate)
        if blocker is not None:
            deletion.decisions.blocked[candidate.name] = blocker


def move_exactly(deletion: Deletion, candidates: Sequence[Candidate], bound: Collection[RunningClass], *, passes: int) -> PossibleRooms:
    """Try to move the pods that depend on others off admitted candidates; returns the rooms after those moves."""
    mover = Mover(deletion.rooms, deletion.destinations, passes=passes)
    preference = np.zeros(len(deletion.situation.room), dtype=np.int64)
    for position, candidate in enumerate(candidates):
        preference[candidate.row] = len(candidates) - position
    for candidate in candidates:
        own_classes = [running_class for running_class in candidate.load if running_class in bound]
        if not own_classes or candidate not in deletion.admitted:
            continue
        if candidate.row in deletion.pinned:
            outcome: list[PodMove] | Blocker = Blocker("in-use", "pods of machines that leave move here")
        elif mover.exhausted or deletion.stopped:
            outcome = Blocker("in-use", "not examined: this plan has spent its work budget on better candidates for removal")
        else:
            outcome = mover.clear(candidate, own_classes, preference)
        if isinstance(outcome, Blocker):
            deletion.release(candidate)
            deletion.decisions.blocked[candidate.name] = outcome
        else:
            deletion.steps[candidate] = outcome
            deletion.pinned.update(step.target for step in outcome)
    for candidate in candidates:
        if candidate.row in deletion.pinned and candidate in deletion.admitted:
            deletion.release(candidate)
            deletion.decisions.blocked[candidate.name] = Blocker("in-use", "pods of machines that leave move here")
    return mover.rooms


def retry_one_by_one(deletion: Deletion, arrays: CandidateArrays, emptied: Emptied) -> None:
    """Try machines that stay once more, each alone: packing all at once is not exact, and allowances may have become free again."""
    receiving = emptied.receiving
    hopeless = stuck_candidates(arrays, emptied, deletion.destinations.targets).size
    tried = 0
    for number in np.flatnonzero(~emptied.leaving).tolist():
        candidate = arrays.candidates[number]
        if tried >= SINGLE_TRIES or deletion.stopped:
            return
        if number in hopeless or candidate in deletion.steps or candidate.row in receiving:
            continue
        rows = deletion.destinations.targets.copy()
        rows[arrays.rows[emptied.leaving]] = False
        rows[arrays.rows[number]] = False
        too_much = (arrays.load[number] > emptied.packed.free[rows].sum(axis=0)).any()
        if too_much or deletion.reserve(candidate) is not None:
            continue
        tried += 1
        alone = np.zeros(len(arrays.candidates), dtype=np.bool_)
        alone[number] = True
        packed = pack(arrays.sizes, arrays.total(alone), emptied.packed.free, rows)
        if packed.left.any():
            deletion.release(candidate)
            continue
        deletion.decisions.blocked.pop(candidate.name, None)
        emptied.leaving[number] = True
        emptied.packed.placed += packed.placed
        emptied.packed.free = packed.free
        receiving |= {row for _, placed_rows, _ in packed.placed for row in placed_rows.tolist()}


def recheck_exact_moves(deletion: Deletion, arrays: CandidateArrays, emptied: Emptied) -> None:
    """Replay the exact moves without those of machines that stay after all; machines with moves that relied on them stay too."""
    if all(candidate in deletion.admitted for candidate in deletion.steps):
        return
    rooms = deletion.rooms.copy()
    for number in np.flatnonzero(emptied.leaving).tolist():
        candidate = arrays.candidates[number]
        if not replay(rooms, deletion.steps.get(candidate, ())):
            emptied.leaving[number] = False
            deletion.release(candidate)
            deletion.decisions.blocked[candidate.name] = Blocker(
                "in-use", "its pods could only move together with those of a machine that stays"
            )


def record_removals(deletion: Deletion, arrays: CandidateArrays, emptied: Emptied) -> None:
    """Record the removals: the pods of each machine take the places that were found for pods of their size."""
    names = np.array(deletion.situation.room.table.names, dtype=object)
    places: list[list[str]] = [[] for _ in range(len(arrays.sizes))]
    for size, rows, counts in emptied.packed.placed:
        places[size] += np.repeat(names[rows], counts).tolist()
    rank = {running_class: number for number, running_class in enumerate(arrays.size_of)}
    for number in np.flatnonzero(emptied.leaving).tolist():
        candidate = arrays.candidates[number]
        moves = [Move(step.pod.key, names[step.target]) for step in deletion.steps.get(candidate, ())]
        for running_class in sorted((running_class for running_class in candidate.load if running_class in rank), key=rank.__getitem__):
            free_places = places[arrays.size_of[running_class]]
            pods = candidate.load[running_class]
            keys = [pods[0].key] if len(pods) == 1 else sorted([pod.key for pod in pods])
            moves += [Move(key, free_places.pop()) for key in keys]
        deletion.decisions.remove(candidate, deletion_reason(candidate, moves), saving=candidate.price, moves=moves)


def deletion_reason(candidate: Candidate, moves: Sequence[Move]) -> str:
    """A sentence for the removal of a machine with pods that move to existing machines."""
    targets = len({move.to for move in moves})
    saves = f"which saves ${candidate.price:.4f} per hour"
    if not moves:
        return f"runs only pods below the priority cut-off, {saves}"
    pods = f"its {len(moves)} pods fit" if len(moves) != 1 else "its pod fits"
    return f"{pods} on {targets} other node{'s' if targets != 1 else ''}, {saves}"
