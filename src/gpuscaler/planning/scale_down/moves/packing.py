"""Packs many pods into free room at once: sizes in descending order, each spread over all rows with a few array operations.

Pods of one *size* have the same requests and are admitted by the same rows. Placing one pod at a time over thousands of rows costs
seconds; here a size with a thousand pods costs as much as one with ten. Rows are preferred if their free resources have the same
proportions as the pod's requests, so that no resource runs out while others are unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Array, Floats, Mask

#: A row takes at most 1/SHARE of its possible copies at a time, so that the next round can correct the proportions.
SHARE = 2
#: Rounds for one size before its pods are put wherever they fit.
SWEEPS = 6


@dataclass(frozen=True)
class Sizes:
    """``requests[size, resource]``; ``admits[group[size], row]`` gives the rows that admit a size, apart from resources."""

    requests: Array
    group: Array
    admits: Mask

    def __len__(self) -> int:
        return len(self.requests)


@dataclass
class Packed:
    """A packing. ``placed`` are (size, rows, counts); ``left[size]`` pods found no room; ``free`` is what the rows have left after it."""

    placed: list[tuple[int, Array, Array]]
    left: Array
    free: Array


def pack(sizes: Sizes, counts: Array, free: Array, rows: Mask) -> Packed:
    """Put ``counts[size]`` pods into ``free[row, resource]`` on the rows of the mask ``rows``. Neither argument is changed."""
    free = free.copy()
    placed: list[tuple[int, Array, Array]] = []
    left = counts.copy()
    open_rows = [np.flatnonzero(mask & rows) for mask in sizes.admits]
    for size in order(sizes, counts, free, open_rows):
        admitting = open_rows[sizes.group[size]]
        if len(admitting):
            copies = _spread_copies(sizes.requests[size], int(counts[size]), free, admitting)
            used = np.flatnonzero(copies)
            if len(used):
                placed.append((size, admitting[used], copies[used]))
                left[size] -= int(copies.sum())
    return Packed(placed, left, free)


def order(sizes: Sizes, counts: Array, free: Array, open_rows: Sequence[Array]) -> list[int]:
    """The sizes to place: those with the fewest rows first, then the largest in proportion to what rows have."""
    wanted = np.flatnonzero(counts)
    typical = np.maximum(free.max(axis=0, initial=1), 1)
    bulk = (sizes.requests[wanted] / typical).max(axis=1, initial=0.0)
    choice = np.array([len(open_rows[group]) for group in sizes.group[wanted]], dtype=np.int64)
    return [int(size) for size in wanted[np.lexsort((wanted, -bulk, choice))]]


def _spread_copies(request: Array, count: int, free: Array, rows: Array) -> Array:
    """How many of ``count`` copies each row of ``rows`` takes; ``free`` is reduced."""
    wanted = np.flatnonzero(request)
    amount = request[wanted]
    room = free[np.ix_(rows, wanted)]
    fit = np.maximum((room // amount).min(axis=1), 0)
    taken = np.zeros(len(rows), dtype=np.int64)
    total_fit = int(fit.sum())
    if total_fit <= count:
        taken = fit
    else:
        for sweep in range(SWEEPS):
            score = alignment(amount, room)
            score[fit <= 0] = -1.0
            portion = fit if sweep == SWEEPS - 1 else -(-fit // SHARE)
            now = _distribute(portion, np.argsort(-score, kind="stable"), count)
            taken += now
            count -= int(now.sum())
            if not count:
                break
            room = room - now[:, None] * amount
            fit = np.maximum((room // amount).min(axis=1), 0)
    free[np.ix_(rows, wanted)] -= taken[:, None] * amount
    return taken


def alignment(amount: Array, room: Array) -> Floats:
    """The cosine between a pod's requests and the free resources of each row, in units of the largest free amounts."""
    scale = np.maximum(room.max(axis=0), 1)
    want, have = amount / scale, room / scale
    length = np.sqrt((have * have).sum(axis=1))
    score: Floats = (have @ want) / np.maximum(length, 1e-12)
    return score


def _distribute(portion: Array, by: Array, count: int) -> Array:
    """Distribute ``count`` copies over the rows in the order ``by``; each row takes at most its portion."""
    total = np.cumsum(portion[by])
    given = np.minimum(portion[by], np.maximum(count - (total - portion[by]), 0))
    result = np.zeros(len(portion), dtype=np.int64)
    result[by] = given
    return result
