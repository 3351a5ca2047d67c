"""New machines that may take running pods, and the purchase items that these pods are counted as."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Array
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays
from gpuscaler.planning.scale_down.moves.destinations import Destinations
from gpuscaler.planning.scale_down.pod_classes import RunningClass


class ReplacementKinds:
    """The new machines that may take each class of running pods."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._destinations = Destinations.on_templates(templates)

    def kinds(self, running_class: RunningClass, *, tier: int) -> tuple[int, ...]:
        """Kinds in pools with at least the priority ``tier``, of which every template takes pods of ``running_class``."""
        mask = self._destinations.admitting(running_class) & self._templates.holds_one(running_class.spec)
        return tuple(np.flatnonzero(self._templates.kinds_within(mask) & (self._templates.tiers >= tier)).tolist())


@dataclass(frozen=True)
class PurchaseItems:
    """The purchase item of each class: ``item_of[class]``, with ``size[item]`` and the kinds ``allowed[item]``.

    Of items that share a name in ``exclusive_groups`` (empty: none), a machine takes one pod in all.
    """

    item_of: Mapping[RunningClass, int]
    size: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    exclusive_groups: tuple[str, ...]

    def counts(self, candidates: Sequence[Candidate]) -> Array:
        """Pods by item on ``candidates``."""
        total = np.zeros(len(self.size), dtype=np.int64)
        for candidate in candidates:
            for running_class, pods in candidate.load.items():
                if running_class in self.item_of:
                    total[self.item_of[running_class]] += len(pods)
        return total


def purchase_items(
    arrays: CandidateArrays, replacement_kinds: ReplacementKinds, candidates: Sequence[Candidate], *, tier: int
) -> PurchaseItems:
    """Sort the classes on ``candidates`` into items: same size, same kinds that may take them, same pods that they keep apart from."""
    present = {running_class for candidate in candidates for running_class in candidate.load if running_class in arrays.size_of}
    item_numbers: dict[tuple[int, tuple[int, ...], str], int] = {}
    item_of = {}
    for running_class in arrays.size_of:
        if running_class in present:
            kinds = replacement_kinds.kinds(running_class, tier=tier) if arrays.peer_rules.can_return(running_class) else ()
            item_of[running_class] = item_numbers.setdefault(
                (arrays.size_of[running_class], kinds, arrays.peer_rules.siblings(running_class)), len(item_numbers)
            )
    return PurchaseItems(
        item_of,
        size=tuple(size for size, _, _ in item_numbers),
        allowed=tuple(kinds for _, kinds, _ in item_numbers),
        exclusive_groups=tuple(name for _, _, name in item_numbers),
    )
