"""Pods that machines take before any machine of the plan joins, placed before there is talk of those.

kube-scheduler counts the hosts and zones that exist. A machine that could be bought is none of them yet: it may not keep a pod that spreads
from a node that takes it now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Mask
from gpuscaler.planning.desk import Desk, Queue, Stage, Taken, rank
from gpuscaler.planning.families import Family
from gpuscaler.planning.placing import PLENTY, Ground, Share, fill, total
from gpuscaler.planning.room import Room
from gpuscaler.planning.tastes import taste
from gpuscaler.planning.topology import selects


def spreads(family: Family) -> bool:
    """Whether other machines, by being there and empty, may shut one to the family."""
    return any(constraint.hard for constraint in family.model.spec.spread)


def settle(desk: Desk, order: Sequence[Family], only: Mask | None) -> None:
    """Fill machines that exist with ``order``, as far as somebody in it spreads: those ahead of the last who does keep their turn.

    Each pod may raise the minimum that the skew of others is taken from, so all are asked again until nobody moves.
    """
    turns = order[: max((number for number, family in enumerate(order, 1) if spreads(family)), default=0)]
    if turns and desk.today.open_rows.any():
        settling = _Settling(desk, desk.today, only)
        moved = True
        while moved:
            moved = sum(settling.fill(family) for family in turns if family.left) > 0


@dataclass
class _Settling:
    """One stage of a desk, with what was placed on its machines so far."""

    desk: Desk
    stage: Stage
    only: Mask | None

    def __post_init__(self) -> None:
        self.room = self.stage.room.copy()
        for entry in self.desk.taken:
            if entry.row < len(self.room) and self.stage.open_rows[entry.row]:
                self.room.place(entry.one.spec, entry.one.labels, entry.row, len(entry.keys))
        self.usable = self.stage.open_rows if self.only is None else self.stage.open_rows & self.only[: len(self.room)]

    def fill(self, family: Family) -> bool:
        """Place pods of a family as far as they go; returns whether any went."""
        whole = self._starts_in_a_domain(family)
        room = self.room.copy() if whole else self.room
        shares = [(queue, list(self._shares(family, queue, room))) for queue in family.queues]
        placed = sum(total(mine) for _, mine in shares)
        if whole and placed < family.left:
            return False
        self.room = room
        for queue, mine in shares:
            for share in mine:
                self.desk.taken.append(Taken(queue.one, share.row, queue.take(share.count)))
                self.desk.room.place(queue.one.spec, queue.one.labels, share.row, share.count)
        return placed > 0

    def _starts_in_a_domain(self, family: Family) -> bool:
        """Whether the first pod of a family chooses the domain of them all: where it cannot take all, one to buy in may be better."""
        return any(
            selects(self.desk.cluster, term, family.model)
            and not self.room.matching(term.namespaces, term.namespace_selector, term.selector).any()
            for term in family.shape.wide_affinity
        )

    def _shares(self, family: Family, queue: Queue, room: Room) -> Iterator[Share]:
        """Fill ``room`` with one queue. Affinity looks at all machines, so that nobody spoils what is decided about those."""
        one, left = queue.one, queue.left
        near = self.desk.room.verdict(one.spec, one.labels).passes.get("InterPodAffinity")
        usable = self.usable if near is None else self.usable & near[: len(room)]
        nowhere, most = np.zeros(len(room), dtype=np.bool_), np.full(len(room), PLENTY, dtype=np.int64)
        while left and usable.any():
            ground = Ground(self.desk.cluster, room, nowhere, usable.copy(), rank(self.desk, one.spec)[: len(room)], most, taste(room, one))
            shares = fill(ground, one, family.shape, family.at_once(left))
            yield from shares
            left -= total(shares)
            if not shares or not spreads(family):
                break
