"""Fills machines: the pods that one machine of each kind can hold, for all kinds at once."""

import numpy as np

from gpuscaler.planning.mix.instance import DEVICE, Floats, Ints, Mask, ProblemArrays

#: Items checked together: enough to skip many at once, few enough to check again after every item taken.
_BLOCK = 16


def fill(instance: ProblemArrays, order: Ints, remaining: Floats, kinds: Ints) -> Floats:
    """Put as many copies as fit, item by item in ``order``, on one machine of each of ``kinds``; shape (len(kinds), I).

    ``remaining`` limits the copies; shape (I,) for the same limits on all kinds, or (len(kinds), I).
    """
    filling = _MachineFilling(instance, kinds, np.minimum(instance.copies[:, kinds].T, remaining))
    # The smallest requests of the items still to come: a machine with less room is full.
    least = np.minimum.accumulate(instance.request[order[::-1]], axis=0)[::-1]
    for start in range(0, len(order), _BLOCK):
        if not filling.take(order[start : start + _BLOCK], least[start]):
            break
    return filling.held


class _MachineFilling:
    """One machine of each of ``kinds``: the ``room`` left and the copies ``held``, of at most ``copies`` of each item."""

    def __init__(self, instance: ProblemArrays, kinds: Ints, copies: Floats) -> None:
        self.instance = instance
        self.copies = copies
        self.room = instance.capacity[kinds].copy()
        self.held = np.zeros(copies.shape)
        self.devices = _Devices(self.room[:, instance.device]) if instance.device is not None else None

    def take(self, items: Ints, least: Floats) -> bool:
        """Take ``items`` in their order, each machine independently. An item that does not fit now never will, and is skipped.

        Returns whether any machine had room for ``least``; without that, nothing fits.
        """
        rows = np.flatnonzero((self.room >= least).all(axis=1))
        if not len(rows):
            return False
        request = self.instance.request[items]
        # Hundreds of host ports are hundreds of resources, of which each item requests few.
        requested = np.flatnonzero(request.any(axis=0)).tolist()
        open_items = self.copies[np.ix_(rows, items)] > 0
        while True:
            for resource in requested:
                open_items &= request[:, resource] <= self.room[rows, resource, None]
            with_items = open_items.any(axis=1)
            rows, open_items = rows[with_items], open_items[with_items]
            if not len(rows):
                return True
            place = open_items.argmax(axis=1)
            open_items[np.arange(len(rows)), place] = False
            self._put(rows, items[place])

    def _put(self, rows: Ints, item: Ints) -> None:
        """Put as many copies of its ``item`` on each of ``rows`` as fit; at least one fits by resources."""
        request, room = self.instance.request[item], self.room[rows]
        each = np.divide(room, request, out=np.full(room.shape, np.inf), where=request > 0)
        most = np.minimum(np.floor(each.min(axis=1)), self.copies[rows, item])
        for which in set(item.tolist()) if any(self.instance.excluded) else ():
            beside = list(self.instance.excluded[which])
            most[(item == which) & self.held[rows][:, beside].any(axis=1)] = 0.0
        if self.devices is not None:
            most = self.devices.take(rows, request[:, self.instance.device], most)
        self.held[rows, item] = most
        self.room[rows] = room - most[:, None] * request


def grow(instance: ProblemArrays, kind: int, held: Floats, limits: Floats) -> Floats:
    """Add copies to one machine that holds ``held``, up to ``limits`` (I,), higher tiers and larger pods first."""
    grown, only = held.copy(), np.array([kind])
    room = instance.capacity[kind] - held @ instance.request
    size = (instance.request / np.maximum(instance.capacity[kind], 1.0)).max(axis=1, initial=0.0)
    # An item that does not fit now never will.
    possible = (limits > grown) & (instance.request <= room).all(axis=1)
    order = np.lexsort((-size, instance.tier))
    for item in order[possible[order]]:
        request = instance.request[item]
        need = request > 0
        most = min(limits[item] - grown[item], float(np.floor(room[need] / request[need]).min(initial=np.inf)))
        # Devices and pairs kept apart are not in the sums; only the full check covers them, and fewer copies may still pass it.
        while most > 0:
            grown[item] += most
            if fits(instance, grown, only)[0]:
                room = room - most * request
                break
            grown[item] -= most
            most = np.floor(most / 2)
    return grown


class _Devices:
    """The free share of every device of every kind's machine, best fit first."""

    def __init__(self, milli: Floats) -> None:
        count = np.floor(milli / DEVICE).astype(np.int64)
        self.free = np.where(np.arange(max(int(count.max(initial=0)), 1))[None, :] < count[:, None], DEVICE, 0.0)

    def take(self, rows: Ints, share: Floats, most: Floats) -> Floats:
        """Place up to ``most`` copies of ``share`` thousandths on each of the machines ``rows``; returns how many were placed."""
        asked = np.flatnonzero(share)
        if not len(asked):
            return most
        rows, share = rows[asked], share[asked, None]
        present = self.free[rows]
        per = np.where(share >= DEVICE, present >= DEVICE, np.floor(present / share))
        # The fullest device that still fits comes first, so that whole devices stay whole as long as possible.
        rank = np.argsort(np.where(per > 0, present, np.inf), axis=1, kind="stable")
        per = np.take_along_axis(per, rank, axis=1)
        whole = np.maximum(share / DEVICE, 1.0)
        placed = np.minimum(most[asked], np.floor(per.sum(axis=1) / whole[:, 0]))
        before = np.cumsum(per, axis=1) - per
        used = np.clip(placed[:, None] * whole - before, 0.0, per)
        np.put_along_axis(present, rank, np.take_along_axis(present, rank, axis=1) - used * np.minimum(share, DEVICE), axis=1)
        self.free[rows] = present
        placed_copies = most.copy()
        placed_copies[asked] = placed
        return placed_copies


def fits(instance: ProblemArrays, held: Floats, kinds: Ints) -> Mask:
    """Whether a machine of each of ``kinds`` holds ``held`` (I,); devices by best fit, largest share first."""
    present = np.flatnonzero(held)
    holds = np.all(held @ instance.request <= instance.capacity[kinds], axis=1)
    holds &= np.all(held[present, None] <= instance.copies[np.ix_(present, kinds)], axis=0)
    if any(held[list(instance.excluded[item])].any() for item in present if instance.excluded[item]):
        holds[:] = False
    if instance.device is not None and holds.any():
        share = instance.request[:, instance.device]
        devices, indices = _Devices(instance.capacity[kinds, instance.device]), np.arange(len(kinds))
        for item in present[np.argsort(-share[present], kind="stable")]:
            holds &= devices.take(indices, np.full(len(kinds), share[item]), np.full(len(kinds), held[item])) == held[item]
    return np.asarray(holds)


def fits_all(instance: ProblemArrays, held: Floats) -> Mask:
    """Like :func:`fits`, for several patterns: whether a machine of each kind holds each of ``held`` (P, I); shape (P, K)."""
    all_kinds = np.arange(len(instance.price))
    if instance.device is not None or any(instance.excluded):
        return np.array([fits(instance, pods, all_kinds) for pods in held], dtype=np.bool_).reshape(len(held), len(all_kinds))
    need = held @ instance.request
    holds = (
        np.array([np.all(held <= instance.copies[:, kind], axis=1) for kind in all_kinds], dtype=np.bool_)
        .reshape(len(all_kinds), len(held))
        .T
    )
    for resource in range(need.shape[1]):
        holds &= need[:, resource, None] <= instance.capacity[:, resource]
    return holds
