"""Expected fragmentation: how much of a node's free GPUs the pods of a workload cannot use.

Source: Weng and others, "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023,
section 3. A free device counts as fragmented for a class of pods if it has less than the class wants of one device; all free devices of a
node do if the class does not fit the node at all. The expectation is over the classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
#: Thousandths of a device.
WHOLE = 1000


@dataclass(frozen=True, slots=True)
class PodClasses:
    """Classes of pods, one entry each: devices, thousandths of each device (1000, or less on a single one), millicores, and how many."""

    gpus: Ints
    milli: Ints
    cpu: Ints
    weight: Floats

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def shared(self) -> Mask:
        """Which classes take a part of one device, shape (K,)."""
        part: Mask = (self.gpus == 1) & (self.milli < WHOLE)
        return part

    @property
    def demand(self) -> Ints:
        """Thousandths of devices that one pod takes in total, shape (K,)."""
        return self.gpus * self.milli

    def subset(self, selected: Mask | Ints) -> "PodClasses":
        return PodClasses(self.gpus[selected], self.milli[selected], self.cpu[selected], self.weight[selected])


class Fragmentation:
    """Expected fragmentation of nodes for the classes of a workload, weighted by their frequency."""

    def __init__(self, classes: PodClasses) -> None:
        gpu = classes.gpus > 0
        # Pods without GPUs can use no free GPU: their weight counts as fragmented in every case, and cancels out.
        self._weight = classes.weight[gpu] / classes.weight.sum()
        self._gpus, self._milli, self._cpu = classes.gpus[gpu], classes.milli[gpu], classes.cpu[gpu]

    def growth(self, pods: PodClasses, *, cpu: int, devices: Ints) -> Floats:
        """Thousandths by which a node's fragmentation grows when a pod of class k takes device d of it, shape (K, D).

        Negative if the pod uses more fragments than it makes. ``cpu`` millicores and ``devices`` (D,) thousandths are free now. Pods that
        take whole devices, or none, have the same value for every d. The value is meaningless if the pod does not fit.
        """
        fits = devices[:, None] >= self._milli
        usable = devices[:, None] * fits
        count, amount = fits.sum(axis=0), usable.sum(axis=0)
        before = self._expected(((count >= self._gpus) & (cpu >= self._cpu)) * amount)
        enough = (cpu - pods.cpu)[:, None] >= self._cpu
        grown = np.empty((len(pods), len(devices)))
        shared = pods.shared
        if shared.any():
            # Many classes have equal thousandths: the remainder of each device is computed once per distinct size.
            sizes, size = np.unique(pods.milli[shared], return_inverse=True)
            remaining = np.maximum(devices - sizes[:, None], 0)[:, :, None]
            fit = remaining >= self._milli
            served = (count - fits + fit >= self._gpus) * (amount - usable + remaining * fit)
            grown[shared] = before - np.einsum("kdt,kt->kd", (served * self._weight)[size], enough[shared].astype(np.float64))
        taken = pods.gpus[~shared][:, None]
        served = (count - taken >= self._gpus) * (amount - taken * WHOLE) * enough[~shared]
        grown[~shared] = (before - self._expected(served))[:, None]
        return grown - pods.demand[:, None]

    def _expected(self, served: Ints) -> Floats:
        expected: Floats = served @ self._weight
        return expected
