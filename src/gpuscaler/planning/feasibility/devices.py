"""GPUs that are shared in thousandths, as in traces: a vector of devices per row.

A row that offers ``gpuscaler.io/gpu-milli`` has one device for each 1000 of it. A request of at most 1000 goes onto one device, the
fullest that takes it; a request above 1000 takes whole unused devices (one for each 1000, rounded up). Kubernetes has no such
resource: the rule comes from the GPU-sharing schedulers that recorded the replayed traces.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.table import Array, Mask, NodeTable
from gpuscaler.planning.feasibility.resources import BOUNDLESS

WHOLE = 1000
#: Marks a device that a request does not fit on: more than any device can have free.
_TOO_FULL = WHOLE + 1

#: The amounts on each device of a row, in the order of arrival.
_Load = tuple[tuple[int, ...], ...]


class Devices:
    """Devices of the rows that have any. ``_free`` has a line for each of these rows, padded with -1.

    Rows that offer :data:`~gpuscaler.planning.feasibility.resources.BOUNDLESS` devices take every request, and their use is not recorded.
    """

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        offered = table.allocatable(GPU_MILLI)
        self._boundless = offered >= BOUNDLESS
        counts = np.where(self._boundless, 0, offered // WHOLE)
        self._rows = np.flatnonzero(counts > 0)
        self._line = {int(row): line for line, row in enumerate(self._rows)}
        self._free = np.full((len(self._rows), int(counts.max(initial=0))), -1, dtype=np.int64)
        for line, row in enumerate(self._rows):
            self._free[line, : counts[row]] = WHOLE
        self._loads: dict[int, _Load] = {line: ((),) * int(counts[row]) for line, row in enumerate(self._rows)}

    def pack(self, amounts: Mapping[int, Iterable[int]]) -> None:
        """Place the requests that each row already holds, largest first."""
        for row, requests in amounts.items():
            for amount in sorted(requests, reverse=True):
                self.add(row, amount)

    def copies(self, amount: int) -> Array:
        """How many more requests of ``amount`` fit on each row."""
        fits = np.where(self._boundless, BOUNDLESS // amount, 0)
        if amount <= WHOLE:
            fits[self._rows] = np.maximum(self._free // amount, 0).sum(axis=1)
        else:
            fits[self._rows] = (self._free == WHOLE).sum(axis=1) // devices_for(amount)
        return fits

    def passes(self, amount: int) -> Mask:
        mask: Mask = self._boundless.copy()
        if amount <= WHOLE:
            mask[self._rows] = (self._free >= amount).any(axis=1)
        else:
            mask[self._rows] = (self._free == WHOLE).sum(axis=1) >= devices_for(amount)
        return mask

    def add(self, row: int, amount: int) -> None:
        """Put ``amount`` onto the fullest device that takes it, or onto the first unused ones if it needs whole devices.

        A request that fits nowhere is put on no device: the row is overcommitted, as with any other resource.
        """
        line = self._line.get(row)
        if line is not None:
            self._change(line, self._choose(line, amount), amount, +1)

    def remove(self, row: int, amount: int) -> None:
        """Take ``amount`` off the first device that holds one such request; requests of one size are interchangeable."""
        line = self._line.get(row)
        if line is None:
            return
        part = min(amount, WHOLE)
        holders = [device for device, load in enumerate(self._loads[line]) if part in load][: devices_for(amount)]
        self._change(line, holders, amount, -1)

    def free(self, row: int) -> tuple[int, ...]:
        """The free amount of each device of ``row``."""
        line = self._line.get(row)
        return () if line is None else tuple(int(left) for left in self._free[line] if left >= 0)

    def _choose(self, line: int, amount: int) -> list[int]:
        """The devices that take ``amount``; none if it does not fit."""
        left = self._free[line]
        if amount > WHOLE:
            unused = np.flatnonzero(left == WHOLE)[: devices_for(amount)]
            return [int(device) for device in unused] if len(unused) == devices_for(amount) else []
        fitting = np.where(left >= amount, left, _TOO_FULL)
        device = int(fitting.argmin())
        return [device] if fitting[device] < _TOO_FULL else []

    def _change(self, line: int, devices: Iterable[int], amount: int, sign: int) -> None:
        part = min(amount, WHOLE)
        loads = list(self._loads[line])
        for device in devices:
            held = list(loads[device])
            if sign > 0:
                held.append(part)
            else:
                held.remove(part)
            loads[device] = tuple(held)
            self._free[line, device] -= sign * part
        self._loads[line] = tuple(loads)

    def copy(self) -> "Devices":
        new = object.__new__(Devices)
        new.__dict__.update(self.__dict__)
        new._free = self._free.copy()
        new._loads = dict(self._loads)
        return new

    def extended(self, table: NodeTable) -> "Devices":
        """The same use over ``table``, which has additional rows at the end."""
        new = Devices(table)
        lines, width = self._free.shape
        new._free[:lines, :width] = self._free
        new._loads.update(self._loads)
        return new


def devices_for(amount: int) -> int:
    return -(-amount // WHOLE)
