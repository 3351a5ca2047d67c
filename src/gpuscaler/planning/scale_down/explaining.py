"""Why machines stay that nothing but the lack of room elsewhere keeps."""

import numpy as np

from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.filters.resources import PODS
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.company import APART
from gpuscaler.planning.scale_down.emptying import Emptied
from gpuscaler.planning.scale_down.fleet import Fleet
from gpuscaler.planning.scale_down.running import first_key


def in_use(fleet: Fleet, emptied: Emptied, targets: Mask) -> dict[str, Blocker]:
    """For each candidate that stays: a pod that fits nowhere else, or that its pods do not fit together."""
    free = emptied.packed.free
    rows = targets.copy()
    rows[fleet.rows[emptied.leaving]] = False
    open_rows = np.flatnonzero(rows)
    mine = np.flatnonzero(~emptied.leaving[fleet.owner])
    owner, size = fleet.owner[mine], fleet.size[mine]
    fitting = fitting_rows(fleet, free, open_rows, np.unique(size))
    # A closed row's position is that of the last column, which nothing fits.
    position = np.full(len(rows), len(open_rows), dtype=np.int64)
    position[open_rows] = np.arange(len(open_rows))
    others = fitting.sum(axis=1)[size] - fitting[size, position[fleet.rows[owner]]]
    stuck: dict[int, int] = {}
    for number, its in zip(owner[others == 0].tolist(), size[others == 0].tolist(), strict=True):
        stuck[number] = min(its, stuck.get(number, its))
    found = {}
    for number in np.flatnonzero(~emptied.leaving).tolist():
        candidate = fleet.candidates[number]
        if number in stuck:
            pods = [pod for one, pods in candidate.load.items() if fleet.size_of.get(one) == stuck[number] for pod in pods]
            elsewhere = open_rows[open_rows != fleet.rows[number]]
            found[candidate.name] = Blocker(
                "in-use", f"pod {first_key(pods)} fits on no other node: {why(fleet, free, elsewhere, stuck[number])}"
            )
        else:
            count = sum(len(pods) for one, pods in candidate.load.items() if one in fleet.size_of)
            found[candidate.name] = Blocker("in-use", f"its {count} pods do not fit together into the room that other nodes have left")
    return found


def fitting_rows(fleet: Fleet, free: Array, open_rows: Array, sizes: Array) -> Mask:
    """``[size, open row]``: whether a row has room for one pod of each size; False for other sizes, and in one more column."""
    fitting = np.zeros((len(fleet.sizes), len(open_rows) + 1), dtype=np.bool_)
    for size in sizes.tolist():
        request = fleet.sizes.requests[size]
        wanted = np.flatnonzero(request)
        room = (free[np.ix_(open_rows, wanted)] >= request[wanted]).all(axis=1)
        fitting[size, :-1] = room & fleet.sizes.admits[fleet.sizes.group[size]][open_rows]
    return fitting


def why(fleet: Fleet, free: Array, rows: Array, size: int) -> str:
    """How many of ``rows`` do not admit pods of a size, and how many are short of each resource."""
    if not len(rows):
        return "there is no other open node"
    admits = fleet.sizes.admits[fleet.sizes.group[size]][rows]
    said = [f"{int((~admits).sum())} do not admit it"] if not admits.all() else []
    for name, amount, column in zip(fleet.resources, fleet.sizes.requests[size].tolist(), free[rows].T, strict=True):
        short = int((admits & (column < amount)).sum())
        if short:
            said.append(f"{short} have {lack(name)}")
    return f"of {len(rows)} open node{'s' if len(rows) != 1 else ''}, {', '.join(said)}"


def lack(resource: str) -> str:
    if resource == PODS:
        return "no room for another pod"
    return "a pod that it keeps apart from" if resource.startswith(APART) else f"too little {resource}"
