"""Translates a mix over merged items back to the problem's own items and kinds."""

import numpy as np

from gpuscaler.planning.mix.instance import Floats, ProblemArrays
from gpuscaler.planning.mix.mixture import Mixture
from gpuscaler.planning.mix.problem import MachineGroup, Problem


def machine_groups(instance: ProblemArrays, problem: Problem, mixture: Mixture) -> tuple[tuple[MachineGroup, ...], dict[int, int]]:
    """Machines in groups with equal contents, the most expensive first, and the number of unplaced pods by item."""
    left = [problem.items[i].count for i in range(len(problem.items))]
    counted: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
    # The same machine with the same pods is one pattern, whichever merged item its pods came from.
    for kind, held, times in sorted(mixture.parts(), key=lambda part: (-instance.price[part[0]], part[0], tuple(-part[1]), part[2])):
        while times > 0:
            pods = _take_items(instance, held, left)
            often = min(times, *(left[i] // n for i, n in pods))
            for i, n in pods:
                left[i] -= n * often
            place = (instance.origin[kind], tuple(sorted(pods)))
            counted[place] = counted.get(place, 0) + often
            times -= often
    groups = tuple(MachineGroup(kind, dict(pods), times) for (kind, pods), times in counted.items())
    return groups, {i: n for i, n in enumerate(left) if n > 0}


def _take_items(instance: ProblemArrays, held: Floats, left: list[int]) -> list[tuple[int, int]]:
    """The problem's items, with counts, that make up one machine holding ``held``."""
    pods = []
    for row in np.flatnonzero(held):
        need = int(held[row])
        for i in instance.members[row]:
            if not need:
                break
            n = min(need, left[i])
            if n:
                pods.append((i, n))
                need -= n
    return pods
