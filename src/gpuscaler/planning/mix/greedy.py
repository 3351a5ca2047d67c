"""Constructions: buy the machine whose pods are worth most per dollar, as often as it can be filled the same way, until nothing is left."""

import numpy as np

from gpuscaler.planning.mix.bounds import Prices
from gpuscaler.planning.mix.fill import fill
from gpuscaler.planning.mix.instance import EPSILON, Floats, Instance, Ints, Mask
from gpuscaler.planning.mix.mixture import Mixture, rank


def orders(instance: Instance, prices: Prices) -> list[Ints]:
    """Orders in which to fill a machine: dearest pods first, densest first, largest share of any resource first; tiers always first."""
    size = instance.request / np.maximum(instance.capacity.max(axis=0, initial=1.0), 1.0)
    largest = size.max(axis=1, initial=0.0)
    density = prices.items / np.maximum(size.sum(axis=1), EPSILON)
    fewest = instance.copies.max(axis=1, initial=0.0)
    keys = ((-largest, -prices.items), (-prices.items, -largest), (fewest, -prices.items), (-largest, -density))
    found = {np.lexsort((second, first, instance.tier)).tobytes() for first, second in keys}
    return [np.frombuffer(raw, dtype=np.int64) for raw in sorted(found)]


def construct(instance: Instance, prices: Prices, order: Ints, *, start: Mixture | None = None) -> tuple[Mixture, int]:
    """Build a mix for everything limits allow, filling machines in ``order``; also returns the number of fills made.

    ``start`` holds machines already chosen.
    """
    items, every = len(instance.demand), np.arange(len(instance.price))
    parts = start.parts() if start is not None else []
    remaining = instance.demand - (start.served() if start is not None else 0.0)
    spare = _spare(instance, parts)
    cost, best, fills = 0.0, None, 0
    finish = np.inf
    charged = prices.kind_costs(instance)
    while remaining.any():
        kinds = every[_affordable(instance, spare)]
        if not len(kinds):
            break
        held = fill(instance, order, remaining, kinds)
        fills += len(kinds)
        done = np.flatnonzero(np.all(held == remaining, axis=1))
        if len(done):
            last = done[instance.price[kinds[done]].argmin()]
            if cost + instance.price[kinds[last]] < finish:
                finish = cost + float(instance.price[kinds[last]])
                best = [*parts, (int(kinds[last]), held[last], 1)]
        score = (held @ prices.items + EPSILON * held.sum(axis=1)) / np.maximum(charged[kinds], EPSILON)
        pick = int(score.argmax())
        if not held[pick].any():
            break
        kind, copies = int(kinds[pick]), held[pick]
        times = _times(instance, kind, copies, remaining, spare)
        parts.append((kind, copies, times))
        cost += float(instance.price[kind]) * times
        remaining = remaining - copies * times
        spare = [amount - row.weights[kind] * times for row, amount in zip(instance.limits, spare, strict=True)]
        if best is not None and cost >= finish:
            break
    ways = [Mixture.of(parts, items)] if best is None else [Mixture.of(parts, items), Mixture.of(best, items)]
    return min(ways, key=lambda mixture: rank(instance, mixture)), fills


def _spare(instance: Instance, parts: list[tuple[int, Floats, int]]) -> list[float]:
    return [row.amount - sum(float(row.weights[kind]) * times for kind, _, times in parts) for row in instance.limits]


def _affordable(instance: Instance, spare: list[float]) -> Mask:
    """Kinds of which at least one more may be bought."""
    mask = np.ones(len(instance.price), dtype=np.bool_)
    for row, amount in zip(instance.limits, spare, strict=True):
        mask &= row.weights <= amount * (1 + EPSILON)
    return mask


def _times(instance: Instance, kind: int, copies: Floats, remaining: Floats, spare: list[float]) -> int:
    """How often this machine can be bought, filled the same way each time."""
    some = copies > 0
    most = float(np.floor(remaining[some] / copies[some]).min())
    for row, amount in zip(instance.limits, spare, strict=True):
        if row.weights[kind] > 0:
            most = min(most, np.floor(amount * (1 + EPSILON) / row.weights[kind]))
    return int(most)
