"""Finds the candidates that can be emptied together into the free room of the others."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays, load_of
from gpuscaler.planning.scale_down.moves.packing import Packed, pack

#: Rounds that put machines back by the total that is missing; later rounds go by what is missing of each size, which always terminates.
OPTIMISTIC = 4


@dataclass
class Emptied:
    """The candidates that leave (``leaving[candidate]``), and where all their pods go."""

    leaving: Mask
    packed: Packed

    @property
    def receiving(self) -> set[int]:
        """Rows that some pod moves to."""
        return {row for _, rows, _ in self.packed.placed for row in rows.tolist()}


def empty_together(arrays: CandidateArrays, *, leaving: Mask, targets: Mask) -> Emptied:
    """Start with every candidate of ``leaving`` removed, and put candidates back, last first, until all pods have a place.

    ``targets`` are the rows that may take pods as long as their machine stays.
    """
    leaving = leaving.copy()
    tries = 0
    while True:
        rows = targets.copy()
        rows[arrays.rows[leaving]] = False
        packed = pack(arrays.sizes, arrays.total(leaving), arrays.free, rows)
        if not packed.left.any():
            return Emptied(leaving, packed)
        backwards = np.flatnonzero(leaving)[::-1]
        returning = put_back_by_total if tries < OPTIMISTIC else put_back_by_size
        leaving[returning(arrays, packed.left, backwards, targets)] = False
        tries += 1


def put_back_by_total(arrays: CandidateArrays, left: Array, backwards: Array, targets: Mask) -> Array:
    """The first of ``backwards`` that together have as much room as the pods in ``left`` request; at least one."""
    sizes = arrays.sizes
    put_back = np.zeros(len(arrays.candidates), dtype=np.bool_)
    groups = np.unique(sizes.group[np.flatnonzero(left)])
    for group in sorted(groups, key=lambda g: (int(sizes.admits[g].sum()), int(g))):
        members = np.flatnonzero((sizes.group == group) & (left > 0))
        missing = left[members] @ sizes.requests[members]
        room = room_of(arrays, backwards, sizes.admits[group], members, targets)
        missing = missing - room[put_back[backwards]].sum(axis=0)
        if (missing <= 0).all():
            continue
        useful = np.flatnonzero((room.sum(axis=1) > 0) & ~put_back[backwards])
        gained = np.cumsum(room[useful], axis=0)
        enough = np.flatnonzero((gained >= missing).all(axis=1))
        count = int(enough[0]) + 1 if len(enough) else len(useful)
        put_back[backwards[useful[:count]]] = True
    return np.flatnonzero(put_back)


def room_of(arrays: CandidateArrays, chosen: Array, admits: Mask, members: Array, targets: Mask) -> Array:
    """How much of the pods of the sizes ``members`` each candidate of ``chosen`` would hold if it stayed.

    One that admits them offers its free room and the room of its own pods; any other only keeps its own pods.
    """
    rows = arrays.rows[chosen]
    whole = arrays.free[rows] + arrays.load[chosen]
    of_sizes = np.isin(arrays.size, members)
    own = load_of(arrays.sizes, len(arrays.candidates), arrays.owner[of_sizes], arrays.size[of_sizes], arrays.amount[of_sizes])
    open_to = admits[rows] & targets[rows]
    return np.where(open_to[:, None], whole, own[chosen])


def put_back_by_size(arrays: CandidateArrays, left: Array, backwards: Array, targets: Mask) -> Array:
    """For each size that is left over, the first of ``backwards`` that hold enough copies when emptied; at least one."""
    sizes = arrays.sizes
    put_back = np.zeros(len(arrays.candidates), dtype=np.bool_)
    room = arrays.free[arrays.rows] + arrays.load
    for size in np.flatnonzero(left):
        request = sizes.requests[size]
        wanted = np.flatnonzero(request)
        rows = arrays.rows[backwards]
        copies = (room[backwards][:, wanted] // request[wanted]).min(axis=1)
        own = np.bincount(arrays.owner[arrays.size == size], weights=arrays.amount[arrays.size == size], minlength=len(put_back)).astype(
            np.int64
        )
        copies = np.where(sizes.admits[sizes.group[size]][rows] & targets[rows], np.maximum(copies, own[backwards]), own[backwards])
        first = np.argsort(~put_back[backwards], kind="stable")
        gained = np.cumsum(copies[first])
        count = int(np.searchsorted(gained, left[size])) + 1
        chosen = first[:count][copies[first[:count]] > 0]
        taken = np.minimum(copies[chosen], np.maximum(left[size] - (gained[:count][copies[first[:count]] > 0] - copies[chosen]), 0))
        room[backwards[chosen]] -= taken[:, None] * request
        put_back[backwards[chosen]] = True
    return np.flatnonzero(put_back)


def fitting_rows(arrays: CandidateArrays, free: Array, open_rows: Array, sizes: Array) -> Mask:
    """``[size, open row]``: whether a row has room for one pod of each of ``sizes``; False for other sizes and in one extra column."""
    fitting = np.zeros((len(arrays.sizes), len(open_rows) + 1), dtype=np.bool_)
    for size in sizes.tolist():
        request = arrays.sizes.requests[size]
        wanted = np.flatnonzero(request)
        room = (free[np.ix_(open_rows, wanted)] >= request[wanted]).all(axis=1)
        fitting[size, :-1] = room & arrays.sizes.admits[arrays.sizes.group[size]][open_rows]
    return fitting


@dataclass(frozen=True)
class StuckCandidates:
    """Candidates that stay and have pods of a size that fits on no other open row: ``size[candidate]`` is the first such size."""

    open_rows: Array
    size: dict[int, int]


def stuck_candidates(arrays: CandidateArrays, emptied: Emptied, targets: Mask) -> StuckCandidates:
    """Candidates that could not leave even alone."""
    rows = targets.copy()
    rows[arrays.rows[emptied.leaving]] = False
    open_rows = np.flatnonzero(rows)
    staying = np.flatnonzero(~emptied.leaving[arrays.owner])
    owner, size = arrays.owner[staying], arrays.size[staying]
    fitting = fitting_rows(arrays, emptied.packed.free, open_rows, np.unique(size))
    # A closed row gets the position of the last column, which is False for every size.
    position = np.full(len(rows), len(open_rows), dtype=np.int64)
    position[open_rows] = np.arange(len(open_rows))
    others = fitting.sum(axis=1)[size] - fitting[size, position[arrays.rows[owner]]]
    stuck_sizes: dict[int, int] = {}
    for number, stuck_size in zip(owner[others == 0].tolist(), size[others == 0].tolist(), strict=True):
        stuck_sizes[number] = min(stuck_size, stuck_sizes.get(number, stuck_size))
    return StuckCandidates(open_rows, stuck_sizes)
