"""From demand to machines: fill what exists and what is coming, then buy the cheapest mix for the rest."""

from collections.abc import Sequence

from gpuscaler.model.table import Mask
from gpuscaler.planning.buying import buy, choose, narrowed, unmet
from gpuscaler.planning.demand import PodClass
from gpuscaler.planning.desk import Desk, Queue
from gpuscaler.planning.families import Family, assign, families, forget
from gpuscaler.planning.lots import Lot


def scale_up(desk: Desk, classes: Sequence[PodClass], only: Mask | None = None) -> list[Queue]:
    """Place every pod of ``classes`` that can be placed, on machines that exist, are coming, or are bought here; returns the queues.

    Classes come by priority; within one priority those with constraints on larger domains come first, since they have fewer choices.
    Pods that must be near others may only find them once those have their machines: they are tried again as long as that helps.
    ``only``, one flag per row of the room, restricts where they may go (a gang's zone).
    """
    order = families(desk, classes)
    queues = [queue for family in order for queue in family.queues]
    while order:
        before = sum(family.left for family in order)
        one_round(desk, order, only)
        order = [family for family in order if family.left and family.model.spec.affinity]
        if sum(family.left for family in order) == before:
            break
    return queues


def one_round(desk: Desk, order: Sequence[Family], only: Mask | None) -> None:
    desk.build()
    lots = [lot for family in order for lot in assign(desk, family, only)]
    for family in order:
        forget(desk, family)
    buy_for(desk, lots)


def buy_for(desk: Desk, lots: Sequence[Lot]) -> None:
    """Buy for ``lots``, pools of the highest priority first; what a tier cannot serve goes on to the next."""
    left = [lot.count for lot in lots]
    for tier in sorted(set(desk.templates.tiers.tolist()), reverse=True):
        narrow = [(index, narrowed(desk, lot, tier, left[index])) for index, lot in enumerate(lots) if left[index]]
        asked = [(index, lot) for index, lot in narrow if lot.allowed.any()]
        if not asked:
            continue
        mine = [lot for _, lot in asked]
        solution = choose(desk, mine, work=desk.work)
        buy(desk, solution, mine)
        missing = unmet(solution, mine)
        for position, (index, _) in enumerate(asked):
            left[index] = missing.get(position, 0)
