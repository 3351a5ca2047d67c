"""Upper bounds on the worth of one machine's pods: a Lagrangian per kind, minimised along one line at a time, all kinds at once.

For resource prices m >= 0, no machine of capacity C holds pods worth more than
g(m) = m·C + sum of copies_i * max(0, value_i - m·request_i). g is convex and piecewise linear, and its minimum is the linear relaxation
of the machine's knapsack. Along a line its minimum is where items stop being worth their resources, which sorting finds. Stopping
early gives a weaker bound, but still a valid one.
"""

import numpy as np

from gpuscaler.planning.mix.instance import Floats, Ints, ProblemArrays

_SWEEPS = 2


def worths(instance: ProblemArrays, kinds: Ints, values: Floats, prices: Floats) -> Floats:
    """g for each of ``kinds`` at resource ``prices`` (len(kinds), R); shape (len(kinds),)."""
    gain = np.maximum(values - prices @ instance.request.T, 0.0) * instance.copies[:, kinds].T
    return np.asarray((prices * instance.capacity[kinds]).sum(axis=1) + gain.sum(axis=1))


def sharpen(instance: ProblemArrays, kinds: Ints, values: Floats, starts: tuple[Floats, ...]) -> tuple[Floats, Floats]:
    """Resource prices (len(kinds), R) that give good bounds for ``kinds``, and these bounds; never worse than the best of ``starts``."""
    capacity = instance.capacity[kinds]
    even = np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)
    best = np.zeros_like(capacity)
    bound = np.full(len(kinds), np.inf)
    for start in (*starts, even):
        # The scale of a start does not matter: the minimum along the ray through it is used.
        prices = _along(instance, kinds, values, np.zeros_like(capacity), start)
        worth = worths(instance, kinds, values, prices)
        best[worth < bound] = prices[worth < bound]
        bound = np.minimum(bound, worth)
    for _ in range(_SWEEPS):
        for resource in range(capacity.shape[1]):
            base, axis = best.copy(), np.zeros_like(best)
            base[:, resource], axis[:, resource] = 0.0, even[:, resource]
            prices = _along(instance, kinds, values, base, axis)
            worth = worths(instance, kinds, values, prices)
            best[worth < bound] = prices[worth < bound]
            bound = np.minimum(bound, worth)
    return best, bound


def _along(instance: ProblemArrays, kinds: Ints, values: Floats, base: Floats, direction: Floats) -> Floats:
    """The point ``base + t * direction``, t >= 0, with the smallest g; every row on its own line."""
    slope = direction @ instance.request.T
    margin = values - base @ instance.request.T
    with np.errstate(divide="ignore", invalid="ignore"):
        stop = np.where((slope > 0) & (margin > 0), margin / slope, 0.0)
    order = np.argsort(-stop, axis=1, kind="stable")
    used = np.where(stop > 0, instance.copies[:, kinds].T * slope, 0.0)
    # From the right: the slope of g is the room, less what the items that are still worth their resources would take.
    total = np.cumsum(np.take_along_axis(used, order, axis=1), axis=1)
    room = (direction * instance.capacity[kinds]).sum(axis=1)
    turn = (total < room[:, None]).sum(axis=1)
    stop = np.take_along_axis(stop, order, axis=1)
    step = np.where(turn < stop.shape[1], np.take_along_axis(stop, np.minimum(turn, stop.shape[1] - 1)[:, None], axis=1)[:, 0], 0.0)
    return np.asarray(base + step[:, None] * direction)
