"""From demand to machines: fill what exists and what is coming, then buy the cheapest mix for the rest."""

from collections.abc import Sequence

from gpuscaler.model.table import Mask
from gpuscaler.planning.buying import Lot, Phantom, buy, choose, lots_of, narrowed, unmet
from gpuscaler.planning.demand import PodClass
from gpuscaler.planning.desk import Desk, Queue, Taken, ground_for
from gpuscaler.planning.placing import Share, fill
from gpuscaler.planning.topology import shape, without_hosts


def queues_for(desk: Desk, classes: Sequence[PodClass]) -> list[Queue]:
    return [Queue(one, shape(desk.cluster, one)) for one in classes]


def scale_up(desk: Desk, queues: Sequence[Queue], only: Mask | None = None) -> None:
    """Place every pod of ``queues`` that can be placed, on machines that exist, are coming, or are bought here.

    Classes come by priority; within one priority those with constraints on larger domains come first, since they have fewer choices.
    Pods that must be near others may only find them once those have their machines: they are tried again as long as that helps.
    """
    order = sorted(queues, key=lambda queue: (-queue.one.spec.priority, not queue.shape.wide, queue.one.order))
    while order:
        before = sum(queue.left for queue in order)
        one_round(desk, order, only)
        order = [queue for queue in order if queue.left and queue.one.spec.affinity]
        if sum(queue.left for queue in order) == before:
            return


def one_round(desk: Desk, queues: Sequence[Queue], only: Mask | None) -> None:
    lots: list[Lot] = []
    phantoms: list[Phantom] = []
    for queue in queues:
        ground = ground_for(desk, queue.one, only)
        shares = fill(ground, queue.one, queue.shape, queue.left)
        to_buy = note(desk, queue, shares)
        phantoms += [Phantom(queue.one, share) for share in to_buy]
        lots += lots_of(desk, queue, to_buy, ground)
    for phantom in phantoms:
        desk.room.remove(without_hosts(phantom.one.spec), phantom.one.labels, phantom.share.row, phantom.share.count)
    buy_for(desk, lots)


def note(desk: Desk, queue: Queue, shares: Sequence[Share]) -> list[Share]:
    """Keep the pods that machines take; returns the shares of templates."""
    templates = range(*desk.template_rows.indices(len(desk.room)))
    for share in shares:
        if share.row not in templates:
            desk.taken.append(Taken(queue.one, share.row, queue.take(share.count)))
    return [share for share in shares if share.row in templates]


def buy_for(desk: Desk, lots: Sequence[Lot]) -> None:
    """Buy for ``lots``, pools of the highest priority first; what a tier cannot serve goes on to the next."""
    left = [lot.count for lot in lots]
    for tier in sorted({kind.pool.priority for kind in desk.templates.kinds}, reverse=True):
        narrow = [(index, narrowed(desk, lot, tier, left[index])) for index, lot in enumerate(lots) if left[index]]
        asked = [(index, lot) for index, lot in narrow if lot.allowed]
        if not asked:
            continue
        mine = [lot for _, lot in asked]
        solution = choose(desk, mine, work=desk.work)
        buy(desk, solution, mine)
        missing = unmet(solution, mine)
        for position, (index, _) in enumerate(asked):
            left[index] = missing.get(position, 0)
