"""A score for nodes that keeps the remaining room as valuable as possible, for pods with GPUs or parts of one.

A node's room is worth the most that future pods of the workload could make of it: packings of its devices, each pod at the part of a device
it serves less its dual price (:mod:`placement_prices`), for all CPU together. That packing problem is solved with a price on CPU
(Lagrange): for every price, devices are independent and a table has the best packing of each; the cheapest price bounds the worth from
above and depends on what the node has left, so devices without CPU are worth little. The loss of a placement is the worth that the room
loses beyond what the pod serves. A little expected fragmentation is added, since the pods that would fit best may not come to this node.

The score depends only on the classes of a workload and their frequencies: neither the order nor the number of future pods is known.
"""

import numpy as np

from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE, Floats, Fragmentation, Ints, PodClasses
from gpuscaler.simulation.papers.fgd.placement_prices import SLOTS, packing_values, slots, solve

#: CPU is priced as if it were 2 % short of what the workload wants: GPUs on nodes without CPU are lost.
CPU_SHORTAGE = 0.02
#: Candidate prices of CPU, in devices per core: zero, and from far below to far above what a pod with few cores serves for each.
CPU_PRICES = np.concatenate(([0.0], np.geomspace(0.002, 0.4, 40)))
#: Weight of one thousandth of expected fragmentation against one of lost worth.
FRAGMENTATION = 0.1
#: A point of the score, in devices. Losses that differ by less are equal: taking the first of those fills one node after the other.
POINT = 0.02


def points(losses: Floats) -> Floats:
    """Losses in whole points. A scheduler with scores from 0 to 100 gives 100 to the best node and one less for each point lost."""
    return np.floor(losses / POINT)


class PlacementScore:
    """Losses and scores of placements for a workload of ``classes`` on nodes with ``devices`` and ``cpu`` (millicores) in total.

    ``classes.weight`` is the frequency of each; at least one must take GPUs.
    """

    def __init__(self, classes: PodClasses, *, devices: int, cpu: int) -> None:
        self._fragmentation = Fragmentation(classes)
        asking = classes.gpus > 0
        of_gpus = classes.subset(asking)
        count = devices * WHOLE / float(of_gpus.demand @ of_gpus.weight)
        of_gpus = PodClasses(of_gpus.gpus, of_gpus.milli, of_gpus.cpu, of_gpus.weight * count)
        others = float(classes.cpu[~asking] @ classes.weight[~asking]) * count
        cpu_demand = float(of_gpus.cpu @ of_gpus.weight) + others
        prices = solve(of_gpus, devices=devices, cpu=max(0.0, min(float(cpu), (1.0 - CPU_SHORTAGE) * cpu_demand) - others))
        values = of_gpus.milli / WHOLE - prices.pods
        cores = of_gpus.cpu / of_gpus.gpus / WHOLE
        #: The worth of r free slots of one device at each price of CPU, shape (prices, SLOTS + 1).
        self._worth = packing_values(values - CPU_PRICES[:, None] * cores, slots(of_gpus.milli))[0]

    def losses(self, pods: PodClasses, *, cpu: int, devices: Ints) -> Floats:
        """Worth in devices that a node loses beyond what a pod of class k serves when it takes device d, shape (K, D).

        ``cpu`` millicores and ``devices`` (D,) thousandths are free now. Pods that take whole devices, or none, have the same value for
        every d. The value is meaningless if the pod does not fit.
        """
        worth = self._worth[:, devices * SLOTS // WHOLE]
        together = worth.sum(axis=1)
        before = float((together + CPU_PRICES * cpu / WHOLE).min())
        rest = CPU_PRICES * (cpu - pods.cpu)[:, None] / WHOLE
        after = np.empty((len(pods), len(devices)))
        shared = pods.shared
        remaining = np.maximum(devices - pods.milli[shared][:, None], 0) * SLOTS // WHOLE
        packed = self._worth.T[remaining] + (together[:, None] - worth).T + rest[shared][:, None, :]
        after[shared] = packed.min(axis=2)
        whole = pods.gpus[~shared][:, None] * self._worth[:, SLOTS]
        after[~shared] = (together - whole + rest[~shared]).min(axis=1)[:, None]
        loss = before - after - pods.demand[:, None] / WHOLE
        return loss + FRAGMENTATION * self._fragmentation.growth(pods, cpu=cpu, devices=devices) / WHOLE
