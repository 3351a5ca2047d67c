"""Makes a mix cheaper without changing which pods share a machine."""

import numpy as np

from gpuscaler.planning.mix.fill import fits_all
from gpuscaler.planning.mix.instance import EPSILON, Floats, Ints, Mask, ProblemArrays
from gpuscaler.planning.mix.mixture import Mixture


def right_size(instance: ProblemArrays, mixture: Mixture) -> Mixture:
    """Move every machine's pods to the cheapest kind that holds them and weighs no more on any limit."""
    if not len(mixture.kinds):
        return mixture
    allowed = fits_all(instance, mixture.held)
    for row in instance.limits:
        allowed &= row.weights <= row.weights[mixture.kinds, None]
    kinds = _cheaper(instance, mixture.kinds, allowed)
    if (kinds == mixture.kinds).all():
        return mixture
    return Mixture.of(list(zip(kinds.tolist(), mixture.held, mixture.times.tolist(), strict=True)), len(instance.demand))


def cheapest_kinds(instance: ProblemArrays, kinds: Ints, held: Floats) -> Ints:
    """For each pattern, the cheapest kind that holds it (its own kind if nothing is cheaper)."""
    return _cheaper(instance, kinds, fits_all(instance, held)) if len(kinds) else kinds


def _cheaper(instance: ProblemArrays, kinds: Ints, allowed: Mask) -> Ints:
    cost = np.where(allowed, instance.price, np.inf)
    best = cost.argmin(axis=1)
    return np.where(cost[np.arange(len(kinds)), best] < instance.price[kinds] * (1 - EPSILON), best, kinds)
