"""One run: pods come one by one, each goes to the node with the highest score or is dropped, and none ever leaves."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE, Floats, Ints, Mask, PodClasses
from gpuscaler.simulation.papers.fgd.workload import MEASURED, Arrivals, Nodes, Workload

#: The score of a node where a pod does not fit.
NOWHERE = -np.inf


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Free capacity of a node. ``devices`` are free thousandths in ascending order, ``kinds`` the kinds of pods on it as bits."""

    cpu: int
    devices: Ints
    kinds: int

    @property
    def key(self) -> tuple[int, bytes, int]:
        return self.cpu, self.devices.tobytes(), self.kinds


class Scoring(Protocol):
    """A scheduler's score. Higher is better; the first of the best nodes is taken."""

    #: Whether any node where the pod fits will do; scores are then ignored.
    random: bool

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        """Scores of one node for each class of pods, shape (K,), as if all of them fitted."""
        ...

    def device(self, pods: PodClasses, capacity: FreeCapacity, draw: np.random.Generator) -> int:
        """The device for the single pod of ``pods``, which takes a part of one; it fits at least one."""
        ...


def kind_bits(classes: PodClasses) -> Ints:
    """The kind of each class as a bit: those that share a device, and those that take 1, 2, … of them; 0 for pods without GPUs."""
    return np.where(classes.gpus > 0, 1 << np.where(classes.shared, 0, classes.gpus), 0)


class Cluster:
    """Free capacity of all nodes, and a table of scores, classes by nodes, of which each placement changes one column."""

    def __init__(self, nodes: Nodes, load: Workload, scoring: Scoring) -> None:
        self._load, self._scoring = load, scoring
        self._kinds = kind_bits(load.classes)
        self._cpu, self._memory = nodes.cpu.tolist(), nodes.memory.tolist()
        self._devices = [np.full(count, WHOLE) for count in nodes.gpus.tolist()]
        self._on = [0] * len(nodes)
        # Memory decides where a pod fits but counts in no score: classes that differ only in memory share one.
        alike = np.column_stack((load.classes.gpus, load.classes.milli, load.classes.cpu))
        _, first, self._scored_as = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        self._scored = load.classes.subset(first)
        self._known: dict[tuple[int, bytes, int], Floats] = {}
        self._table = np.empty((len(load.classes), len(nodes)))
        for number in range(len(nodes)):
            self._rescore(number)

    def place(self, member: int, draw: np.random.Generator) -> bool:
        """Put a pod of a class on the best node. False when it fits nowhere."""
        row = self._table[member]
        number = int(draw.choice(np.flatnonzero(row > NOWHERE))) if self._scoring.random and row.max() > NOWHERE else int(row.argmax())
        if row[number] == NOWHERE:
            return False
        classes = self._load.classes
        gpus, milli = int(classes.gpus[member]), int(classes.milli[member])
        devices = self._devices[number]
        if gpus == 1 and milli < WHOLE:
            device = self._scoring.device(classes.subset(np.array([member])), self._capacity(number), draw)
            devices[device] -= milli
            devices.sort()
        elif gpus:
            # Ascending order: whole devices are the last ones.
            devices[-gpus:] = 0
            devices.sort()
        self._cpu[number] -= int(classes.cpu[member])
        self._memory[number] -= int(self._load.memory[member])
        self._on[number] |= int(self._kinds[member])
        self._rescore(number)
        return True

    def _capacity(self, number: int) -> FreeCapacity:
        return FreeCapacity(self._cpu[number], self._devices[number], self._on[number])

    def _rescore(self, number: int) -> None:
        capacity = self._capacity(number)
        scores = self._known.get(capacity.key)
        if scores is None:
            scores = self._known[capacity.key] = self._scoring.scores(self._scored, capacity)
        self._table[:, number] = np.where(self._fits(capacity, self._memory[number]), scores[self._scored_as], NOWHERE)

    def _fits(self, capacity: FreeCapacity, memory: int) -> Mask:
        classes = self._load.classes
        on_devices = np.where(classes.shared, capacity.devices[-1] >= classes.milli, (capacity.devices == WHOLE).sum() >= classes.gpus)
        fits: Mask = on_devices & (capacity.cpu >= classes.cpu) & (memory >= self._load.memory)
        return fits


def unallocated(cluster: Cluster, coming: Arrivals, load: Workload, *, capacity: int, draw: np.random.Generator) -> float:
    """Percent of GPUs that no pod has when the pods so far asked for as many as exist: the mean over the measured arrivals.

    On a cluster so small that one pod passes over all of them, it is the value after the last pod.
    """
    demand = load.classes.demand
    used = 0
    measured: list[float] = []
    for member, demanded in zip(coming.pods.tolist(), coming.load.tolist(), strict=True):
        if cluster.place(member, draw):
            used += int(demand[member])
        if demanded >= MEASURED[0]:
            measured.append(1.0 - used / capacity)
    return 100.0 * float(np.mean(measured or [1.0 - used / capacity]))
