"""Bulk moves of pods with affinity or spread rules.

These pods keep their domain. Anti-affinity between siblings on one host is modelled as a resource: every machine has one unit, and each
sibling uses it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.feasibility import BETWEEN_PODS
from gpuscaler.planning.feasibility.pods.spread import hard
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.moves.possible_rooms import PossibleRooms
from gpuscaler.planning.scale_down.moves.rules import MoveRules
from gpuscaler.planning.scale_down.pod_classes import RunningClass

#: Prefix of the resource of which every machine has one, for each group of siblings that keep apart.
EXCLUSIVE = "apart:"


def displaced(candidates: Sequence[Candidate], classes: Collection[RunningClass], room: Room) -> set[RunningClass]:
    """Classes with spread rules and a pod on a node that would not admit it now, so that its domain does not count the pod."""
    admitting = {running_class: room.static_mask(running_class.spec) for running_class in classes if hard(running_class.spec)}
    if not admitting:
        return set()
    return {
        running_class
        for candidate in candidates
        for running_class in candidate.load
        if running_class in admitting and not admitting[running_class][candidate.row]
    }


def split_by_domain(
    candidates: Sequence[Candidate], rules_by_class: Mapping[RunningClass, MoveRules]
) -> tuple[list[Candidate], dict[RunningClass, MoveRules]]:
    """The candidates with their classes split by the domains that pods must keep, and how each resulting class may move."""
    keeping = {running_class for running_class, rules in rules_by_class.items() if rules.keys}
    split: dict[tuple[RunningClass, object], RunningClass] = {}
    of = {running_class: rules for running_class, rules in rules_by_class.items() if running_class not in keeping}
    narrowed = []
    for candidate in candidates:
        if not keeping.isdisjoint(candidate.load):
            load = {}
            for running_class, pods in candidate.load.items():
                class_in_domain = running_class
                if running_class in keeping:
                    domain = tuple([(key, candidate.node.labels.get(key)) for key in rules_by_class[running_class].keys])
                    split_class = split.get((running_class, domain))
                    if split_class is None:
                        split_class = split[running_class, domain] = replace(
                            running_class, origin=replace(running_class.origin, domain=domain)
                        )
                        of[split_class] = rules_by_class[running_class]
                    class_in_domain = split_class
                load[class_in_domain] = pods
            candidate = structs.replace(candidate, load=load)
        narrowed.append(candidate)
    return narrowed, of


class PeerRules:
    """Rows that affinity and spread rules leave open to classes that do not depend on the order of moves.

    ``class_rows`` gives a row on which each class runs. Rules over domains give the same result for every pod of a class in one domain,
    before and after any number of moves within it, so one check covers all of them. The filters are run at most ``passes`` times; pods of
    classes beyond that stay where they are.
    """

    def __init__(
        self, rooms: PossibleRooms, rules_by_class: Mapping[RunningClass, MoveRules], class_rows: Mapping[RunningClass, int], *, passes: int
    ) -> None:
        self._rooms = rooms.copy()
        self._rules_by_class = rules_by_class
        self._class_rows = class_rows
        self._passes = passes
        self._memo: dict[RunningClass, Mask] = {}

    def admitting(self, running_class: RunningClass) -> Mask | None:
        """Rows where other pods' rules admit a pod of ``running_class`` once it has left its own row; None without such rules."""
        rules = self._rules_by_class[running_class]
        if not rules.keys and not rules.one_per_machine:
            return None
        mask = self._memo.get(running_class)
        if mask is None and len(self._memo) * len(self._rooms) >= self._passes:
            return np.zeros(len(self._rooms.planned), dtype=np.bool_)
        if mask is None:
            row = self._class_rows[running_class]
            self._rooms.remove(running_class.spec, running_class.labels, row)
            passes = self._rooms.verdict(running_class.spec, running_class.labels).passes
            self._rooms.place(running_class.spec, running_class.labels, row)
            masks = [passes[name] for name in BETWEEN_PODS if name in passes]
            mask = self._memo[running_class] = np.logical_and.reduce(masks) if masks else np.ones(len(self._rooms.planned), dtype=np.bool_)
        return mask

    def can_return(self, running_class: RunningClass) -> bool:
        """Whether a pod of ``running_class`` could be placed again where it is; if not, rules are violated already and the pod stays."""
        mask = self.admitting(running_class)
        return mask is None or bool(mask[self._class_rows[running_class]])

    def siblings(self, running_class: RunningClass) -> str:
        """The resource that keeps ``running_class`` apart from its siblings; empty if there is none."""
        return (
            f"{EXCLUSIVE}{running_class.spec.digest}/{running_class.origin.domain}"
            if self._rules_by_class[running_class].one_per_machine
            else ""
        )

    def free_slots(self, running_class: RunningClass) -> Array:
        """How much of the resource that keeps ``running_class`` apart each row has left."""
        mask = self.admitting(running_class)
        assert mask is not None
        free_slots = mask.astype(np.int64)
        free_slots[self._class_rows[running_class]] = 0
        return free_slots


def first_rows(candidates: Sequence[Candidate]) -> dict[RunningClass, int]:
    """A row for each class: that of its first candidate by name."""
    class_rows: dict[RunningClass, int] = {}
    for candidate in sorted(candidates, key=lambda c: c.name):
        for running_class in candidate.load.keys() - class_rows.keys():
            class_rows[running_class] = candidate.row
    return class_rows
