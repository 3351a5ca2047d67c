"""Filling along the resource programme: every machine of a kind gets its share of all the pods that the programme put on that kind.

With hundreds of items and hundreds of pods on a machine, what costs money is not how pods tile a machine but machines that run out of one
resource while another is left. Equal shares keep all machines balanced the way the programme's optimum is.
"""

import numpy as np

from gpuscaler.planning.mix.bounds import Relaxed, guide
from gpuscaler.planning.mix.fill import fill, fits
from gpuscaler.planning.mix.greedy import affordable, fitting_times, spare_amounts
from gpuscaler.planning.mix.improve import right_size
from gpuscaler.planning.mix.instance import EPSILON, Floats, Instance, Ints
from gpuscaler.planning.mix.mixture import Mixture, rank
from gpuscaler.planning.mix.work import Meter

_BATCHES = 24
#: Work of filling one machine, for each item.
_SHARE = 8


def poured(instance: Instance, relaxed: Relaxed, meter: Meter) -> Mixture:
    """The better of the mixes along ``relaxed`` and, where machines have caps besides resources, along a sketch that knows them."""
    ways = [relaxed]
    if instance.capped.any() or instance.real < instance.capacity.shape[1]:
        ways.append(guide(instance, relaxed.prices))
        meter.add(20_000 + ways[1].iterations * 800)
    found = [right_size(instance, pour(instance, way, meter)) for way in ways[::-1]]
    return min(found, key=lambda mixture: rank(instance, mixture))


def pour(instance: Instance, relaxed: Relaxed, meter: Meter) -> Mixture:
    """A mix for everything limits allow; whole machines along ``relaxed``, the rest greedily."""
    remaining = instance.demand.copy()
    size = (instance.request / np.maximum(instance.capacity.max(axis=0, initial=1.0), 1.0)).max(axis=1, initial=0.0)
    largest = np.argsort(-size, kind="stable")
    parts: list[tuple[int, Floats, int]] = []
    for kind in np.flatnonzero(relaxed.machines >= 1.0):
        wanted = np.minimum(relaxed.flows[:, kind], remaining)
        left = int(relaxed.machines[kind] + EPSILON)
        whole = relaxed.machines[kind] - left
        while left:
            # Hundreds of machines need not all differ: the first ones come in equal batches.
            often = max(left // _BATCHES, 1)
            held = _share(instance, int(kind), wanted / (left + whole), np.floor(remaining / often), largest)
            meter.add(_SHARE * len(remaining))
            parts.append((int(kind), held, often))
            remaining = remaining - held * often
            wanted = np.clip(wanted - held * often, 0.0, remaining)
            left -= often
    return _rest(instance, relaxed, parts, remaining, largest, meter)


def _rest(  # noqa: PLR0917  (one call, from pour)
    instance: Instance, relaxed: Relaxed, parts: list[tuple[int, Floats, int]], remaining: Floats, largest: Ints, meter: Meter
) -> Mixture:
    """Finish with the cheapest machine that holds everything left, or with full ones of the programme's kinds until one can."""
    support = relaxed.machines > 0
    every = np.arange(len(instance.price))
    while remaining.any():
        open_kinds = affordable(instance, spare_amounts(instance, parts))
        last = every[open_kinds & fits(instance, remaining, every)]
        if len(last):
            parts.append((int(last[instance.price[last].argmin()]), remaining, 1))
            break
        kinds = every[open_kinds & support]
        helds = [_share(instance, int(kind), remaining, remaining, largest) for kind in kinds]
        meter.add(_SHARE * len(remaining) * len(kinds))
        worth = [float(held @ relaxed.prices.items) for held in helds]
        score = np.array(worth) / np.maximum(relaxed.prices.kind_costs(instance)[kinds], EPSILON)
        if not len(kinds) or not helds[int(score.argmax())].any():
            break
        kind, held = int(kinds[score.argmax()]), helds[int(score.argmax())]
        often = fitting_times(instance, kind, held, remaining, spare_amounts(instance, parts))
        parts.append((kind, held, often))
        remaining = remaining - held * often
    return Mixture.of(parts, len(remaining))


def _share(instance: Instance, kind: int, share: Floats, remaining: Floats, largest: Ints) -> Floats:
    """One machine with about ``share`` of each item, filled up with whatever else fits, the largest first."""
    most = np.minimum(instance.copies[:, kind], remaining)
    held = np.minimum(np.floor(share + EPSILON), most)
    room = instance.capacity[kind] - held @ instance.request
    if (room < 0).any():
        held, room = np.zeros_like(held), instance.capacity[kind].copy()
    nearest = np.argsort(np.floor(share) - share, kind="stable")
    held, room = _prefix(instance, held, room, nearest, np.minimum(most, np.ceil(share)))
    held, room = _prefix(instance, held, room, largest, most)
    if instance.device is not None or any(instance.apart):
        # Devices and pairs kept apart are beyond sums; what breaks them is left for other machines.
        held = fill(instance, largest, held, np.array([kind]))[0]
    return held


def _prefix(instance: Instance, held: Floats, room: Floats, order: Ints, most: Floats) -> tuple[Floats, Floats]:
    """Go through ``order`` and take of each item what still fits, up to ``most``."""
    held = held.copy()
    while True:
        order = order[(most[order] > held[order]) & np.all(instance.request[order] <= room, axis=1)]
        if not len(order):
            return held, room
        want, request = (most - held)[order], instance.request[order]
        total = np.cumsum(want[:, None] * request, axis=0)
        over = np.flatnonzero((total > room).any(axis=1))
        upto = int(over[0]) if len(over) else len(order)
        held[order[:upto]] += want[:upto]
        room = room - (total[upto - 1] if upto else 0.0)
        if upto == len(order):
            return held, room
        need = request[upto] > 0
        some = min(want[upto], float(np.floor(room[need] / request[upto][need]).min()))
        held[order[upto]] += some
        room = room - some * request[upto]
        order = order[upto + 1 :]
