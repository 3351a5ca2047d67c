"""Greedy constructions: repeatedly buy the machine with the most pod value per dollar, as often as it can be filled the same way."""

import numpy as np

from gpuscaler.planning.mix.columns.bounds import Prices
from gpuscaler.planning.mix.fill import fill, grow
from gpuscaler.planning.mix.instance import EPSILON, Floats, Ints, Mask, ProblemArrays
from gpuscaler.planning.mix.mixture import Mixture, rank
from gpuscaler.planning.mix.work import Meter


def orders(instance: ProblemArrays, prices: Prices) -> list[Ints]:
    """Orders in which to fill a machine: by value, density, or largest share of any resource, highest first; always by tier before."""
    size = instance.request / np.maximum(instance.capacity.max(axis=0, initial=1.0), 1.0)
    largest = size.max(axis=1, initial=0.0)
    density = prices.items / np.maximum(size.sum(axis=1), EPSILON)
    fewest = instance.copies.max(axis=1, initial=0.0)
    keys = ((-largest, -prices.items), (-prices.items, -largest), (fewest, -prices.items), (-largest, -density))
    item_orders = {np.lexsort((second, first, instance.tier)).tobytes() for first, second in keys}
    return [np.frombuffer(raw, dtype=np.int64) for raw in sorted(item_orders)]


def constructions(
    instance: ProblemArrays, prices: Prices, *, start: Mixture | None = None, below: float = np.inf, meter: Meter
) -> list[Mixture]:
    """A mix for each of :func:`orders`; only the first ones if the budget ends or none of them costs less than ``below``."""
    mixtures: list[Mixture] = []
    for order in orders(instance, prices):
        if mixtures and (not meter.left() or min(mixture.cost(instance) for mixture in mixtures) >= below):
            break
        mixture = construct(instance, prices, order, start=start, meter=meter, must=not mixtures)
        mixtures += [] if mixture is None else [mixture]
    return mixtures


def construct(
    instance: ProblemArrays, prices: Prices, order: Ints, *, start: Mixture | None = None, meter: Meter, must: bool = True
) -> Mixture | None:
    """Build a mix for all pods that limits allow, filling machines in ``order``; None if the budget ends first, unless ``must``.

    ``start`` holds machines that are already chosen.
    """
    items, all_kinds = len(instance.demand), np.arange(len(instance.price))
    parts = start.parts() if start is not None else []
    remaining = instance.demand - (start.served() if start is not None else 0.0)
    spare = spare_amounts(instance, parts)
    cost, best = 0.0, None
    finish = np.inf
    charged = prices.kind_costs(instance)
    filled, stale = np.zeros((len(all_kinds), items)), np.ones(len(all_kinds), dtype=np.bool_)
    while remaining.any():
        buyable = affordable(instance, spare)
        kinds = all_kinds[buyable]
        if not len(kinds):
            break
        if not must and not meter.left():
            return None
        # A machine with pods that are all still unplaced would be filled the same way again.
        to_refill = all_kinds[buyable & stale]
        filled[to_refill], stale[to_refill] = fill(instance, order, remaining, to_refill), False
        held = filled[kinds]
        meter.add(len(order) * (45 + 0.3 * len(to_refill)) * (len(to_refill) > 0) + len(kinds) + 100)
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
        times = fitting_times(instance, kind, copies, remaining, spare)
        parts.append((kind, copies, times))
        cost += float(instance.price[kind]) * times
        remaining = remaining - copies * times
        stale |= (filled > remaining).any(axis=1)
        spare = [amount - row.weights[kind] * times for row, amount in zip(instance.limits, spare, strict=True)]
        if best is not None and cost >= finish:
            break
    ways = [Mixture.of(parts, items)] if best is None else [Mixture.of(parts, items), Mixture.of(best, items)]
    return min(ways, key=lambda mixture: rank(instance, mixture))


def top_up(instance: ProblemArrays, mixture: Mixture) -> Mixture:
    """Put unplaced pods on machines that have room for them, higher tiers first."""
    remaining = instance.demand - mixture.served()
    parts: list[tuple[int, Floats, int]] = []
    for kind, held, times in mixture.parts():
        left = times
        while left and remaining.any():
            limits = np.minimum(held + remaining, instance.copies[:, kind])
            grown = grow(instance, kind, held, limits)
            extra = grown - held
            present = extra > 0
            if not present.any():
                break
            often = min(left, int(np.floor(remaining[present] / extra[present]).min()))
            parts.append((kind, grown, often))
            remaining = remaining - extra * often
            left -= often
        parts.append((kind, held, left))
    return Mixture.of(parts, len(instance.demand))


def spare_amounts(instance: ProblemArrays, parts: list[tuple[int, Floats, int]]) -> list[float]:
    return [row.amount - sum(float(row.weights[kind]) * times for kind, _, times in parts) for row in instance.limits]


def affordable(instance: ProblemArrays, spare: list[float]) -> Mask:
    """Kinds of which at least one more may be bought."""
    mask = np.ones(len(instance.price), dtype=np.bool_)
    for row, amount in zip(instance.limits, spare, strict=True):
        mask &= row.weights <= amount * (1 + EPSILON)
    return mask


def fitting_times(instance: ProblemArrays, kind: int, copies: Floats, remaining: Floats, spare: list[float]) -> int:
    """How often this machine can be bought if it is filled the same way each time."""
    present = copies > 0
    most = float(np.floor(remaining[present] / copies[present]).min())
    for row, amount in zip(instance.limits, spare, strict=True):
        if row.weights[kind] > 0:
            most = min(most, np.floor(amount * (1 + EPSILON) / row.weights[kind]))
    return int(most)
