"""Chooses the cheapest mix of machines for pods that need new ones: :func:`solve`, pure and deterministic.

:func:`resource_bound` gives a lower bound on the cost of any mix, without choosing one.
"""

from gpuscaler.planning.mix.problem import Duals, Item, Limits, MachineGroup, MixError, MixKind, Problem, SharedCap, Solution
from gpuscaler.planning.mix.solve import DEFAULT_WORK, resource_bound, solve

__all__ = [
    "DEFAULT_WORK",
    "Duals",
    "Item",
    "Limits",
    "MachineGroup",
    "MixError",
    "MixKind",
    "Problem",
    "SharedCap",
    "Solution",
    "resource_bound",
    "solve",
]
