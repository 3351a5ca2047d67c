"""Blockers of machines that stay only because there is no room elsewhere."""

import numpy as np

from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.feasibility.resources import PODS
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.moves.bulk import Emptied, stuck_candidates
from gpuscaler.planning.scale_down.moves.bulk_affinity import EXCLUSIVE
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays
from gpuscaler.planning.scale_down.pod_classes import first_key


def in_use_blockers(arrays: CandidateArrays, emptied: Emptied, targets: Mask) -> dict[str, Blocker]:
    """The blocker of each candidate that stays: it names a pod that fits nowhere else, or says that its pods do not fit together."""
    alone = stuck_candidates(arrays, emptied, targets)
    shortage = Shortage(arrays, emptied.packed.free, alone.open_rows)
    blockers = {}
    for number in np.flatnonzero(~emptied.leaving).tolist():
        candidate = arrays.candidates[number]
        size = alone.size.get(number)
        if size is None:
            count = sum(len(pods) for running_class, pods in candidate.load.items() if running_class in arrays.size_of)
            detail = f"its {count} pods do not all fit into the free room of other nodes"
        else:
            pods = [pod for running_class, pods in candidate.load.items() if arrays.size_of.get(running_class) == size for pod in pods]
            detail = f"pod {first_key(pods)} fits on no other node: {shortage.of(size, int(arrays.rows[number]))}"
        blockers[candidate.name] = Blocker("in-use", detail)
    return blockers


class Shortage:
    """What the open rows lack for a pod of each size; counted once per size, since one size may keep thousands of machines."""

    def __init__(self, arrays: CandidateArrays, free: Array, open_rows: Array) -> None:
        self._fleet = arrays
        self._free = free
        self._open_rows = open_rows
        self._open = set(open_rows.tolist())
        self._memo: dict[int, Array] = {}

    def of(self, size: int, own: int) -> str:
        """How many of the open rows, except ``own``, do not admit pods of ``size``, and how many are short of each resource."""
        total = self._memo.get(size)
        if total is None:
            total = self._memo[size] = self._lacks(size, self._open_rows).sum(axis=0)
        rows = len(self._open_rows)
        if own in self._open:
            total, rows = total - self._lacks(size, np.array([own]))[0], rows - 1
        if not rows:
            return "there is no other open node"
        shortages = ["do not admit it", *(f"have {describe_shortage(name)}" for name in self._fleet.resources)]
        detail = ", ".join(f"{count} {words}" for count, words in zip(total.tolist(), shortages, strict=True) if count)
        return f"of {rows} open node{'s' if rows != 1 else ''}, {detail}"

    def _lacks(self, size: int, rows: Array) -> Array:
        """``[row, 0]``: the row does not admit the size; ``[row, 1 + resource]``: it does, but has too little of the resource."""
        sizes = self._fleet.sizes
        admits = sizes.admits[sizes.group[size]][rows]
        return np.column_stack((~admits, admits[:, None] & (self._free[rows] < sizes.requests[size]))).astype(np.int64)


def describe_shortage(resource: str) -> str:
    if resource == PODS:
        return "no room for another pod"
    return "a pod that conflicts with it (anti-affinity)" if resource.startswith(EXCLUSIVE) else f"too little {resource}"
