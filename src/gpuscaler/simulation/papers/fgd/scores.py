"""The published schedulers' scores, and ours, as they are computed for a node and a class of pods.

Source: hkust-adsl/kubernetes-scheduler-simulator, ``pkg/simulator/plugin`` (the simulator of the FGD paper, USENIX ATC 2023), with the
parameters of ``experiments/run_scripts``: GPUs chosen at random for Random and by best fit for DotProd, Clustering, Packing and BestFit;
DotProd merges devices and divides by the largest node. Scores are whole numbers from 0 to 100.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE, Floats, Fragmentation, Ints, Mask, PodClasses
from gpuscaler.simulation.papers.fgd.placement_score import PlacementScore, points
from gpuscaler.simulation.papers.fgd.placing import FreeCapacity, Scoring, kind_bits
from gpuscaler.simulation.papers.fgd.workload import Nodes, Workload

#: Size of the largest node, by which amounts are divided: millicores and thousandths of GPUs.
LARGEST_CPU, LARGEST_GPU = 128_000, 8 * WHOLE
#: FGD expects the most frequent classes that make up this part of the list.
TYPICAL = 0.95


class BestFit:
    """The node with the least free room, CPU and GPUs weighted equally."""

    random = False

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        remaining = (capacity.cpu - pods.cpu) / LARGEST_CPU + (capacity.devices.sum() - pods.demand) / LARGEST_GPU
        scores: Floats = np.trunc((1.0 - remaining / 2) * 100)
        return scores

    def device(self, pods: PodClasses, capacity: FreeCapacity, draw: np.random.Generator) -> int:  # noqa: ARG002  # others draw
        """The fullest device with enough left: the first, since they are in ascending order."""
        return int(np.searchsorted(capacity.devices, pods.milli[0]))


class Random(BestFit):
    """Any node where the pod fits, and any device."""

    random = True

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:  # noqa: ARG002  # all nodes are alike
        return np.zeros(len(pods))

    def device(self, pods: PodClasses, capacity: FreeCapacity, draw: np.random.Generator) -> int:
        return int(draw.integers(np.searchsorted(capacity.devices, pods.milli[0]), len(capacity.devices)))


class DotProduct(BestFit):
    """The node whose free room is least aligned with the pod's request, after Tetris (SIGCOMM 2014)."""

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        product = capacity.cpu / LARGEST_CPU * (pods.cpu / LARGEST_CPU) + capacity.devices.sum() / LARGEST_GPU * (pods.demand / LARGEST_GPU)
        scores: Floats = np.trunc((1.0 - product / 2) * 100)
        return scores


class Clustering(BestFit):
    """Nodes with only pods of the same kind first, then nodes with some, then empty ones; fuller ones before others."""

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        kinds = kind_bits(pods)
        fill = 25 * (LARGEST_GPU - int(capacity.devices.sum())) // LARGEST_GPU
        same = 75 if capacity.kinds.bit_count() == 1 else 50
        base = np.where(capacity.kinds & kinds, same, 0 if capacity.kinds else 25)
        return np.where(kinds > 0, base + fill, 0).astype(np.float64)


class Packing(BestFit):
    """Devices in use first, the fuller the better; then free devices of nodes in use; then free nodes, smaller ones first."""

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        free = int((capacity.devices == WHOLE).sum())
        if free == len(capacity.devices):
            return np.where(pods.gpus > 0, float(max(33 - free, free)), 0.0)
        fullest = np.minimum(np.searchsorted(capacity.devices, pods.milli), len(capacity.devices) - 1)
        part = capacity.devices[fullest]
        # Only a pod that takes a part of a device can do without a free device.
        in_use = pods.shared & (part < WHOLE)
        scores = np.where(in_use, np.maximum(100 - part // 100, 50), np.maximum(50 - pods.gpus, 33))
        return np.where(pods.gpus > 0, scores, 0).astype(np.float64)


class FragmentationGradient(BestFit):
    """The least growth of expected fragmentation (FGD)."""

    def __init__(self, load: Workload) -> None:
        self._fragmentation = Fragmentation(typical(load.classes))

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        scores: Floats = self._of_devices(pods, capacity).max(axis=1)
        return scores

    def device(self, pods: PodClasses, capacity: FreeCapacity, draw: np.random.Generator) -> int:  # noqa: ARG002  # others draw
        return int(self._of_devices(pods, capacity)[0].argmax())

    def _of_devices(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        growth = self._fragmentation.growth(pods, cpu=capacity.cpu, devices=capacity.devices)
        scores = np.trunc(100.0 / (1.0 + np.exp(growth / WHOLE)))
        return np.where(cramped(pods, capacity.devices), -1.0, scores)


class GpuscalerScore(BestFit):
    """The least loss of the worth of the node's room: :mod:`gpuscaler.simulation.papers.fgd.placement_score`."""

    def __init__(self, load: Workload, nodes: Nodes) -> None:
        self._score = PlacementScore(load.classes, devices=int(nodes.gpus.sum()), cpu=int(nodes.cpu.sum()))

    def scores(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        return -points(self._of_devices(pods, capacity).min(axis=1))

    def device(self, pods: PodClasses, capacity: FreeCapacity, draw: np.random.Generator) -> int:  # noqa: ARG002  # others draw
        return int(self._of_devices(pods, capacity)[0].argmin())

    def _of_devices(self, pods: PodClasses, capacity: FreeCapacity) -> Floats:
        losses = self._score.losses(pods, cpu=capacity.cpu, devices=capacity.devices)
        return np.where(cramped(pods, capacity.devices), np.inf, losses)


def cramped(pods: PodClasses, devices: Ints) -> Mask:
    """Which devices are too full for which classes that take a part of one, shape (K, D)."""
    full: Mask = pods.shared[:, None] & (devices < pods.milli[:, None])
    return full


def typical(classes: PodClasses) -> PodClasses:
    """The most frequent classes, ignoring memory, until they make up enough of the pods."""
    alike, number = np.unique(np.column_stack((classes.cpu, classes.milli, classes.gpus)), axis=0, return_inverse=True)
    weight = np.bincount(number.reshape(-1), weights=classes.weight)
    # Most frequent first; among equals the larger request, as the published simulator sorts.
    order = np.lexsort((alike[:, 2], alike[:, 1], alike[:, 0], weight))[::-1]
    before = np.cumsum(weight[order]) - weight[order]
    typical_classes = order[before < TYPICAL * weight.sum()]
    cpu, milli, gpus = alike[typical_classes].T
    return PodClasses(gpus, milli, cpu, weight[typical_classes])


#: The paper's results, in percent: means over seeds 42 to 51 in ``experiments/analysis/expected_results`` of the simulator.
PUBLISHED: Mapping[str, float | None] = MappingProxyType(
    {"Random": 13.70, "DotProd": 9.38, "Clustering": 8.35, "Packing": 8.22, "BestFit": 7.14, "FGD": 4.77, "gpuscaler": None}
)


def scoring_by_name(name: str, load: Workload, nodes: Nodes) -> Scoring:
    """The scheduler for a name of :data:`PUBLISHED`."""
    simple = {"Random": Random, "DotProd": DotProduct, "Clustering": Clustering, "Packing": Packing, "BestFit": BestFit}
    if name in simple:
        return simple[name]()
    return FragmentationGradient(load) if name == "FGD" else GpuscalerScore(load, nodes)
