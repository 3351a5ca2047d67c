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


def empty_together(fleet: CandidateArrays, *, leaving: Mask, targets: Mask) -> Emptied:
    """Start with every candidate of ``leaving`` removed, and put candidates back, last first, until all pods have a place.

    ``targets`` are the rows that may take pods as long as their machine stays.
    """
    leaving = leaving.copy()
    tries = 0
    while True:
        rows = targets.copy()
        rows[fleet.rows[leaving]] = False
        packed = pack(fleet.sizes, fleet.total(leaving), fleet.free, rows)
        if not packed.left.any():
            return Emptied(leaving, packed)
        backwards = np.flatnonzero(leaving)[::-1]
        returning = put_back_by_total if tries < OPTIMISTIC else put_back_by_size
        leaving[returning(fleet, packed.left, backwards, targets)] = False
        tries += 1


def put_back_by_total(fleet: CandidateArrays, left: Array, backwards: Array, targets: Mask) -> Array:
    """The first of ``backwards`` that together have as much room as the pods in ``left`` request; at least one."""
    sizes = fleet.sizes
    put_back = np.zeros(len(fleet.candidates), dtype=np.bool_)
    groups = np.unique(sizes.group[np.flatnonzero(left)])
    for group in sorted(groups, key=lambda g: (int(sizes.admits[g].sum()), int(g))):
        members = np.flatnonzero((sizes.group == group) & (left > 0))
        missing = left[members] @ sizes.requests[members]
        room = room_of(fleet, backwards, sizes.admits[group], members, targets)
        missing = missing - room[put_back[backwards]].sum(axis=0)
        if (missing <= 0).all():
            continue
        useful = np.flatnonzero((room.sum(axis=1) > 0) & ~put_back[backwards])
        gained = np.cumsum(room[useful], axis=0)
        enough = np.flatnonzero((gained >= missing).all(axis=1))
        count = int(enough[0]) + 1 if len(enough) else len(useful)
        put_back[backwards[useful[:count]]] = True
    return np.flatnonzero(put_back)


def room_of(fleet: CandidateArrays, chosen: Array, admits: Mask, members: Array, targets: Mask) -> Array:
    """How much of the pods of the sizes ``members`` each candidate of ``chosen`` would hold if it stayed.

    One that admits them offers its free room and the room of its own pods; any other only keeps its own pods.
    """
    rows = fleet.rows[chosen]
    whole = fleet.free[rows] + fleet.load[chosen]
    of_sizes = np.isin(fleet.size, members)
    own = load_of(fleet.sizes, len(fleet.candidates), fleet.owner[of_sizes], fleet.size[of_sizes], fleet.amount[of_sizes])
    open_to = admits[rows] & targets[rows]
    return np.where(open_to[:, None], whole, own[chosen])


def put_back_by_size(fleet: CandidateArrays, left: Array, backwards: Array, targets: Mask) -> Array:
    """For each size that is left over, the first of ``backwards`` that hold enough copies when emptied; at least one."""
    sizes = fleet.sizes
    put_back = np.zeros(len(fleet.candidates), dtype=np.bool_)
    room = fleet.free[fleet.rows] + fleet.load
    for size in np.flatnonzero(left):
        request = sizes.requests[size]
        wanted = np.flatnonzero(request)
        rows = fleet.rows[backwards]
        copies = (room[backwards][:, wanted] // request[wanted]).min(axis=1)
        own = np.bincount(fleet.owner[fleet.size == size], weights=fleet.amount[fleet.size == size], minlength=len(put_back)).astype(
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


def fitting_rows(fleet: CandidateArrays, free: Array, open_rows: Array, sizes: Array) -> Mask:
    """``[size, open row]``: whether a row has room for one pod of each of ``sizes``; False for other sizes and in one extra column."""
    fitting = np.zeros((len(fleet.sizes), len(open_rows) + 1), dtype=np.bool_)
    for size in sizes.tolist():
        request = fleet.sizes.requests[size]
        wanted = np.flatnonzero(request)
        room = (free[np.ix_(open_rows, wanted)] >= request[wanted]).all(axis=1)
        fitting[size, :-1] = room & fleet.sizes.admits[fleet.sizes.group[size]][open_rows]
    return fitting


@dataclass(frozen=True)
class Stuck:
    """Candidates that stay and have pods of a size that fits on no other open row: ``size[candidate]`` is the first such size."""

    open_rows: Array
    size: dict[int, int]


def stuck(fleet: CandidateArrays, emptied: Emptied, targets: Mask) -> Stuck:
    """Candidates that could not leave even alone."""
    rows = targets.copy()
    rows[fleet.rows[emptied.leaving]] = False
    open_rows = np.flatnonzero(rows)
    staying = np.flatnonzero(~emptied.leaving[fleet.owner])
    owner, size = fleet.owner[staying], fleet.size[staying]
    fitting = fitting_rows(fleet, emptied.packed.free, open_rows, np.unique(size))
    # A closed row gets the position of the last column, which is False for every size.
    position = np.full(len(rows), len(open_rows), dtype=np.int64)
    position[open_rows] = np.arange(len(open_rows))
    others = fitting.sum(axis=1)[size] - fitting[size, position[fleet.rows[owner]]]
    stuck_sizes: dict[int, int] = {}
    for number, stuck_size in zip(owner[others == 0].tolist(), size[others == 0].tolist(), strict=True):
        stuck_sizes[number] = min(stuck_size, stuck_sizes.get(number, stuck_size))
    return Stuck(open_rows, stuck_sizes)
