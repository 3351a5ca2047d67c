"""Rounds fractional numbers of machines: fixes the nearly integral part of the relaxation, solves the rest again, and repeats."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.planning.mix.columns.bounds import Prices
from gpuscaler.planning.mix.columns.generate import add_singles, generate
from gpuscaler.planning.mix.columns.master import Master
from gpuscaler.planning.mix.improve import cheapest_kinds
from gpuscaler.planning.mix.instance import Floats, Ints, ProblemArrays, residual
from gpuscaler.planning.mix.mixture import Mixture, trim
from gpuscaler.planning.mix.work import Meter

_SURE = 1e-6
#: How many patterns are carried over from one programme to the next.
_CARRIED = 40


@dataclass(frozen=True, slots=True)
class Programme:
    """A solved relaxation: ``values`` of the patterns (``kinds``, ``held``), and a lower ``bound`` on the cost of any mix."""

    kinds: Ints
    held: Floats
    values: Floats
    bound: float


def dive(
    instance: ProblemArrays,
    start: Programme,
    prices: Prices,
    *,
    below: float,
    round_at: float,
    programmes: dict[bytes, Programme],
    meter: Meter,
) -> Mixture | None:
    """Round ``start`` to a mix that serves the demand; None as soon as it cannot be cheaper than ``below``.

    ``programmes`` caches programmes of other dives by the remaining demand.
    """
    parts: list[tuple[int, Floats, int]] = []
    remaining, cost, now = instance.demand, 0.0, start
    while True:
        times = np.floor(now.values + _SURE)
        if not times.any() or round_at < 1:
            extra = np.flatnonzero(now.values - times >= round_at)
            if not times.any() and not len(extra):
                extra = np.array([(now.values - times).argmax()])
            times[extra] += 1
        chosen = _take_patterns(now.kinds, now.held, times, now.values, remaining)
        if not chosen:
            return None
        parts += chosen
        cost += sum(float(instance.price[kind]) * count for kind, _, count in chosen)
        remaining = np.maximum(instance.demand - Mixture.of(parts, len(remaining)).served(), 0.0)
        if cost >= below:
            return None
        if not remaining.any():
            return trim(Mixture.of(parts, len(remaining)), instance.demand)
        if not meter.left():
            return None
        place = remaining.tobytes()
        if place not in programmes:
            programmes[place] = _solve_rest(residual(instance, remaining), now, prices, meter)
        now = programmes[place]
        if cost + now.bound >= below or not len(now.values):
            return None


def _take_patterns(kinds: Ints, held: Floats, times: Floats, values: Floats, remaining: Floats) -> list[tuple[int, Floats, int]]:
    """The chosen patterns, those rounded up least first, without patterns that would mostly hold pods that are already served."""
    taken: list[tuple[int, Floats, int]] = []
    left = remaining.copy()
    for column in np.lexsort((np.arange(len(times)), times - values)):
        full = int(times[column])
        present = held[column] > 0
        if full and taken:
            full = min(full, int(np.floor(left[present] / held[column][present]).min()))
        if full > 0:
            taken.append((int(kinds[column]), held[column], full))
            left = np.maximum(left - full * held[column], 0.0)
    return taken


def _solve_rest(rest: ProblemArrays, before: Programme, prices: Prices, meter: Meter) -> Programme:
    """Solve the relaxation for ``rest``, starting from the known patterns, cut to the remaining demand of each item."""
    cut = np.minimum(before.held, rest.demand)
    reduced = np.where(cut.any(axis=1), rest.price[before.kinds] - cut @ prices.items, np.inf)
    near = np.lexsort((np.arange(len(reduced)), reduced))[:_CARRIED]
    near = near[np.isfinite(reduced[near])]
    kinds, cut = before.kinds[near], cut[near]
    meter.add(len(rest.price) * (200 + 2 * len(cut)))
    master = Master(rest)
    add_singles(rest, master)
    master.add(cheapest_kinds(rest, kinds, cut), cut)
    generated = generate(rest, master, prices, thorough=False, meter=meter)
    return Programme(master.kinds, master.held, generated.values, generated.bound)
