"""Chooses the pods to serve if limits bind: higher priority first; within one priority as many as possible, then as cheaply as possible.

Tiers are decided one after the other. A lower tier may rearrange the machines, but the pods chosen for higher tiers stay served, even if
another choice of the same number of pods would have left more room.
"""

import dataclasses

import numpy as np

from gpuscaler.planning.mix.columns.bounds import resource_prices
from gpuscaler.planning.mix.columns.generate import add_pool, generate
from gpuscaler.planning.mix.columns.master import Master
from gpuscaler.planning.mix.constructions.greedy import constructions, top_up
from gpuscaler.planning.mix.constructions.proportional import construct_along, has_many_items, is_crowded
from gpuscaler.planning.mix.improve import right_size
from gpuscaler.planning.mix.instance import Mask, ProblemArrays, residual
from gpuscaler.planning.mix.mixture import Mixture, rank, trim
from gpuscaler.planning.mix.work import Meter

#: Leaving one pod out costs as much as this many of the most expensive machines.
_PENALTY = 100.0


def serve(instance: ProblemArrays, meter: Meter) -> Mixture:
    """A mix within all limits that serves as much of the demand as the search finds possible, tier by tier."""
    mixture = Mixture.of([], len(instance.demand))
    served = np.zeros(len(instance.demand))
    for tier in range(int(instance.tier.max(initial=-1)) + 1):
        of_tier = instance.tier == tier
        stage = residual(instance, np.where(of_tier, instance.demand, served))
        stage = dataclasses.replace(stage, tier=np.where(of_tier, 1, 0))
        mixture = _stage(stage, mixture, of_tier, meter)
        served = mixture.served()
    return mixture


def _stage(stage: ProblemArrays, before: Mixture, items: Mask, meter: Meter) -> Mixture:
    """Serve the items ``items`` in addition; the other pods that ``before`` serves stay served."""
    penalty = np.where(items, 1.0, 10.0) * _PENALTY * float(stage.price.max(initial=1.0))
    relaxed = resource_prices(stage, penalty=penalty)
    meter.add(2000 + relaxed.iterations * (20 + len(stage.demand)))
    prices = relaxed.prices
    mixtures = [construct_along(stage, relaxed, penalty=penalty, meter=meter)] if has_many_items(stage) else []
    best = _best(stage, [before, *mixtures])
    if not (mixtures and is_crowded(best)):
        mixtures += [*constructions(stage, prices, meter=meter), *constructions(stage, prices, start=before, meter=meter)]
        best = _best(stage, [best, *mixtures])
    if not (stage.demand - best.served()).any() or (has_many_items(stage) and is_crowded(best)) or not meter.left():
        return best
    master = Master(stage, penalty=penalty)
    for mixture in mixtures:
        master.add(mixture.kinds, mixture.held)
    result = generate(stage, master, prices, share=0.5, meter=meter)
    best = _best(stage, [best, *constructions(stage, result.prices, meter=meter)])
    unmet = float(penalty @ (stage.demand - best.served()))
    which, _ = add_pool(stage, master, result.prices, gap=best.cost(stage) + unmet - result.bound, meter=meter)
    integer, _ = master.integer(which, meter=meter)
    return best if integer is None else _best(stage, [best, trim(integer, stage.demand)])


def _best(stage: ProblemArrays, mixtures: list[Mixture]) -> Mixture:
    whole = [top_up(stage, mixture) for mixture in mixtures if mixture.within_limits(stage)]
    return right_size(stage, min(whole, key=lambda mixture: rank(stage, mixture)))
