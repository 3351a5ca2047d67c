"""Candidates as arrays: the pods each would have to move, by size, and the free resources of every row."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuscaler.model.requests import FULL
from gpuscaler.model.table import Array, Floats, Mask
from gpuscaler.planning.feasibility.resources import PODS, counted_requests
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.moves.bulk_affinity import PeerRules
from gpuscaler.planning.scale_down.moves.destinations import Destinations
from gpuscaler.planning.scale_down.moves.packing import Sizes
from gpuscaler.planning.scale_down.pod_classes import RunningClass


@dataclass(frozen=True)
class CandidateArrays:
    """``rows[c]`` is the row of candidate c. Its load is sparse: each entry with ``owner == c`` stands for ``amount`` pods of ``size``.

    ``free[row, resource]`` is what is free now, ``load[c, resource]`` what the pods of a candidate request. ``size_of`` maps a class to its
    size; ``resources`` names the columns, among them those that keep siblings apart.
    """

    candidates: tuple[Candidate, ...]
    resources: tuple[str, ...]
    sizes: Sizes
    size_of: dict[RunningClass, int]
    rows: Array
    owner: Array
    size: Array
    amount: Array
    free: Array
    load: Array
    peer_rules: PeerRules

    def total(self, chosen: Mask) -> Array:
        """Pods by size on the candidates of the mask ``chosen``."""
        of_chosen = chosen[self.owner]
        return np.bincount(self.size[of_chosen], weights=self.amount[of_chosen], minlength=len(self.sizes)).astype(np.int64)

    def narrowed(self, chosen: Array, classes: Collection[RunningClass], room: Room, peer_rules: PeerRules) -> "CandidateArrays":
        """Only the candidates ``chosen``, in that order, with only their pods of ``classes``, and the free resources of ``room``."""
        position = np.full(len(self.candidates), -1, dtype=np.int64)
        position[chosen] = np.arange(len(chosen))
        kept = np.zeros(len(self.sizes), dtype=np.bool_)
        kept[[self.size_of[running_class] for running_class in classes]] = True
        kept_entries = kept[self.size] & (position[self.owner] >= 0)
        owner, size, amount = position[self.owner[kept_entries]], self.size[kept_entries], self.amount[kept_entries]
        size_of = {running_class: size for running_class, size in self.size_of.items() if kept[size]}
        return replace(
            self,
            candidates=tuple(self.candidates[number] for number in chosen.tolist()),
            size_of=size_of,
            rows=self.rows[chosen],
            owner=owner,
            size=size,
            amount=amount,
            free=free_in(room, self.resources, size_of, peer_rules),
            load=load_of(self.sizes, len(chosen), owner, size, amount),
            peer_rules=peer_rules,
        )


def arrays_of(
    candidates: Sequence[Candidate],
    classes: Sequence[RunningClass],
    *,
    free: Collection[RunningClass],
    destinations: Destinations,
    peer_rules: PeerRules,
) -> CandidateArrays:
    """The arrays of ``candidates``.

    ``classes`` are the classes of their pods that have to move, ordered; ``free`` those of them that may move in any order.
    """
    names = {name for running_class in classes for name in counted_requests(running_class.spec)} | {PODS}
    resources = tuple(sorted(names | {peer_rules.siblings(running_class) for running_class in free} - {""}))
    column = {name: index for index, name in enumerate(resources)}
    sizes, size_of = sizes_of(classes, free, column, destinations=destinations, peer_rules=peer_rules)
    # The size -1 stands for pods that need no new place.
    size = np.array([size_of.get(running_class, -1) for candidate in candidates for running_class in candidate.load], dtype=np.int64)
    amount = np.array([len(pods) for candidate in candidates for pods in candidate.load.values()], dtype=np.int64)
    owner = np.repeat(np.arange(len(candidates)), [len(candidate.load) for candidate in candidates])
    moving = size >= 0
    owner, size, amount = owner[moving], size[moving], amount[moving]
    return CandidateArrays(
        candidates=tuple(candidates),
        resources=resources,
        sizes=sizes,
        size_of=size_of,
        rows=np.array([candidate.row for candidate in candidates], dtype=np.int64),
        owner=owner,
        size=size,
        amount=amount,
        free=free_in(destinations.room, resources, free, peer_rules),
        load=load_of(sizes, len(candidates), owner, size, amount),
        peer_rules=peer_rules,
    )


def free_in(room: Room, resources: Sequence[str], free: Iterable[RunningClass], peer_rules: PeerRules) -> Array:
    """What each row has left of ``resources``; for resources that keep siblings of ``free`` apart, ``peer_rules`` gives it."""
    free_slots = {name: running_class for running_class in free if (name := peer_rules.siblings(running_class))}
    columns = [peer_rules.free_slots(free_slots[name]) if name in free_slots else room.free(name) for name in resources]
    return np.maximum(np.stack(columns, axis=1), 0)


def load_of(sizes: Sizes, candidates: int, owner: Array, size: Array, amount: Array) -> Array:
    """The total requests of the entries, by candidate and resource. Sums in floating point are exact up to 2**53, eight pebibytes."""
    columns = [np.bincount(owner, weights=column[size] * amount.astype(np.float64), minlength=candidates) for column in sizes.requests.T]
    return np.minimum(np.stack(columns, axis=1), FULL).astype(np.int64)


def sizes_of(
    classes: Sequence[RunningClass],
    free: Collection[RunningClass],
    column: dict[str, int],
    *,
    destinations: Destinations,
    peer_rules: PeerRules,
) -> tuple[Sizes, dict[RunningClass, int]]:
    """The sizes of ``classes``. Classes with the same requests and the same open rows share a size, unless only one of them is ``free``."""
    free_set = frozenset(free)
    groups: dict[bytes, int] = {}
    masks: list[Mask] = []
    size_numbers: dict[tuple[object, ...], int] = {}
    requests: list[Array] = []
    group: list[int] = []
    size_of: dict[RunningClass, int] = {}
    for running_class in classes:
        mask, amounts = destinations.admitting(running_class), counted_requests(running_class.spec)
        if running_class in free_set:
            social, apart = peer_rules.admitting(running_class), peer_rules.siblings(running_class)
            if apart:
                amounts[apart] = 1
            elif social is not None:
                mask &= social
        number = groups.setdefault(mask.tobytes(), len(groups))
        if number == len(masks):
            masks.append(mask)
        key = (running_class in free_set, number, *sorted(amounts.items()))
        if key not in size_numbers:
            size_numbers[key] = len(size_numbers)
            row = np.zeros(len(column), dtype=np.int64)
            row[column[PODS]] = 1
            for name, amount in amounts.items():
                row[column[name]] = amount
            requests.append(row)
            group.append(number)
        size_of[running_class] = size_numbers[key]
    admits = np.stack(masks) if masks else np.zeros((0, len(destinations.targets)), dtype=np.bool_)
    return Sizes(np.array(requests, dtype=np.int64).reshape(-1, len(column)), np.array(group, dtype=np.int64), admits), size_of


def leaving_order(arrays: CandidateArrays, room: Room) -> Array:
    """Candidates in the order of removal: the smallest used share of the price first, then the most expensive, then by name.

    Used resources are valued at the average price of each resource over the candidates; the most valuable resource counts.
    """
    allocatable = np.stack([room.table.allocatable(name)[arrays.rows] for name in arrays.resources], axis=1).astype(np.float64)
    price = np.array([candidate.price for candidate in arrays.candidates])
    value: Floats = (price[:, None] * (allocatable > 0)).sum(axis=0) / np.maximum(allocatable.sum(axis=0), 1.0)
    in_use = (arrays.load * value).max(axis=1, initial=0.0) / np.maximum(price, 1e-9)
    names = np.array([candidate.name for candidate in arrays.candidates])
    return np.lexsort((names, -price, np.round(in_use, 9)))
