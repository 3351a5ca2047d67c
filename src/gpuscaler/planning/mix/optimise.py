"""Finds the cheapest mix for a demand that can be served: bounds and constructions first, then patterns by pricing, then integers."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.planning.mix.columns.bounds import Prices, resource_prices
from gpuscaler.planning.mix.columns.dive import Programme, dive
from gpuscaler.planning.mix.columns.generate import Generated, add_pool, generate
from gpuscaler.planning.mix.columns.master import Master
from gpuscaler.planning.mix.constructions.greedy import constructions
from gpuscaler.planning.mix.constructions.proportional import construct_along, has_many_items, is_crowded
from gpuscaler.planning.mix.improve import right_size
from gpuscaler.planning.mix.instance import ProblemArrays
from gpuscaler.planning.mix.mixture import Mixture, rank, trim
from gpuscaler.planning.mix.work import Meter

#: A mix with at most this relative gap to its bound is called optimal.
TOLERANCE = 1e-6
#: The share of the budget for generating patterns.
_GENERATE = 0.6
#: After an integer programme brought a mix this close to its bound (relative gap), another one is not worth it.
_NEAR = 2e-4
#: A mix of at least so many machines with at most this relative gap to its bound is not worth an integer programme: the gap is less
#: than one machine's price, and the next change of demand changes the mix by more.
_LARGE, _NEAR_IF_LARGE = 500, 5e-4
#: If the first construction costs more than this times the bound, patterns are needed anyway.
_FAR = 1.02
#: Fractions of a machine from which dives round up; if no fraction reaches them, one machine is rounded up anyway.
_ROUND_AT = (1.0, 0.8, 0.6)


@dataclass(frozen=True, slots=True)
class Result:
    """A mix, and the prices that prove ``bound`` for the demand.

    ``converged``: the programme over all patterns was solved to optimality. ``proven``: no cheaper mix exists (to a millionth).
    """

    mixture: Mixture
    prices: Prices
    bound: float
    converged: bool
    proven: bool


def optimise(instance: ProblemArrays, *, start: Mixture | None = None, meter: Meter) -> Result:
    """Serve the whole demand of ``instance`` as cheaply as the budget allows.

    ``start`` is a mix that serves everything within the limits; it may be omitted if there are no limits.
    """
    relaxed = resource_prices(instance)
    meter.add(6000 + relaxed.iterations * (60 + len(instance.demand)))
    prices = relaxed.prices
    mixtures = [] if start is None else [start]
    if has_many_items(instance):
        mixtures.append(construct_along(instance, relaxed, meter=meter))
    bound = prices.bound(instance, instance.demand)
    best = _best(instance, mixtures) if mixtures else None
    if best is None or not _is_done(instance, best, bound):
        mixtures += constructions(instance, prices, below=bound * _FAR if meter.left() else np.inf, meter=meter)
        best = _best(instance, mixtures)
    if _is_done(instance, best, bound) or not meter.left():
        return Result(best, prices, bound, converged=False, proven=_is_close(instance, best, bound))
    master = Master(instance)
    for mixture in [*mixtures, best]:
        if _serves(instance, mixture):
            master.add(mixture.kinds, mixture.held)
    generated = generate(instance, master, prices, enough=best.cost(instance) / (1 + TOLERANCE), share=_GENERATE, meter=meter)
    best, proven = _make_integer(instance, master, generated, best, meter)
    return Result(best, generated.prices, generated.bound, generated.converged, proven or _is_close(instance, best, generated.bound))


def _is_done(instance: ProblemArrays, mixture: Mixture, bound: float) -> bool:
    """Whether patterns cannot make the mix cheaper, or not by enough to be worth their time."""
    return _is_close(instance, mixture, bound) or (has_many_items(instance) and _serves(instance, mixture) and is_crowded(mixture))


def _is_close(instance: ProblemArrays, mixture: Mixture, bound: float) -> bool:
    return _serves(instance, mixture) and mixture.cost(instance) <= bound * (1 + TOLERANCE)


def _is_large_and_near(instance: ProblemArrays, mixture: Mixture, bound: float) -> bool:
    return int(mixture.times.sum()) >= _LARGE and _serves(instance, mixture) and mixture.cost(instance) <= bound * (1 + _NEAR_IF_LARGE)


def _serves(instance: ProblemArrays, mixture: Mixture) -> bool:
    return not (instance.demand - mixture.served()).any()


def _best(instance: ProblemArrays, mixtures: list[Mixture]) -> Mixture:
    allowed = [mixture for mixture in mixtures if mixture.within_limits(instance)]
    return right_size(instance, min(allowed, key=lambda mixture: rank(instance, mixture)))


def _better(instance: ProblemArrays, best: Mixture, others: list[Mixture]) -> Mixture:
    """The best of ``others`` if it beats ``best``, else ``best`` itself."""
    others = [mixture for mixture in others if mixture.within_limits(instance)]
    candidate = min(others, key=lambda mixture: rank(instance, mixture), default=best)
    candidate = best if candidate is best else right_size(instance, candidate)
    return candidate if rank(instance, candidate) < rank(instance, best) else best


def _make_integer(instance: ProblemArrays, master: Master, generated: Generated, best: Mixture, meter: Meter) -> tuple[Mixture, bool]:
    """Make the numbers of machines integers, by the cheapest method that closes the gap.

    Also returns whether the mix is proven to be the cheapest.
    """
    times = np.floor(generated.values + TOLERANCE).astype(np.int64)
    parts = list(zip(map(int, master.kinds[: len(times)]), master.held[: len(times)], map(int, times), strict=True))
    floor = trim(Mixture.of(parts, len(instance.demand)), instance.demand)
    best = _better(instance, best, constructions(instance, generated.prices, start=floor, meter=meter))
    if _is_close(instance, best, generated.bound) or not meter.left() or _is_large_and_near(instance, best, generated.bound):
        return best, False
    return _integer_programmes(instance, master, generated, best, meter)


def _integer_programmes(instance: ProblemArrays, master: Master, generated: Generated, best: Mixture, meter: Meter) -> tuple[Mixture, bool]:
    """Solve integer programmes over the patterns that can still pay, as long as they find cheaper mixes: each makes the next smaller."""
    dived = not generated.converged
    if dived:
        # Bounds are weak here, so a search for all patterns that can pay would find too many.
        best = _dives(instance, master, generated, best, meter)
    while meter.left() and not _is_close(instance, best, generated.bound):
        which, complete = add_pool(instance, master, generated.prices, gap=best.cost(instance) - generated.bound, meter=meter)
        if not meter.left():
            return best, False
        integer, finished = master.integer(which, meter=meter)
        better = best if integer is None else _better(instance, best, [trim(integer, instance.demand)])
        improved, best = better is not best, better
        if (complete and finished) or best.cost(instance) <= generated.bound * (1 + _NEAR):
            return best, complete and finished
        if not improved:
            if dived:
                return best, False
            best, dived = _dives(instance, master, generated, best, meter), True
            if best is better:
                return best, False
    return best, False


def _dives(instance: ProblemArrays, master: Master, generated: Generated, best: Mixture, meter: Meter) -> Mixture:
    programmes: dict[bytes, Programme] = {}
    for round_at in _ROUND_AT:
        if _is_close(instance, best, generated.bound) or not meter.left():
            break
        start = Programme(master.kinds, master.held, generated.values, generated.bound)
        dived = dive(instance, start, generated.prices, below=best.cost(instance), round_at=round_at, programmes=programmes, meter=meter)
        best = best if dived is None else _better(instance, best, [dived])
    return best
