"""First-fit onto machines whose size is chosen last, for demand with more rules between pods than the optimiser can weigh.

Hundreds of classes that may not share machines with each other leave little to optimise and much to check. Here machines are opened at the
size that serves a class cheapest, filled class by class with all rules checked on all machines at once, and in the end each becomes the
cheapest kind that still holds what is on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.demand import PodClass
from gpuscaler.planning.limits import Remaining
from gpuscaler.planning.lots import Lot, request_of
from gpuscaler.planning.mix import Pattern, Solution
from gpuscaler.planning.templates import Kind, Templates
from gpuscaler.planning.topology import Shape, host_rules

#: Kinds this much dearer per pod than the cheapest still count as equally cheap; the largest of them is opened.
TIE = 1.02
#: Machines whose kinds are looked up at once.
CHUNK = 256


def pack(cluster: Cluster, templates: Templates, remaining: Remaining, lots: Sequence[Lot]) -> Solution:
    """Machines for ``lots`` within what remains under the limits. No bound comes with it: the caller asks for one apart."""
    packing = _Packing(cluster, templates, lots)
    for index in packing.order():
        packing.put(index)
    machines, unmet = packing.close(remaining)
    return Solution(machines=tuple(machines), unmet=unmet, cost=sum(templates.kinds[pattern.kind].price for pattern in machines))


@dataclass(frozen=True)
class _Signature:
    """Lots that the rules between pods treat alike share one."""

    of_lot: tuple[int, ...]
    conflicts: tuple[Array, ...]
    sets: tuple[tuple[tuple[int, int], ...], ...]
    size: int


def signatures(cluster: Cluster, lots: Sequence[Lot]) -> _Signature:
    """Which rule set each lot is under: ``conflicts[s]`` may not be beside s, ``sets[s]`` are (set, cap) that count s."""
    known: dict[tuple[object, ...], int] = {}
    models: list[PodClass] = []
    shapes: list[Shape] = []
    of_lot = []
    for lot in lots:
        one, its = lot.queue.one, lot.queue.shape
        key = (one.spec.namespace, one.labels, its.host_anti, its.host_spread, one.spec.host_ports)
        if key not in known:
            known[key] = len(models)
            models.append(one)
            shapes.append(its)
        of_lot.append(known[key])
    rules = host_rules(cluster, models, shapes)
    conflicts: list[set[int]] = [set() for _ in models]
    for i, j in rules.apart:
        conflicts[i].add(j)
        conflicts[j].add(i)
    sets: list[list[tuple[int, int]]] = [[] for _ in models]
    for number, rule in enumerate(rules.together):
        for member in rule.items:
            sets[member].append((number, rule.cap))
    return _Signature(
        of_lot=tuple(of_lot),
        conflicts=tuple(np.array(sorted(them), dtype=np.int64) for them in conflicts),
        sets=tuple(tuple(mine) for mine in sets),
        size=len(rules.together),
    )


class _Packing:
    """Open machines as columns of arrays, with room for as many as there are pods."""

    def __init__(self, cluster: Cluster, templates: Templates, lots: Sequence[Lot]) -> None:
        self.lots = lots
        self.kinds: tuple[Kind, ...] = templates.kinds
        self.requests = [request_of(lot) for lot in lots]
        self.resources = sorted({name for request in self.requests for name in request})
        self.wanted = np.array([[request.get(name, 0) for name in self.resources] for request in self.requests], dtype=np.int64)
        # Basic slices are views; most lots ask for some of everything.
        self.asked = [slice(None) if row.all() else np.flatnonzero(row) for row in self.wanted]
        capacities = [templates.capacity(kind) for kind in self.kinds]
        self.capacity = np.array([[room.get(name, 0) for name in self.resources] for room in capacities], dtype=np.int64)
        self.price = np.array([kind.price for kind in self.kinds])
        self.rules = signatures(cluster, lots)
        self.open = 0
        most = sum(1 if lot.whole else lot.count for lot in lots)
        self.left = np.zeros((len(self.resources), most), dtype=np.int64)
        self.ceiling = np.zeros(most, dtype=np.int64)
        self.blocked = np.zeros((len(self.rules.conflicts), most), dtype=np.bool_)
        self.counted = np.zeros((self.rules.size, most), dtype=np.int64)
        self.admits = np.ones((most, len(self.kinds)), dtype=np.bool_)
        self.contents: list[tuple[int, list[int], list[int]]] = []
        self.unmet: dict[int, int] = {}

    def order(self) -> list[int]:
        """Higher priority first, then those that open most machines, then the larger; the rest for a stable order."""

        def key(index: int) -> tuple[object, ...]:
            lot = self.lots[index]
            caps = [cap for _, cap in self.rules.sets[self.rules.of_lot[index]]]
            return (-lot.queue.one.spec.priority, min(caps, default=1 << 30), tuple(-self.wanted[index]), lot.queue.one.order, index)

        return sorted(range(len(self.lots)), key=key)

    def put(self, index: int) -> None:
        """Fill open machines with one lot, then open as many as it still needs."""
        lot = self.lots[index]
        count = 1 if lot.whole else lot.count
        rows, room = self._room(index, count)
        if len(rows) and room[0] >= count:
            self._add_to_one(index, int(rows[0]), count)
            return
        if len(rows):
            before = np.cumsum(room) - room
            rows, room, before = rows[before < count], room[before < count], before[before < count]
            taken = np.minimum(room, count - before)
            self._add(index, rows, taken)
            count -= int(taken.sum())
        if count:
            self._open(index, count)

    def _room(self, index: int, count: int) -> tuple[Array, Array]:
        """Open machines that take a lot, and how many copies each; no more machines than ``count`` pods could need."""
        size, signature = self.open, self.rules.of_lot[index]
        asked = self.asked[index]
        wanted = self.wanted[index][asked, None]
        free = (self.left[asked, :size] >= wanted).all(axis=0)
        free &= ~self.blocked[signature, :size]
        for number, cap in self.rules.sets[signature]:
            free &= self.counted[number, :size] < cap
        rows = np.flatnonzero(free)
        rows = rows[self.lots[index].allowed[self.ceiling[rows]]][:count]
        if not len(rows):
            return rows, rows
        room = np.minimum((self.left[asked, :size][:, rows] // wanted).min(axis=0), count)
        for number, cap in self.rules.sets[signature]:
            np.minimum(room, cap - self.counted[number, rows], out=room)
        return rows, room

    def _add(self, index: int, rows: Array, copies: Array) -> None:
        signature = self.rules.of_lot[index]
        self.left[:, rows] -= self.wanted[index][:, None] * copies
        self.blocked[self.rules.conflicts[signature][:, None], rows] = True
        for number, _ in self.rules.sets[signature]:
            self.counted[number, rows] += copies
        self.admits[rows] &= self.lots[index].allowed
        self.contents.append((index, rows.tolist(), copies.tolist()))

    def _add_to_one(self, index: int, row: int, count: int) -> None:
        """As :meth:`_add` for a single machine, which is what most small lots need; plain indices are several times as fast."""
        signature = self.rules.of_lot[index]
        self.left[:, row] -= self.wanted[index] * count
        self.blocked[self.rules.conflicts[signature], row] = True
        for number, _ in self.rules.sets[signature]:
            self.counted[number, row] += count
        self.admits[row] &= self.lots[index].allowed
        self.contents.append((index, [row], [count]))

    def _open(self, index: int, count: int) -> None:
        """Open machines of the kind that serves the lot cheapest per pod."""
        wanted = self.wanted[index]
        asked = wanted > 0
        copies = np.where(self.lots[index].allowed, (self.capacity[:, asked] // wanted[asked]).min(axis=1), 0)
        if not copies.any():
            self.unmet[index] = count
            return
        each: NDArray[np.float64] = np.where(copies > 0, self.price / np.maximum(copies, 1), np.inf)
        cheap = np.flatnonzero(each <= each.min() * TIE)
        kind = int(cheap[np.lexsort((cheap, self.price[cheap], -copies[cheap]))[0]])
        # The same machine in other zones: taking them in turn leaves room for pods that are bound to any one of them.
        turns = cheap[(copies[cheap] == copies[kind]) & (self.price[cheap] == self.price[kind])]
        caps = [cap for _, cap in self.rules.sets[self.rules.of_lot[index]]]
        per_machine = min([int(copies[kind]), *caps])
        machines = -(-count // per_machine)
        rows = np.arange(self.open, self.open + machines)
        self.open += machines
        self.ceiling[rows] = turns[np.arange(machines) % len(turns)]
        self.left[:, rows] = self.capacity[self.ceiling[rows]].T
        taken = np.full(machines, per_machine, dtype=np.int64)
        taken[-1] = count - per_machine * (machines - 1)
        self._add(index, rows, taken)

    def close(self, remaining: Remaining) -> tuple[list[Pattern], dict[int, int]]:
        """Every machine as the cheapest kind that holds it; machines beyond the limits are dropped, those of high priority last."""
        pods: list[dict[int, int]] = [{} for _ in range(self.open)]
        for index, rows, copies in self.contents:
            for row, number in zip(rows, copies, strict=True):
                pods[row][index] = pods[row].get(index, 0) + number
        left = remaining.copy()
        patterns = []
        cheapest = self._cheapest()
        for row in sorted(range(self.open), key=lambda r: -max(self.lots[i].queue.one.spec.priority for i in pods[r])):
            kind = cheapest[row]
            if left.most(self.kinds[kind], 1):
                left.spend(self.kinds[kind], 1)
                patterns.append(Pattern(kind, pods[row], 1))
            else:
                for index, number in pods[row].items():
                    self.unmet[index] = self.unmet.get(index, 0) + number
        return patterns, self.unmet

    def _cheapest(self) -> list[int]:
        """For each machine the cheapest kind that admits and holds what is on it."""
        by_price = np.lexsort((np.arange(len(self.kinds)), self.price))
        used = (self.capacity[self.ceiling[: self.open]].T - self.left[:, : self.open]).T
        found: list[int] = []
        for start in range(0, self.open, CHUNK):
            part = slice(start, min(start + CHUNK, self.open))
            fits: Mask = self.admits[part][:, by_price]
            for number in range(len(self.resources)):
                fits &= self.capacity[by_price, number] >= used[part, number, None]
            found += by_price[fits.argmax(axis=1)].tolist()
        return found
