"""Column generation: adds patterns to the master programme as long as some machine could hold pods worth more than it costs."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.planning.mix.columns.bounds import Prices, scale_to_safe
from gpuscaler.planning.mix.columns.master import Master
from gpuscaler.planning.mix.columns.pricing import ImprovingPatterns, search
from gpuscaler.planning.mix.instance import Floats, Ints, Mask, ProblemArrays
from gpuscaler.planning.mix.work import Meter

#: Numbers of states that a search may hold, narrow first: the next width is tried if a search finds nothing and proves nothing.
_WIDTHS = (2_000, 20_000, 100_000)
_POOL_WIDTH, _POOL_KEEP = 20_000, 2_000
#: The most patterns in an integer programme.
MOST_COLUMNS = 250


@dataclass(frozen=True, slots=True)
class Generated:
    """The best proven prices and their ``bound``, the values of the master's patterns, and whether no other pattern can improve on it."""

    prices: Prices
    bound: float
    values: Floats
    converged: bool


def generate(
    instance: ProblemArrays,
    master: Master,
    prices: Prices,
    *,
    enough: float = -1.0,
    share: float = 1.0,
    thorough: bool = True,
    meter: Meter,
) -> Generated:
    """Add patterns to ``master`` until it is solved, the bound reaches ``enough``, or ``share`` of the budget is used up.

    ``prices`` prove a first bound. Bounds are for serving the whole demand (less the penalties of unplaced pods). Unless ``thorough``, only
    narrow searches are made.
    """
    widths = _WIDTHS if thorough else _WIDTHS[:1]
    add_singles(instance, master)
    best = Generated(prices, prices.bound(instance, instance.demand), np.zeros(0), False)
    width = 0
    starts: tuple[Floats, ...] = (prices.resources,)
    while True:
        optimum, values, charges = master.relax(meter)
        if not optimum.optimal:
            return best
        patterns = optimum.values[master.slack :]
        now = Prices(values, prices.resources, charges)
        improving_patterns = search(
            instance, values=values, targets=now.kind_costs(instance), starts=starts, width=widths[width], meter=meter
        )
        starts = (prices.resources, improving_patterns.prices)
        proven = scale_to_safe(instance, now, improving_patterns.worth)
        bound = proven.bound(instance, instance.demand)
        done = not len(improving_patterns.kinds) and _proves(instance, now, improving_patterns)
        better = bound > best.bound
        # A bound that equals the cost is as good as the programme's own optimum.
        done = done or (better and bound >= enough >= 0.0)
        best = Generated(proven if better else best.prices, max(bound, best.bound), patterns, done)
        if done or not meter.left(share):
            return best
        if not master.add(improving_patterns.kinds, improving_patterns.held):
            if width + 1 == len(widths) or not meter.left(share / 2):
                return best
            width += 1


def _proves(instance: ProblemArrays, prices: Prices, improving_patterns: ImprovingPatterns) -> bool:
    return bool(np.all(improving_patterns.worth <= prices.kind_costs(instance) * (1 + 1e-7)))


def reduced_costs(instance: ProblemArrays, master: Master, prices: Prices) -> Floats:
    """The cost of each of the master's patterns less the worth of its pods at ``prices``."""
    return np.asarray(prices.kind_costs(instance)[master.kinds] - master.held @ prices.items)


def add_pool(instance: ProblemArrays, master: Master, prices: Prices, *, gap: float, meter: Meter) -> tuple[Ints, bool]:
    """Add to ``master`` every pattern that a mix less than ``gap`` above the bound of ``prices`` could use.

    These are the patterns with a reduced cost of at most ``gap``. Returns the indices of at most :data:`MOST_COLUMNS` of them, lowest
    reduced cost first, and whether none was left out.
    """
    targets = prices.kind_costs(instance) - gap
    near = search(
        instance,
        values=prices.items,
        targets=targets,
        starts=(prices.resources,),
        width=_POOL_WIDTH,
        meter=meter,
        keep=_POOL_KEEP,
        worthless=True,
    )
    full = _maximal(instance, near.kinds, near.held)
    master.add(near.kinds[full], near.held[full])
    reduced = reduced_costs(instance, master, prices)
    order = np.lexsort((np.arange(len(reduced)), reduced))
    which = order[reduced[order] <= gap]
    return which[:MOST_COLUMNS], near.complete and len(which) <= MOST_COLUMNS


def _maximal(instance: ProblemArrays, kinds: Ints, held: Floats) -> Mask:
    """The patterns to which no pod can be added; a mix that could use another pattern can use one of these instead."""
    if instance.device is not None or any(instance.excluded):
        return np.ones(len(kinds), dtype=np.bool_)
    room = instance.capacity[kinds] - held @ instance.request
    room_for_more = held < instance.copies[:, kinds].T
    for resource in range(room.shape[1]):
        room_for_more &= instance.request[:, resource] <= room[:, resource, None]
    return np.asarray(~room_for_more.any(axis=1))


def add_singles(instance: ProblemArrays, master: Master) -> None:
    """Add to ``master``, for every item, a pattern of the kind that holds it alone at the lowest cost per copy."""
    each = np.where(instance.copies > 0, instance.price[None, :] / np.maximum(instance.copies, 1.0), np.inf)
    kinds = each.argmin(axis=1)
    held = np.zeros((len(kinds), len(kinds)))
    for item, kind in enumerate(kinds):
        held[item, item] = instance.copies[item, kind]
    master.add(kinds, held)
