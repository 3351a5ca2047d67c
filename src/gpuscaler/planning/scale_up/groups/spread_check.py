"""Spread check: whether pods with a topology spread would still be admitted after all the pods that they count.

The counted pods may arrive at any time. A pod that would be admitted after all others is admitted in the end, in any order of arrival. A
pod that would not be depends on coming before the others, which cannot be guaranteed.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuscaler.model.pods import SpreadConstraint
from gpuscaler.model.table import Array, Mask
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft
from gpuscaler.planning.scale_up.groups.groups import Family


def hard_spread(pod_class: PodClass) -> tuple[SpreadConstraint, ...]:
    return tuple(constraint for constraint in pod_class.spec.spread if constraint.hard)


def spreads(family: Family) -> bool:
    """Whether the family has a hard spread, so that the existence of empty machines may close others to it."""
    return bool(hard_spread(family.model))


def rows_of(order: Iterable[Family], taken: Iterable[ClassPlacement]) -> Mapping[int, list[int]]:
    """Rows of pods of the spreading families of ``order``, by ``id`` of the family: those in ``taken`` and those to buy for."""
    spreading = [family for family in order if spreads(family)]
    rows = {id(family): [share.row for _, share in family.phantoms] for family in spreading}
    owner = {id(queue.pod_class): id(family) for family in spreading for queue in family.queues}
    for entry in taken:
        if id(entry.pod_class) in owner:
            rows[owner[id(entry.pod_class)]].append(entry.row)
    return rows


def families_over_skew(
    room: Room, order: Sequence[Family], rows_by_family: Mapping[int, Sequence[int]], templates: Mask, *, bought: bool = False
) -> list[Family]:
    """Families whose skew is violated by families decided after them. ``rows_by_family`` comes from :func:`rows_of`.

    ``templates`` flags rows that stand for any number of machines; with ``bought``, bought machines have replaced them.
    """
    return [
        family
        for family in order
        if (rows := rows_by_family.get(id(family))) and not keeps_skew(room, family.model, rows, templates=templates, bought=bought)
    ]


def pods_breaking_skew(draft: PlanDraft) -> frozenset[str]:
    """Pods that would not be admitted last at their place, because pods decided after them left too many in one domain.

    Pods placed on existing nodes bind before new machines arrive, so they are not checked, unless they belong to a gang that waits for one.
    """
    existing = np.zeros(len(draft.room) + len(draft.bought), dtype=np.bool_)
    existing[: len(draft.stages[0].open_rows)] = draft.stages[0].open_rows
    places = [(entry.pod_class, entry.row, entry.keys) for entry in draft.taken if hard_spread(entry.pod_class)]
    places += [
        (part.pod_class, machine.row, part.keys) for machine in draft.bought for part in machine.contents if hard_spread(part.pod_class)
    ]
    waiting = {gang_of(pod_class) for pod_class, row, _ in places if not existing[row]}
    by_class: dict[int, tuple[PodClass, dict[int, list[str]]]] = {}
    for pod_class, row, keys in places:
        if not existing[row] or (pod_class.options.gang and gang_of(pod_class) in waiting):
            by_class.setdefault(id(pod_class), (pod_class, {}))[1].setdefault(row, []).extend(keys)
    if by_class:
        draft.build()
    return frozenset(
        key
        for pod_class, rows in by_class.values()
        for row, late in zip(
            rows, rows_over_skew(draft.room, pod_class, list(rows), templates=draft.template_mask, bought=True), strict=True
        )
        if late
        for key in rows[row]
    )


def gang_of(pod_class: PodClass) -> tuple[str, str]:
    return pod_class.spec.namespace, pod_class.options.gang


def keeps_skew(room: Room, pod_class: PodClass, rows: Sequence[int], *, templates: Mask, bought: bool) -> bool:
    """Whether pods of ``pod_class`` on ``rows`` keep the skew of all its constraints."""
    return not rows_over_skew(room, pod_class, rows, templates=templates, bought=bought).any()


def rows_over_skew(room: Room, pod_class: PodClass, rows: Sequence[int], *, templates: Mask, bought: bool) -> Mask:
    """Flags for ``rows`` on which pods of ``pod_class`` break the skew of one of its constraints."""
    at = np.array(rows, dtype=np.int64)
    over_skew = np.zeros(len(at), dtype=np.bool_)
    for constraint in hard_spread(pod_class):
        codes, counts, domains = room.spread_counts(pod_class.spec, pod_class.labels, constraint)
        if bought:
            real = np.zeros(len(domains), dtype=np.bool_)
            real[codes[~templates]] = True
            domains = domains & real
        over = counts[codes[at]] > skew_minimum(constraint, counts[domains]) + constraint.max_skew
        over_skew |= over & ~templates[at] if constraint.topology_key == HOSTNAME else over
    return over_skew


def skew_minimum(constraint: SpreadConstraint, counts: Array) -> int:
    """The minimum that the scheduler measures the skew from, by the counts of the eligible domains."""
    return int(counts.min()) if len(counts) and len(counts) >= constraint.min_domains else 0
