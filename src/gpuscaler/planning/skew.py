"""Whether pods that spread could still be placed last, when everybody whom they count has a place.

Whoever is counted may come at any time. A pod that would be admitted after all others is admitted in the end, whatever the order; one that
would not be depends on coming before others, which nobody can promise.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuscaler.model.pods import SpreadConstraint
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.demand import PodClass
from gpuscaler.planning.desk import Desk, Taken
from gpuscaler.planning.families import Family
from gpuscaler.planning.room import Room
from gpuscaler.planning.templates import HOSTNAME


def hard_spread(one: PodClass) -> tuple[SpreadConstraint, ...]:
    return tuple(constraint for constraint in one.spec.spread if constraint.hard)


def spreads(family: Family) -> bool:
    """Whether other machines, by being there and empty, may shut one to the family."""
    return bool(hard_spread(family.model))


def rows_of(order: Iterable[Family], taken: Iterable[Taken]) -> Mapping[int, list[int]]:
    """Where pods of the families of ``order`` that spread are, by ``id`` of the family: in ``taken``, or to be bought for."""
    spreading = [family for family in order if spreads(family)]
    found = {id(family): [share.row for _, share in family.phantoms] for family in spreading}
    owner = {id(queue.one): id(family) for family in spreading for queue in family.queues}
    for entry in taken:
        if id(entry.one) in owner:
            found[owner[id(entry.one)]].append(entry.row)
    return found


def overtaken(
    room: Room, order: Sequence[Family], where: Mapping[int, Sequence[int]], templates: Mask, *, bought: bool = False
) -> list[Family]:
    """Families that others, decided after them, leave with too many in one domain. ``where`` is as :func:`rows_of` has it.

    ``templates`` flags rows that stand for any number of machines; with ``bought``, machines have taken their place.
    """
    return [
        family
        for family in order
        if (rows := where.get(id(family))) and not even(room, family.model, rows, templates=templates, bought=bought)
    ]


def released(desk: Desk, entries: Iterable[Taken]) -> tuple[PodClass, ...]:
    """Take the pods among ``entries`` that others have left with too many in one domain off their machines; returns them, without gangs."""
    spreading = [entry for entry in entries if hard_spread(entry.one) and not entry.one.options.gang]
    if not spreading:
        return ()
    desk.build()
    late = [entry for entry in spreading if not even(desk.room, entry.one, [entry.row], templates=desk.template_mask, bought=True)]
    gone = {id(entry) for entry in late}
    desk.taken = [entry for entry in desk.taken if id(entry) not in gone]
    for entry in late:
        desk.room.remove(entry.one.spec, entry.one.labels, entry.row, len(entry.keys))
    return tuple(replace(entry.one, keys=entry.keys, announced=0) for entry in late)


def even(room: Room, one: PodClass, rows: Sequence[int], *, templates: Mask, bought: bool) -> bool:
    """Whether pods of ``one`` on ``rows`` keep the skew of all its constraints."""
    at = np.array(rows, dtype=np.int64)
    for constraint in hard_spread(one):
        found = room.spread_counts(one.spec, one.labels, constraint)
        domains = found.eligible
        if bought:
            real = np.zeros(len(domains), dtype=np.bool_)
            real[found.codes[~templates]] = True
            domains = domains & real
        mine = at[~templates[at]] if constraint.topology_key == HOSTNAME else at
        if (found.counts[found.codes[mine]] > least(constraint, found.counts[domains]) + constraint.max_skew).any():
            return False
    return True


def least(constraint: SpreadConstraint, counts: Array) -> int:
    """The minimum that the scheduler takes the skew from, by what each eligible domain has."""
    return int(counts.min()) if len(counts) and len(counts) >= constraint.min_domains else 0
