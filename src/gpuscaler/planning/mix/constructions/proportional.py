"""Proportional filling: every machine of a kind gets its share of all the pods that the resource programme put on that kind.

With hundreds of items and hundreds of pods on a machine, cost does not depend on how pods tile a machine, but on machines that run out of
one resource while another is unused. Equal shares keep all machines balanced like the programme's optimum.
"""

import numpy as np

from gpuscaler.planning.mix.columns.bounds import Relaxed, guide
from gpuscaler.planning.mix.constructions.greedy import affordable, fitting_times, spare_amounts
from gpuscaler.planning.mix.fill import fill, fits
from gpuscaler.planning.mix.instance import EPSILON, Floats, Ints, ProblemArrays, residual
from gpuscaler.planning.mix.mixture import Mixture
from gpuscaler.planning.mix.work import Meter

_MANY, _CROWD = 60, 16.0
#: Machines of a kind are filled in about this many batches; this many sketches are made, each for the rest of the one before.
_BATCHES, _SKETCHES = 24, 2
#: Work of filling one machine, for each item.
_SHARE = 8


def has_many_items(instance: ProblemArrays) -> bool:
    """Whether there are so many items that machines are best filled along the resource programme first."""
    return int(np.count_nonzero(instance.demand)) > _MANY


def is_crowded(mixture: Mixture) -> bool:
    """Whether so many pods share a machine that better patterns would hardly save money."""
    return float(mixture.served().sum()) > _CROWD * float(mixture.times.sum())


def construct_along(instance: ProblemArrays, relaxed: Relaxed, *, penalty: Floats | None = None, meter: Meter) -> Mixture:
    """A mix for all pods that limits allow, along ``relaxed``, or along sketches that include caps if there are any.

    ``penalty`` is the cost of an unplaced pod, if limits bind.
    """
    filling = _MixFilling(instance, meter)
    if not instance.capped.any() and instance.real == instance.capacity.shape[1]:
        filling.whole(relaxed)
        return filling.finish(relaxed)
    sketch = relaxed
    # A second sketch would not account for the part of the limits that the first one used.
    for _ in range(1 if instance.limits else _SKETCHES):
        sketch = guide(residual(instance, filling.remaining), relaxed.prices, penalty=penalty)
        meter.add(20_000 + sketch.iterations * 800)
        filling.whole(sketch)
        if not filling.remaining.any():
            break
    return filling.finish(sketch)


class _MixFilling:
    """Machines filled so far (``parts``), and the pods ``remaining``."""

    def __init__(self, instance: ProblemArrays, meter: Meter) -> None:
        self.instance = instance
        self.meter = meter
        self.remaining = instance.demand.copy()
        self.parts: list[tuple[int, Floats, int]] = []
        size = instance.request[:, : instance.real] / np.maximum(instance.capacity[:, : instance.real].max(axis=0, initial=1.0), 1.0)
        self.largest = np.argsort(-size.max(axis=1, initial=0.0), kind="stable")

    def whole(self, relaxed: Relaxed) -> None:
        """Fill all the whole machines of ``relaxed``."""
        for kind in np.flatnonzero(relaxed.machines >= 1.0):
            wanted = np.minimum(relaxed.flows[:, kind], self.remaining)
            left = int(relaxed.machines[kind] + EPSILON)
            part = relaxed.machines[kind] - left
            while left:
                # Hundreds of machines need not all differ: the first ones are filled in equal batches.
                often = max(left // _BATCHES, 1)
                held = _share(self.instance, int(kind), wanted / (left + part), np.floor(self.remaining / often), self.largest)
                self._buy(int(kind), held, often)
                wanted = np.clip(wanted - held * often, 0.0, self.remaining)
                left -= often

    def finish(self, relaxed: Relaxed) -> Mixture:
        """Buy the cheapest machine that holds everything left, or full ones of the kinds of ``relaxed`` until one can."""
        instance, all_kinds = self.instance, np.arange(len(self.instance.price))
        costs = np.maximum(relaxed.prices.kind_costs(instance), EPSILON)
        while self.remaining.any():
            spare = spare_amounts(instance, self.parts)
            allowed = affordable(instance, spare)
            last = all_kinds[allowed & fits(instance, self.remaining, all_kinds)]
            if len(last):
                self._buy(int(last[instance.price[last].argmin()]), self.remaining, 1)
                break
            kinds = all_kinds[allowed & (relaxed.machines > 0)]
            helds = [_share(instance, int(kind), self.remaining, self.remaining, self.largest) for kind in kinds]
            self.meter.add(_SHARE * len(self.remaining) * len(kinds))
            score = [float(held @ relaxed.prices.items) / costs[kind] for kind, held in zip(kinds, helds, strict=True)]
            pick = int(np.argmax(score)) if score else -1
            if pick < 0 or not helds[pick].any():
                break
            self._buy(int(kinds[pick]), helds[pick], fitting_times(instance, int(kinds[pick]), helds[pick], self.remaining, spare))
        return Mixture.of(self.parts, len(self.remaining))

    def _buy(self, kind: int, held: Floats, often: int) -> None:
        self.meter.add(_SHARE * len(held))
        self.parts.append((kind, held, often))
        self.remaining = self.remaining - held * often


def _share(instance: ProblemArrays, kind: int, share: Floats, remaining: Floats, largest: Ints) -> Floats:
    """One machine with about ``share`` of each item, filled up with other pods that fit, largest first."""
    most = np.minimum(instance.copies[:, kind], remaining)
    held = np.minimum(np.floor(share + EPSILON), most)
    room = instance.capacity[kind] - held @ instance.request
    if (room < 0).any():
        held, room = np.zeros_like(held), instance.capacity[kind].copy()
    nearest = np.argsort(np.floor(share) - share, kind="stable")
    held, room = _prefix(instance, held, room, nearest, np.minimum(most, np.ceil(share)))
    held, room = _prefix(instance, held, room, largest, most)
    if instance.device is not None or any(instance.excluded):
        # Devices and pairs kept apart are not in the sums; pods that violate them are left for other machines.
        held = fill(instance, largest, held, np.array([kind]))[0]
    return held


def _prefix(instance: ProblemArrays, held: Floats, room: Floats, order: Ints, most: Floats) -> tuple[Floats, Floats]:
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
        fitting = min(want[upto], float(np.floor(room[need] / request[upto][need]).min()))
        held[order[upto]] += fitting
        room = room - fitting * request[upto]
        order = order[upto + 1 :]
