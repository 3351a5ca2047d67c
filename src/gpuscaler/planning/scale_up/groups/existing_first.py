"""Places pods on existing machines before the plan considers new ones.

kube-scheduler counts the hosts and zones that exist. A machine that could be bought is not one of them yet: it must not keep a pod with a
topology spread off a node that takes it now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscaler.model.table import Mask
from gpuscaler.planning.demand.topology import selects
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft, Queue, Stage, row_ranks
from gpuscaler.planning.scale_up.draft.placing import PLENTY, PlacementArea, Share, fill_rows, total_count
from gpuscaler.planning.scale_up.draft.scoring import preference_scores
from gpuscaler.planning.scale_up.groups.groups import Family
from gpuscaler.planning.scale_up.groups.spread_check import families_over_skew, spreads

#: How often families whose spread is violated by later families are moved behind them.
TRIES = 4


def settle_on_existing(draft: PlanDraft, stage: Stage, order: Sequence[Family], only: Mask | None) -> None:
    """Place the families of ``order`` on the machines of ``stage``, stopping after the last one whose rules refer to other pods.

    The order is kept. Families whose spread is violated by later families are decided after those.
    """
    turns = list(order[: max((number for number, family in enumerate(order, 1) if depends_on_others(family)), default=0)])
    if not any(family.left for family in turns) or not stage.open_rows.any():
        return
    draft.build()
    for _ in range(TRIES):
        settling = _Settling(draft, stage, only)
        settling.fill_all(turns)
        late = settling.over_skew(turns)
        if not late:
            break
        last = {id(family) for family in late}
        turns = [family for family in turns if id(family) not in last] + late
    settling.keep()


def depends_on_others(family: Family) -> bool:
    """Whether the family depends on the place of other pods or machines: it has a hard spread or affinity."""
    return spreads(family) or bool(family.model.spec.affinity)


@dataclass
class _Settling:
    """A stage with the pods placed on it so far; ``whole`` is the room of the draft with the same pods.

    ``shares`` are the shares of each queue, by its ``id``.
    """

    draft: PlanDraft
    stage: Stage
    only: Mask | None
    shares: dict[int, tuple[Queue, list[Share]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        open_rows = self.stage.open_rows
        self.room, self.whole = self.stage.room.copy(), self.draft.room.copy()
        for entry in self.draft.taken:
            if entry.row < len(self.room) and open_rows[entry.row]:
                self.room.place(entry.pod_class.spec, entry.pod_class.labels, entry.row, len(entry.keys))
        self.usable = open_rows if self.only is None else open_rows & self.only[: len(self.room)]

    def fill_all(self, turns: Sequence[Family]) -> None:
        """Fill all families, repeatedly: each pod may raise the minimum that the skew of others is measured from."""
        moved = True
        while moved:
            moved = sum(self.fill(family) for family in turns if any(map(self.left, family.queues))) > 0

    def left(self, queue: Queue) -> int:
        return queue.left - total_count(self.shares.get(id(queue), (queue, []))[1])

    def fill(self, family: Family) -> bool:
        """Place as many pods of a family as possible; return whether any was placed."""
        whole = self._starts_in_a_domain(family)
        room = self.room.copy() if whole else self.room
        filled = [(queue, list(self._fill(family, queue, room))) for queue in family.queues]
        placed = sum(total_count(shares) for _, shares in filled)
        if whole and placed < sum(map(self.left, family.queues)):
            return False
        self.room = room
        for queue, queue_shares in filled:
            self.shares.setdefault(id(queue), (queue, []))[1].extend(queue_shares)
            for share in queue_shares:
                self.whole.place(queue.pod_class.spec, queue.pod_class.labels, share.row, share.count)
        return placed > 0

    def _starts_in_a_domain(self, family: Family) -> bool:
        """Whether the first pod of a family determines the domain of all: if that cannot hold all, a domain to buy in may be better."""
        return any(
            selects(self.draft.cluster, term, family.model)
            and not self.room.matching(term.namespaces, term.namespace_selector, term.selector).any()
            for term in family.model.spec.affinity
        )

    def _fill(self, family: Family, queue: Queue, room: Room) -> Iterator[Share]:
        """Fill ``room`` with one queue. Affinity is checked on all machines, so that decisions about ordered ones stay valid."""
        pod_class, left = queue.pod_class, self.left(queue)
        near = self.whole.verdict(pod_class.spec, pod_class.labels).passes.get("InterPodAffinity")
        usable = self.usable if near is None else self.usable & near[: len(room)]
        nowhere, limits = np.zeros(len(room), dtype=np.bool_), np.full(len(room), PLENTY, dtype=np.int64)
        while left and usable.any():
            area = PlacementArea(
                self.draft.cluster,
                room,
                nowhere,
                usable.copy(),
                row_ranks(self.draft, pod_class.spec)[: len(room)],
                limits,
                preference_scores(room, pod_class),
            )
            shares = fill_rows(area, pod_class, family.shape, family.at_once(left))
            yield from shares
            left -= total_count(shares)
            if not shares or not spreads(family):
                break

    def over_skew(self, turns: Sequence[Family]) -> list[Family]:
        rows = {
            id(family): [share.row for queue in family.queues for share in self.shares.get(id(queue), (queue, []))[1]]
            for family in turns
            if spreads(family)
        }
        return families_over_skew(self.room, turns, rows, np.zeros(len(self.room), dtype=np.bool_))

    def keep(self) -> None:
        """Record the placements on the draft."""
        self.draft.room = self.whole
        for queue, shares in self.shares.values():
            self.draft.taken += [ClassPlacement(queue.pod_class, share.row, queue.take(share.count)) for share in shares]
