"""Preferences of pods as a score per row: they decide only between otherwise equal rows, so they cost nothing."""

from collections.abc import Sequence

import msgspec
import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm
from gpuscaler.model.table import Array, Mask
from gpuscaler.model.taints import Toleration
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.mix import MachineGroup
from gpuscaler.planning.scale_up.draft.draft import PlanDraft
from gpuscaler.planning.scale_up.draft.purchase_items import PurchaseItem

#: For spread with ScheduleAnyway, each additional pod in a domain counts as much as this weight of a preferred affinity.
CROWDING = 1


def has_preferences(spec: PodSpec) -> bool:
    return bool(
        spec.preferred_nodes
        or spec.preferred_affinity
        or spec.preferred_anti_affinity
        or any(not constraint.hard for constraint in spec.spread)
    )


def preference_scores(room: Room, pod_class: PodClass) -> Array | None:
    """The score of each row for a pod of ``pod_class``, by the weights of its preferences; None when it has none."""
    spec = pod_class.spec
    if not has_preferences(spec):
        return None
    scores = np.zeros(len(room), dtype=np.int64)
    for weight, term in spec.preferred_nodes:
        scores += weight * room.selected(probe_spec(term))
    for sign, others in ((1, spec.preferred_affinity), (-1, spec.preferred_anti_affinity)):
        for other in others:
            matching = room.matching(other.namespaces, other.namespace_selector, other.selector)
            scores += sign * other.weight * (sum_by_domain(room, other.topology_key, matching) > 0)
    for constraint in spec.spread:
        if not constraint.hard and constraint.selector is not None:
            matching = room.matching((spec.namespace,), None, constraint.selector, exclude_terminating=True)
            scores -= CROWDING * sum_by_domain(room, constraint.topology_key, matching)
    return scores


def rows_with_wishes(room: Room, pod_class: PodClass) -> Mask:
    """Rows that match all ``wishes`` of ``pod_class``."""
    mask = np.ones(len(room), dtype=np.bool_)
    for term in pod_class.wishes:
        mask &= room.selected(probe_spec(term))
    return mask


def probe_spec(term: NodeSelectorTerm) -> PodSpec:
    """The specification of a pod whose only requirement is ``term``."""
    return PodSpec(
        digest=f"prefers {msgspec.json.encode(term).decode()}",
        namespace="",
        requests={},
        node_affinity=NodeSelector((term,)),
        tolerations=(Toleration(operator="Exists"),),
    )


def sum_by_domain(room: Room, key: str, counts: Array) -> Array:
    """``counts`` summed over the domain of each row; 0 for rows without a domain."""
    codes, values = room.table.column(key)
    inside = codes >= 0
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.add.at(sums, codes[inside], counts[inside])
    return np.where(inside, sums[codes], 0)


class Favourites:
    """Chooses, for machines to buy, the kind that their pods prefer among kinds that differ only in their place.

    Without a preference, it chooses one that is not a probe, and then one that was not refused or reclaimed a short while ago: spot
    capacity that has just returned is often lost again soon.
    """

    def __init__(self, draft: PlanDraft, items: Sequence[PurchaseItem]) -> None:
        self.templates = draft.templates
        self.remaining = draft.remaining
        self.items = items
        self.unsettled = {row for row, offering in enumerate(draft.templates.offerings) if offering.key in draft.unsettled}
        self.scores = {
            index: scores[draft.template_rows].copy()
            for index, item in enumerate(items)
            if (scores := preference_scores(draft.room, item.queue.pod_class)) is not None
        }

    def best(self, group: MachineGroup) -> int:
        """The kind to buy for ``group``: its own if no other is better. The choice influences later choices."""
        if self.scores.keys().isdisjoint(group.pods) and all(self._is_proven(group.kind)):
            return group.kind
        possible = [kind for kind in self.templates.places[group.kind] if self._may_be(group, kind)] or [group.kind]
        kind = max(possible, key=lambda kind: (self._score(group, kind), self._is_proven(kind), kind == group.kind, -kind))
        self._remember(group, self.templates.kinds[kind].rows[0])
        return kind

    def _may_be(self, group: MachineGroup, kind: int) -> bool:
        """Whether ``kind`` takes all pods of ``group``, and is not a probe that this plan already buys."""
        machine_kind = self.templates.kinds[kind]
        return all(self.items[index].allowed[kind] for index in group.pods) and (
            not machine_kind.probe or self.remaining.admitted_count(machine_kind, 1) > 0
        )

    def _is_proven(self, kind: int) -> tuple[bool, bool]:
        """Whether ``kind`` is not a probe, and whether none of its offerings was refused or reclaimed lately."""
        machine_kind = self.templates.kinds[kind]
        return not machine_kind.probe, self.unsettled.isdisjoint(machine_kind.rows)

    def _score(self, group: MachineGroup, kind: int) -> int:
        row = self.templates.kinds[kind].rows[0]
        return sum(copies * int(self.scores[index][row]) for index, copies in group.pods.items() if index in self.scores)

    def _remember(self, group: MachineGroup, row: int) -> None:
        """Lower the score of a domain with each pod placed there, for pods with a preferred spread."""
        for index, copies in group.pods.items():
            for constraint in self.items[index].queue.pod_class.spec.spread if index in self.scores else ():
                if (
                    not constraint.hard
                    and constraint.selector is not None
                    and constraint.selector.matches(self.items[index].queue.pod_class.labels)
                ):
                    codes = self.templates.table.column(constraint.topology_key).codes
                    self.scores[index][(codes == codes[row]) & (codes >= 0)] -= CROWDING * copies
