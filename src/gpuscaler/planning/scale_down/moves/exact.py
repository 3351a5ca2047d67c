"""Moves pods with a place that depends on other pods (affinity, spread, ports, volumes): one at a time, running every filter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.pods import Pod
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.moves.destinations import Destinations
from gpuscaler.planning.scale_down.moves.possible_rooms import PossibleRooms
from gpuscaler.planning.scale_down.pod_classes import RunningClass, first_key

#: Rows that filters may check for each unit of the policy's work budget.
ROWS_PER_WORK = 2


@dataclass(frozen=True)
class PodMove:
    """The move of one pod from row to row."""

    running_class: RunningClass
    pod: Pod
    source: int
    target: int


def passes_within(work: int, room: Room) -> int:
    """How often the filters may be run over all rows of ``room`` for ``work`` units of a policy's budget."""
    return max(1, work * ROWS_PER_WORK // max(1, len(room)))


class Mover:
    """Moves pods in a copy of the rooms; runs the filters of one room at most ``passes`` times."""

    def __init__(self, rooms: PossibleRooms, destinations: Destinations, *, passes: int) -> None:
        self.rooms = rooms.copy()
        self._destinations = destinations
        self._passes = passes
        self._hopeless: dict[RunningClass, str] = {}
        self._leaving = np.zeros(len(rooms.planned), dtype=np.bool_)

    @property
    def exhausted(self) -> bool:
        """Whether the work that one plan may spend here is spent."""
        return self._passes <= 0

    def clear(self, candidate: Candidate, classes: Iterable[RunningClass], preference: Array) -> list[PodMove] | Blocker:
        """Find a new place for each pod of ``classes`` on ``candidate``; on failure nothing changes, and the blocker names the pod.

        ``preference`` orders the rows that may take a pod, lowest first. A cleared machine takes no pods afterwards.
        """
        order = sorted(classes, key=lambda running_class: running_class.order)
        hopeless = next((running_class for running_class in order if running_class in self._hopeless), None)
        if hopeless is not None:
            return no_place_blocker(first_key(candidate.load[hopeless]), self._hopeless[hopeless])
        steps: list[PodMove] = []
        self._leaving[candidate.row] = True
        for running_class in order:
            for pod in sorted(candidate.load[running_class], key=lambda pod: pod.key):
                self.rooms.remove(running_class.spec, running_class.labels, candidate.row)
                target = self._choose(running_class, preference)
                if target is None:
                    why = refusals(
                        self.rooms, running_class, self._destinations.admitting(running_class), self._destinations.targets & ~self._leaving
                    )
                    self.rooms.place(running_class.spec, running_class.labels, candidate.row)
                    self._undo(steps)
                    self._leaving[candidate.row] = False
                    if not steps and not running_class.spec.spread and not running_class.spec.affinity:
                        # No later step of this plan makes room for such a pod.
                        self._hopeless[running_class] = why
                    return no_place_blocker(pod.key, why)
                self.rooms.place(running_class.spec, running_class.labels, target)
                steps.append(PodMove(running_class, pod, candidate.row, target))
        return steps

    def _undo(self, steps: Sequence[PodMove]) -> None:
        for step in reversed(steps):
            self.rooms.remove(step.running_class.spec, step.running_class.labels, step.target)
            self.rooms.place(step.running_class.spec, step.running_class.labels, step.source)

    def _choose(self, running_class: RunningClass, preference: Array) -> int | None:
        self._passes -= len(self.rooms)
        rows = np.flatnonzero(
            self.rooms.verdict(running_class.spec, running_class.labels).mask & self._destinations.admitting(running_class) & ~self._leaving
        )
        return int(rows[np.argmin(preference[rows])]) if len(rows) else None


def no_place_blocker(pod: str, why: str) -> Blocker:
    return Blocker("in-use", f"pod {pod} fits on no other node: {why}")


def refusals(rooms: PossibleRooms, running_class: RunningClass, admitting: Mask, others: Mask) -> str:
    """How many of the rows ``others`` each filter rejects, in kube-scheduler's words; ``admitting`` are the rows with the right origin."""
    total = int(others.sum())
    if not total:
        return "there is no other open node"
    verdict = rooms.verdict(running_class.spec, running_class.labels)
    counts = {name: int((mask & others).sum()) for name, mask in verdict.excluded.items()}
    parts = [f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])) if count]
    unlike = int((others & verdict.mask & ~admitting).sum())
    if unlike:
        parts.append(f"{unlike} of another market, architecture or gang domain")
    return f"of {total} open node{'s' if total != 1 else ''}, " + ", ".join(
        parts or ["none has room for it and the pods that move with it"]
    )


def replay(rooms: PossibleRooms, steps: Sequence[PodMove]) -> bool:
    """Make ``steps`` in ``rooms``; returns whether every filter admits each of them in turn. On failure nothing changes."""
    done: list[PodMove] = []
    for step in steps:
        rooms.remove(step.running_class.spec, step.running_class.labels, step.source)
        admitted = bool(rooms.verdict(step.running_class.spec, step.running_class.labels).mask[step.target])
        rooms.place(step.running_class.spec, step.running_class.labels, step.target)
        done.append(step)
        if not admitted:
            for back in reversed(done):
                rooms.remove(back.running_class.spec, back.running_class.labels, back.target)
                rooms.place(back.running_class.spec, back.running_class.labels, back.source)
            return False
    return True
