"""Making a mix cheaper without changing which pods share a machine, and joining what was built separately."""

import numpy as np

from gpuscaler.planning.mix.fill import fits
from gpuscaler.planning.mix.instance import EPSILON, Floats, Instance, Ints, Mask
from gpuscaler.planning.mix.mixture import Mixture


def right_size(instance: Instance, mixture: Mixture) -> Mixture:
    """Move every machine's pods to the cheapest kind that holds them and weighs no more on any limit."""
    parts = []
    for kind, held, times in mixture.parts():
        kinds = np.flatnonzero(_no_heavier(instance, kind) & (instance.price < instance.price[kind] * (1 - EPSILON)))
        kinds = kinds[fits(instance, held, kinds)]
        parts.append((int(kinds[instance.price[kinds].argmin()]) if len(kinds) else kind, held, times))
    return Mixture.of(parts, len(instance.demand))


def _no_heavier(instance: Instance, kind: int) -> Mask:
    mask = np.ones(len(instance.price), dtype=np.bool_)
    for row in instance.limits:
        mask &= row.weights <= row.weights[kind]
    return mask


def cheapest(instance: Instance, kinds: Ints, held: Floats) -> Ints:
    """For each pattern, the cheapest kind that holds it (its own kind if nothing is cheaper)."""
    every = np.arange(len(instance.price))
    good = np.stack([fits(instance, pods, every) for pods in held], axis=1) if len(held) else np.zeros((len(every), 0), dtype=np.bool_)
    cost = np.where(good, instance.price[:, None], np.inf)
    best = cost.argmin(axis=0)
    return np.where(cost[best, np.arange(len(held))] < instance.price[kinds] * (1 - EPSILON), best, kinds)
