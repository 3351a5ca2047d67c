"""Filling machines: what one machine of each kind can hold, all kinds at once."""

import numpy as np

from gpuscaler.planning.mix.instance import DEVICE, Floats, Instance, Ints, Mask


def fill(instance: Instance, order: Ints, remaining: Floats, kinds: Ints) -> Floats:
    """Put as many copies as fit, item by item in ``order``, on one machine of each of ``kinds``; shape (len(kinds), I).

    ``remaining`` bounds the copies, shape (I,) for all kinds alike or (len(kinds), I).
    """
    room = instance.capacity[kinds].copy()
    held = np.zeros((len(kinds), len(order)))
    copies = np.minimum(instance.copies[:, kinds].T, remaining)
    devices = _Devices(room[:, instance.device]) if instance.device is not None else None
    for item in order:
        most = copies[:, item].copy()
        if not most.any():
            continue
        request = instance.request[item]
        for resource in np.flatnonzero(request):
            np.minimum(most, np.floor(room[:, resource] / request[resource]), out=most)
        if instance.apart[item]:
            most[held[:, list(instance.apart[item])].any(axis=1)] = 0.0
        if devices is not None and request[instance.device]:
            most = devices.take(request[instance.device], most)
        held[:, item] = most
        room -= most[:, None] * request
    return held


def grow(instance: Instance, kind: int, held: Floats, limits: Floats) -> Floats:
    """Add copies to one machine that holds ``held``, up to ``limits`` (I,), higher tiers and larger pods first."""
    grown, only = held.copy(), np.array([kind])
    room = instance.capacity[kind] - held @ instance.request
    size = (instance.request / np.maximum(instance.capacity[kind], 1.0)).max(axis=1, initial=0.0)
    for item in np.lexsort((-size, instance.tier)):
        request = instance.request[item]
        need = request > 0
        most = min(limits[item] - grown[item], float(np.floor(room[need] / request[need]).min(initial=np.inf)))
        # Devices and pairs kept apart are not in the sums; the full check tells, and fewer copies may still pass it.
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

    def take(self, share: float, most: Floats) -> Floats:
        """Place up to ``most`` copies of ``share`` thousandths on each machine; returns how many found a place."""
        whole = max(share / DEVICE, 1.0)
        per = np.where(self.free >= DEVICE, 1.0, 0.0) if share >= DEVICE else np.floor(self.free / share)
        # The fullest device that still fits comes first, so that whole devices stay whole as long as possible.
        rank = np.argsort(np.where(per > 0, self.free, np.inf), axis=1, kind="stable")
        per = np.take_along_axis(per, rank, axis=1)
        placed = np.minimum(most, np.floor(per.sum(axis=1) / whole))
        before = np.cumsum(per, axis=1) - per
        used = np.clip((placed * whole)[:, None] - before, 0.0, per)
        free = np.take_along_axis(self.free, rank, axis=1) - used * min(share, DEVICE)
        np.put_along_axis(self.free, rank, free, axis=1)
        return np.asarray(placed)


def fits(instance: Instance, held: Floats, kinds: Ints) -> Mask:
    """Whether a machine of each of ``kinds`` holds ``held`` (I,); devices by best fit, largest share first."""
    some = np.flatnonzero(held)
    good = np.all(held @ instance.request <= instance.capacity[kinds], axis=1)
    good &= np.all(held[some, None] <= instance.copies[np.ix_(some, kinds)], axis=0)
    if any(held[list(instance.apart[item])].any() for item in some if instance.apart[item]):
        good[:] = False
    if instance.device is not None and good.any():
        share = instance.request[:, instance.device]
        devices = _Devices(instance.capacity[kinds, instance.device])
        for item in some[np.argsort(-share[some], kind="stable")]:
            if share[item]:
                good &= devices.take(share[item], np.full(len(kinds), held[item])) == held[item]
    return np.asarray(good)
