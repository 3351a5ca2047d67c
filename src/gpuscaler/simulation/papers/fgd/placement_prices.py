"""Prices of a workload's classes of pods, if devices and CPU were just enough for all: dual prices of a linear program.

Devices may be filled with any mix of pods that fits one device, pods may be split between devices of different mixes, and only the sum of
all CPU counts. The program serves as many thousandths of devices as it can. Mixes are generated as they are needed (Gilmore and Gomory, "A
linear programming approach to the cutting-stock problem", Operations Research 9, 1961).
"""

from dataclasses import dataclass

import numpy as np

from gpuscaler.planning.mix.columns.lp import INFINITY, quiet_solver, run
from gpuscaler.simulation.papers.fgd.fragmentation import WHOLE, Floats, Ints, PodClasses

#: Resolution of the packing of one device: hundredths.
SLOTS = 100
#: A new mix must be worth at least this part of a device more than the best known one.
_WORTH = 1e-6
#: Maximum number of generated mixes; real workloads need fewer than there are classes.
_MOST_MIXES = 2000


def slots(milli: Ints) -> Ints:
    """Hundredths of a device that hold ``milli`` thousandths of it."""
    return -(-milli * SLOTS // WHOLE)


def packing_values(values: Floats, sizes: Ints) -> tuple[Floats, Ints]:
    """The highest total value of pods in r slots of one device, each class as often as it fits, and the class to take first.

    ``values`` (..., K) of one pod each, ``sizes`` (K,) in slots. Shapes (..., SLOTS + 1); the class is -1 if no further pod adds value.
    """
    distinct = np.unique(sizes)
    groups = [np.flatnonzero(sizes == size) for size in distinct]
    first = np.stack([group[values[..., group].argmax(axis=-1)] for group in groups], axis=-1)
    best = np.maximum(np.take_along_axis(values, first, axis=-1), 0.0)
    table = np.zeros((*values.shape[:-1], SLOTS + 1))
    choice = np.full(table.shape, -1)
    for room in range(int(distinct[0]), SLOTS + 1):
        fitting = np.flatnonzero(distinct <= room)
        options = table[..., room - distinct[fitting]] + best[..., fitting]
        chosen = options.argmax(axis=-1)[..., None]
        value = np.take_along_axis(options, chosen, axis=-1)[..., 0]
        more = value > table[..., room - 1]
        table[..., room] = np.where(more, value, table[..., room - 1])
        # -1 leaves a slot empty; anything else is a class.
        choice[..., room] = np.where(more, np.take_along_axis(first, chosen, axis=-1)[..., 0], -1)
    return table, choice


@dataclass(frozen=True, slots=True)
class Prices:
    """Dual prices in devices: ``pods`` (K,) per device that a pod takes, ``cpu`` per core. ``served`` is the optimum in devices."""

    pods: Floats
    cpu: float
    served: float


def solve(classes: PodClasses, *, devices: int, cpu: float) -> Prices:
    """Prices of classes of pods that take devices, if ``weight`` pods of each compete for ``devices`` and ``cpu`` millicores.

    A plentiful class has the price 0; a class that fills gaps left by others has a higher one.
    """
    per_device = classes.cpu / classes.gpus
    parts = classes.milli / WHOLE
    supply = classes.weight * classes.gpus
    sizes = slots(classes.milli)
    highs = quiet_solver()
    for limit in (*supply, float(devices), cpu / WHOLE):
        highs.addRow(-INFINITY, float(limit), 0, np.zeros(0, dtype=np.int32), np.zeros(0))
    of_devices, of_cpu = len(classes), len(classes) + 1

    def add(mix: dict[int, int]) -> None:
        members = np.array(sorted(mix))
        counts = np.array([mix[member] for member in members], dtype=np.float64)
        rows = np.concatenate((members, [of_devices, of_cpu])).astype(np.int32)
        entries = np.concatenate((counts, [1.0, float(counts @ per_device[members]) / WHOLE]))
        highs.addCol(-float(counts @ parts[members]), 0.0, INFINITY, len(rows), rows, entries)

    for number in range(len(classes)):
        add({number: 1})
    for number in range(_MOST_MIXES):
        optimum = run(highs)
        assert optimum.optimal, "serving nothing is feasible, and devices bound what is served"
        duals = np.maximum(-optimum.duals, 0.0)
        values = parts - duals[: len(classes)] - duals[of_cpu] * per_device / WHOLE
        table, choice = packing_values(values, sizes)
        if table[SLOTS] <= duals[of_devices] + _WORTH or number + 1 == _MOST_MIXES:
            break
        add(_mix(choice, sizes))
    return Prices(duals[: len(classes)], float(duals[of_cpu]), -optimum.objective)


def _mix(choice: Ints, sizes: Ints) -> dict[int, int]:
    """The classes of a full device, with their counts."""
    mix: dict[int, int] = {}
    room = SLOTS
    while room > 0:
        member = int(choice[room])
        if member < 0:
            room -= 1
        else:
            mix[member] = mix.get(member, 0) + 1
            room -= int(sizes[member])
    return mix
