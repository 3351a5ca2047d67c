"""First-fit onto machines whose size is chosen last, for demand with more rules between pods than the optimiser can handle.

Hundreds of classes that may not share machines with each other leave little to optimise and much to check. Here machines are opened at the
size that serves a class most cheaply, and filled class by class, with all rules checked on all machines at once. In the end each machine
becomes the cheapest kind that still holds its pods.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.capacity.limits import Remaining
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.topology import Shape, host_rules
from gpuscaler.planning.mix import MachineGroup, Solution
from gpuscaler.planning.scale_up.draft.purchase_items import PurchaseItem, distinct, request_of

#: Kinds up to this factor more expensive per pod than the cheapest count as equally cheap; the largest of them is opened.
TIE = 1.02
#: One in this many of the machines that rules between pods require may grow beyond the needs of those pods.
LARGE = 10


def first_fit(cluster: Cluster, templates: Templates, remaining: Remaining, items: Sequence[PurchaseItem]) -> Solution:
    """Machines for ``items`` within the remaining limits. The solution has no bound: the caller computes one separately."""
    packing = _Packing(cluster, templates, items)
    machines, unmet = packing.solve(remaining)
    if unmet and (remaining.machines is not None or remaining.pools):
        # If the number of machines is limited, large ones serve more pods, regardless of the price per pod.
        other = _Packing(cluster, templates, items, tie=math.inf)
        fewer, left = other.solve(remaining)
        if other.missing(left) < packing.missing(unmet):
            machines, unmet = fewer, left
    return Solution(groups=tuple(machines), unplaced=unmet, cost=sum(templates.kinds[group.kind].price for group in machines))


@dataclass(frozen=True)
class _Rules:
    """The rules between items. Items that the rules treat alike share a signature: ``of_item`` by item.

    Pods of the signatures ``conflicts[s]`` may not share a machine with s; ``sets[s]`` are the (set, cap) pairs that count s, ``members``
    the signatures of each set.
    """

    of_item: tuple[int, ...]
    conflicts: tuple[Array, ...]
    sets: tuple[tuple[tuple[int, int], ...], ...]
    members: tuple[Array, ...]


def signatures(cluster: Cluster, items: Sequence[PurchaseItem]) -> _Rules:
    """The rules between ``items`` on one machine."""
    numbers: dict[tuple[object, ...], int] = {}
    models: list[PodClass] = []
    shapes: list[Shape] = []
    of_item = []
    for item in items:
        pod_class, constraints = item.queue.pod_class, item.queue.shape
        key = (pod_class.spec.namespace, pod_class.labels, constraints.host_anti, constraints.host_spread, pod_class.spec.host_ports)
        if key not in numbers:
            numbers[key] = len(models)
            models.append(pod_class)
            shapes.append(constraints)
        of_item.append(numbers[key])
    rules = host_rules(cluster, models, shapes)
    conflicts: list[set[int]] = [set() for _ in models]
    for i, j in rules.exclusive_pairs:
        conflicts[i].add(j)
        conflicts[j].add(i)
    sets: list[list[tuple[int, int]]] = [[] for _ in models]
    for number, rule in enumerate(rules.shared_caps):
        for member in rule.items:
            sets[member].append((number, rule.cap))
    return _Rules(
        of_item=tuple(of_item),
        conflicts=tuple(np.array(sorted(them), dtype=np.int64) for them in conflicts),
        sets=tuple(tuple(items_of_set) for items_of_set in sets),
        members=tuple(np.array(rule.items, dtype=np.int64) for rule in rules.shared_caps),
    )


class _Packing:
    """Open machines as columns of arrays, with space for one machine per pod.

    Items are sorted by size: how often a size fits on each machine is computed once (``room``, by resources only) and then counted down.
    ``begun`` is its initial value for the size or the machine. ``roomy[m]`` flags the machines with room whose kind is in the mask m,
    ``admitting[s]`` those that the rules admit signature s to.
    """

    def __init__(self, cluster: Cluster, templates: Templates, items: Sequence[PurchaseItem], *, tie: float = TIE) -> None:
        self.items = items
        self.tie = tie
        self.wants = [1 if item.on_one_machine else item.count for item in items]
        self.kinds: tuple[MachineKind, ...] = templates.kinds
        self.scarce = templates.scarce
        self.twins = templates.twins
        sizes: dict[tuple[tuple[str, int], ...], int] = {}
        self.size_of = [sizes.setdefault(tuple(sorted(request_of(item).items())), len(sizes)) for item in items]
        requests = [dict(size) for size in sizes]
        resources = sorted({name for request in requests for name in request})
        self.wanted = np.array([[request.get(name, 0) for name in resources] for request in requests], dtype=np.int64)
        capacities = [kind.capacity for kind in templates.mix_kinds]
        self.capacity = np.array([[room.get(name, 0) for name in resources] for room in capacities], dtype=np.int64)
        self.price = np.array([kind.price for kind in self.kinds])
        self.mask_of, self.masks = distinct([item.allowed for item in items])
        self.rules = signatures(cluster, items)
        machine_count = sum(self.wants)
        self.open = self.tight = 0
        self.closing = False
        self.left = np.zeros((len(resources), machine_count), dtype=np.int64)
        self.ceiling = np.zeros(machine_count, dtype=np.int64)
        self.room = np.zeros(machine_count, dtype=np.int64)
        self.begun = np.zeros(machine_count, dtype=np.int64)
        self.admitting = np.ones((len(self.rules.conflicts), machine_count), dtype=np.bool_)
        self.counted = np.zeros((len(self.rules.members), machine_count), dtype=np.int64)
        self.alone = np.zeros(len(self.kinds), dtype=np.int64)
        self.roomy: dict[int, Mask] = {}
        self.pods: list[dict[int, int]] = []
        self.admits: list[int] = []
        self.unmet: dict[int, int] = {}

    def solve(self, remaining: Remaining) -> tuple[list[MachineGroup], dict[int, int]]:
        """Pack all items on machines within the limits; return the machine groups and the rest of each item."""
        for bound, part in groupby(self.order(), key=self.opens_many):
            self._fill_all(part)
            if bound and not remaining.any():
                self.tighten()
        return self.close(remaining)

    def _fill_all(self, indices: Iterable[int]) -> None:
        for size, alike in groupby(indices, key=self.size_of.__getitem__):
            self.fill(size, alike)

    def pods_of(self, index: int, copies: int) -> int:
        return copies * (self.items[index].count if self.items[index].on_one_machine else 1)

    def missing(self, unmet: Mapping[int, int]) -> list[tuple[int, int]]:
        """The number of pods without a machine by priority, the highest first: smaller is better."""
        counts = dict.fromkeys(sorted({-item.queue.pod_class.spec.priority for item in self.items}), 0)
        for index, copies in unmet.items():
            counts[-self.items[index].queue.pod_class.spec.priority] += self.pods_of(index, copies)
        return list(counts.items())

    def order(self) -> list[int]:
        """Items by priority, then those that open the most machines first, then by size; the rest makes the order stable."""
        least = [min((cap for _, cap in sets), default=1 << 30) for sets in self.rules.sets]
        larger = {size: place for place, size in enumerate(sorted(range(len(self.wanted)), key=lambda s: tuple(-self.wanted[s])))}

        def key(index: int) -> tuple[object, ...]:
            pod_class = self.items[index].queue.pod_class
            return (-pod_class.spec.priority, least[self.rules.of_item[index]], larger[self.size_of[index]], pod_class.order, index)

        return sorted(range(len(self.items)), key=key)

    def opens_many(self, index: int) -> bool:
        """Whether rules cap the pods of an item on one machine, so that its machines keep room for other items."""
        return bool(self.rules.sets[self.rules.of_item[index]])

    def tighten(self) -> None:
        """Limit all but the last-opened machines to the cheapest kind for their pods: their spare room is used before the others grow."""
        kept_open = self.open - self.open // LARGE
        fresh = np.arange(self.tight, kept_open)
        if len(fresh):
            self._become(fresh, self._nearby(fresh, self._cheapest()[fresh]))
            self.tight = kept_open

    def _nearby(self, rows: Array, kinds: Array) -> Array:
        """For each of ``rows`` the twin of its kind in the zone where the machine was opened; the kind itself if there is no such twin.

        This keeps the remaining room in all the zones in which machines were opened.
        """
        twins: dict[tuple[int, int, int], int] = {}
        nearby = kinds.copy()
        for place, (row, kind) in enumerate(zip(rows.tolist(), kinds.tolist(), strict=True)):
            key = (kind, int(self.ceiling[row]), self.admits[row])
            if key not in twins:
                allowed, zone = self._allowed(key[2]), self.kinds[key[1]].offering.zone
                twins[key] = next((twin for twin in self.twins[kind] if allowed[twin] and self.kinds[twin].offering.zone == zone), kind)
            nearby[place] = twins[key]
        return nearby

    def _allowed(self, admits: int) -> Mask:
        """Kinds that may serve all items whose mask bits are set in ``admits``."""
        mask: Mask = np.logical_and.reduce([mask for number, mask in enumerate(self.masks) if admits >> number & 1])
        return mask

    def _become(self, rows: Array, kinds: Array) -> None:
        """Change the kinds that machines may grow to."""
        self.left[:, rows] += (self.capacity[kinds] - self.capacity[self.ceiling[rows]]).T
        self.ceiling[rows] = kinds

    def fill(self, size: int, indices: Iterable[int]) -> None:
        """Place items of one size on machines, one after the other."""
        wanted = self.wanted[size]
        requested = np.flatnonzero(wanted)
        self.alone = (self.capacity[:, requested] // wanted[requested]).min(axis=1)
        self.room[: self.open] = (self.left[requested, : self.open] // wanted[requested, None]).min(axis=0, initial=1 << 62)
        self.begun[: self.open] = self.room[: self.open]
        self.roomy.clear()
        for index in indices:
            self._put(index)
        self.left[:, : self.open] -= wanted[:, None] * (self.begun - self.room)[: self.open]

    def _put(self, index: int) -> None:
        """Fill open machines with one item, then open as many as it still needs."""
        signature, size, count = self.rules.of_item[index], self.open, self.wants[index]
        if size:
            ready = self._roomy(self.mask_of[index]) & self.admitting[signature, :size]
            first = int(ready.argmax())
            if ready[first]:
                # Most small items need only one machine; plain indices are several times as fast.
                if self._takes(signature, first) >= count:
                    self._add(index, first, count)
                    return
                count -= self._share(index, np.flatnonzero(ready)[:count], count)
        if count and self.closing:
            self.unmet[index] = self.unmet.get(index, 0) + count
        elif count:
            self._open(index, count)

    def _roomy(self, mask: int) -> Mask:
        mask_of_roomy = self.roomy.get(mask)
        if mask_of_roomy is None or len(mask_of_roomy) < self.open:
            mask_of_roomy = self.roomy[mask] = self.masks[mask][self.ceiling[: self.open]] & (self.room[: self.open] > 0)
        return mask_of_roomy

    def _takes(self, signature: int, row: int) -> int:
        """How many more pods of ``signature`` and the current size one machine takes."""
        return min([int(self.room[row]), *(cap - int(self.counted[number, row]) for number, cap in self.rules.sets[signature])])

    def _share(self, index: int, rows: Array, count: int) -> int:
        """Place up to ``count`` copies on ``rows``, in this order; return how many were placed."""
        room = self.room[rows]
        for number, cap in self.rules.sets[self.rules.of_item[index]]:
            np.minimum(room, cap - self.counted[number, rows], out=room)
        before = np.cumsum(room) - room
        rows, taken = rows[before < count], np.minimum(room, count - before)[before < count]
        for row, copies in zip(rows.tolist(), taken.tolist(), strict=True):
            self._add(index, row, copies)
        return int(taken.sum())

    def _add(self, index: int, row: int, copies: int) -> None:
        signature = self.rules.of_item[index]
        self.room[row] -= copies
        if not self.room[row]:
            for roomy in self.roomy.values():
                roomy[row : row + 1] = False
        conflicts = self.rules.conflicts[signature]
        if len(conflicts):
            self.admitting[conflicts, row] = False
        for number, cap in self.rules.sets[signature]:
            self.counted[number, row] += copies
            if self.counted[number, row] >= cap:
                self.admitting[self.rules.members[number], row] = False
        self.pods[row][index] = self.pods[row].get(index, 0) + copies
        self.admits[row] |= 1 << self.mask_of[index]

    def _open(self, index: int, count: int) -> None:
        """Open machines of the kind with the lowest price per pod of the item."""
        copies = np.where(self.items[index].allowed, self.alone, 0)
        if not copies.any():
            self.unmet[index] = count
            return
        each: NDArray[np.float64] = np.where(copies > 0, self.price / np.maximum(copies, 1), np.inf)
        cheap = np.flatnonzero(each <= each.min() * self.tie)
        kind = int(cheap[np.lexsort((cheap, self.price[cheap], -copies[cheap]))[0]])
        # The same machine in other zones: alternating between zones leaves room for pods that are bound to any of them.
        turns = cheap[(copies[cheap] == copies[kind]) & (self.price[cheap] == self.price[kind])]
        caps = [cap for _, cap in self.rules.sets[self.rules.of_item[index]]]
        per_machine = min([int(copies[kind]), *caps])
        if per_machine < 1:
            # The cap is below 1: a skew that no API server admits.
            self.unmet[index] = count
            return
        machines = -(-count // per_machine)
        rows = np.arange(self.open, self.open + machines)
        self.open += machines
        self.ceiling[rows] = turns[np.arange(machines) % len(turns)]
        self.left[:, rows] = self.capacity[self.ceiling[rows]].T
        self.room[rows] = self.begun[rows] = self.alone[self.ceiling[rows]]
        self.pods += [{} for _ in range(machines)]
        self.admits += [0] * machines
        for row in rows.tolist():
            self._add(index, row, min(per_machine, count))
            count -= per_machine

    def close(self, remaining: Remaining) -> tuple[list[MachineGroup], dict[int, int]]:
        """Turn every machine into the cheapest kind that holds its pods.

        Machines beyond the limits are dropped, among equal priority those that serve fewest pods; the others take as many of their pods as
        they can.
        """
        kinds = self._cheapest()
        kept, dropped = self._within(remaining, kinds)
        if dropped:
            # If only the number of machines is limited, the kept machines may grow.
            if remaining.dollars_per_hour is not None or remaining.gpus is not None or remaining.pools or self.scarce:
                self._become(np.array(kept, dtype=np.int64), kinds[kept])
                self._refill(dropped)
            else:
                self._refill(dropped)
                kinds = self._cheapest()
        return [MachineGroup(int(kinds[row]), self.pods[row], 1) for row in kept], self.unmet

    def _within(self, remaining: Remaining, kinds: Array) -> tuple[list[int], list[int]]:
        """Return the machines that the limits admit, and the others."""
        left = remaining.copy()
        kept: list[int] = []
        dropped: list[int] = []
        for row in sorted(range(self.open), key=self._worth):
            kind = self.kinds[kinds[row]]
            within = left.admitted_count(kind, 1) > 0
            (kept if within else dropped).append(row)
            left.spend(kind, int(within))
        return kept, dropped

    def _worth(self, row: int) -> tuple[int, int]:
        """Sort key of a machine: the highest priority first, then the largest number of pods."""
        priority = max(self.items[index].queue.pod_class.spec.priority for index in self.pods[row])
        return -priority, -sum(self.pods_of(index, copies) for index, copies in self.pods[row].items())

    def _refill(self, dropped: Sequence[int]) -> None:
        """Place the pods of ``dropped`` machines on the others, as far as they fit."""
        self.wants = [0] * len(self.items)
        for row in dropped:
            for index, copies in self.pods[row].items():
                self.wants[index] += copies
            self.pods[row] = {}
        self.left[:, dropped] = -1
        self.closing = True
        self._fill_all(index for index in self.order() if self.wants[index])
        self.left[:, dropped] = self.capacity[self.ceiling[dropped]].T

    def _cheapest(self) -> Array:
        """For each machine the cheapest kind that admits and holds its pods."""
        by_price = np.lexsort((np.arange(len(self.kinds)), self.price))
        used = self.capacity[self.ceiling[: self.open]] - self.left[:, : self.open].T
        cheapest = np.zeros(self.open, dtype=np.int64)
        alike: dict[int, list[int]] = {}
        for row, admits in enumerate(self.admits):
            alike.setdefault(admits, []).append(row)
        for admits, rows in alike.items():
            kinds = by_price[self._allowed(admits)[by_price]]
            cheapest[rows] = kinds[_first_to_hold(self.capacity[kinds], used[rows])]
        return cheapest


def _first_to_hold(capacity: Array, used: Array) -> Array:
    """For each row of ``used`` (N, R) the first row of ``capacity`` (K, R) that is at least as large; such a row must exist."""
    # No kind before the first one at which the running maximum is large enough can hold it, and mostly that kind does.
    grown = np.maximum.accumulate(capacity, axis=0)
    first: Array = np.max([np.searchsorted(grown[:, number], used[:, number]) for number in range(used.shape[1])], axis=0)
    for row in np.flatnonzero((capacity[first] < used).any(axis=1)):
        first[row] += int((capacity[first[row] :] >= used[row]).all(axis=1).argmax())
    return first
