"""Which new machines may take running pods, and how pods are counted when machines for them are bought."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Array
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays
from gpuscaler.planning.scale_down.moves.destinations import Homes
from gpuscaler.planning.scale_down.pod_classes import RunningClass


class Menu:
    """Which new machines may take which running pods."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._homes = Homes.on_templates(templates)

    def kinds(self, one: RunningClass, *, tier: int) -> tuple[int, ...]:
        """Kinds in pools of at least the priority ``tier`` all of whose templates take pods of ``one``."""
        mask = self._homes.admitting(one) & self._templates.holds_one(one.spec)
        return tuple(np.flatnonzero(self._templates.kinds_within(mask) & (self._templates.tiers >= tier)).tolist())


@dataclass(frozen=True)
class Goods:
    """Items that pods of each class belong to: ``item_of[class]``, with ``size[item]`` and ``allowed[item]`` kinds.

    Items that share a name in ``apart`` (empty: none) have one place in all on a machine.
    """

    item_of: Mapping[RunningClass, int]
    size: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    apart: tuple[str, ...]

    def counts(self, candidates: Sequence[Candidate]) -> Array:
        """Pods by item on ``candidates``."""
        total = np.zeros(len(self.size), dtype=np.int64)
        for candidate in candidates:
            for one, pods in candidate.load.items():
                if one in self.item_of:
                    total[self.item_of[one]] += len(pods)
        return total


def goods_of(fleet: CandidateArrays, menu: Menu, candidates: Sequence[Candidate], *, tier: int) -> Goods:
    """Sort the classes on ``candidates`` into items: alike in size, in the kinds that may take them, and in whom they keep apart from."""
    present = {one for candidate in candidates for one in candidate.load if one in fleet.size_of}
    known: dict[tuple[int, tuple[int, ...], str], int] = {}
    item_of = {}
    for one in fleet.size_of:
        if one in present:
            kinds = menu.kinds(one, tier=tier) if fleet.company.settled(one) else ()
            item_of[one] = known.setdefault((fleet.size_of[one], kinds, fleet.company.siblings(one)), len(known))
    return Goods(
        item_of,
        size=tuple(size for size, _, _ in known),
        allowed=tuple(kinds for _, kinds, _ in known),
        apart=tuple(name for _, _, name in known),
    )
