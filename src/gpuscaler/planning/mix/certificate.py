"""Independent check of a lower bound: no machine can hold pods worth more than it costs.

Nothing here uses the optimiser's own searches or reductions. For every kind, HiGHS solves one integer programme: it finds the most
valuable pods for one machine at the exported duals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from gpuscaler.planning.mix.columns.lp import INFINITY, Columns, load, quiet_solver
from gpuscaler.planning.mix.instance import DEVICE, Floats
from gpuscaler.planning.mix.problem import Duals, MixKind, Problem, Solution

#: How much rounding may add to the worth of a machine, relative to its cost.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Certificate:
    """``worst`` is the highest worth of one machine's pods over its cost, at ``kind`` (a key).

    ``holds`` is true if that is at most 1. ``bound`` is the lower bound that is proven in either case: if ``worst`` is above 1, the duals
    are scaled down by it.
    """

    holds: bool
    bound: float
    worst: float
    kind: str


def certify(problem: Problem, solution: Solution) -> Certificate:
    """Check the duals of ``solution`` against every pattern that serves no more than ``solution`` serves."""
    served = [item.count - solution.unplaced.get(i, 0) for i, item in enumerate(problem.items)]
    values = np.array(solution.duals.items or (0.0,) * len(served))
    worst, worst_kind = 0.0, ""
    for index, kind in enumerate(problem.kinds):
        cost = kind.price + sum(charge * weight for charge, weight in limit_charges(solution.duals, kind))
        worth = _machine_worth(problem, index, values, served, enough=cost * (1 + TOLERANCE))
        ratio = worth / cost if cost > 0 else (INFINITY if worth > TOLERANCE else 0.0)
        if ratio > worst:
            worst, worst_kind = ratio, kind.key
    holds = worst <= 1 + TOLERANCE
    scale = 1.0 if holds else 1.0 / worst
    charged = sum(charge * _amount(problem, name) for name, charge in solution.duals.limits.items())
    return Certificate(holds, max(scale * float(values @ np.array(served, dtype=np.float64)) - charged, 0.0), worst, worst_kind)


def limit_charges(duals: Duals, kind: MixKind) -> list[tuple[float, float]]:
    """(charge, units of the limit that one machine uses) for every limit with a charge.

    Names are ``machines``, ``gpus``, ``dollars``, ``pool:<name>`` and ``kind:<key>``.
    """
    weights: Mapping[str, float] = {
        "machines": 1.0,
        "gpus": float(kind.gpus_counted),
        "dollars": kind.price,
        f"pool:{kind.pool}": 1.0,
        f"kind:{kind.key}": 1.0,
    }
    return [(charge, weights.get(name, 0.0)) for name, charge in duals.limits.items()]


def _amount(problem: Problem, name: str) -> float:
    quantity, _, which = name.partition(":")
    limits = problem.limits
    if quantity == "kind":
        return next(float(kind.available) for kind in problem.kinds if kind.key == which and kind.available is not None)
    if quantity == "pool":
        return float(limits.pools[which])
    amounts = {"machines": limits.machines, "gpus": limits.gpus, "dollars": limits.dollars_per_hour}[quantity]
    return INFINITY if amounts is None else max(float(amounts), 0.0)


def _machine_worth(problem: Problem, index: int, values: Floats, served: Sequence[int], *, enough: float) -> float:
    """An upper bound on the worth of one machine's pods, exact if it is above ``enough``: linear programme first, then integer."""
    most = [_most_alone(problem, index, i, count) for i, count in enumerate(served)]
    items = [i for i, count in enumerate(most) if count > 0 and values[i] > 0]
    if not items:
        return 0.0
    rows, upper = _rows(problem, index, items, most)
    matrix = np.array(rows, dtype=np.float64)
    scale = np.maximum(np.abs(matrix).max(axis=1), 1.0)
    matrix, upper = matrix / scale[:, None], upper / scale
    row, column = np.nonzero(matrix)
    cost = np.concatenate([-values[items], np.zeros(matrix.shape[1] - len(items))])
    columns = Columns.of(row, column, matrix[row, column], cost)
    bounds = np.concatenate([np.array([most[i] for i in items], dtype=np.float64), np.ones(matrix.shape[1] - len(items))])
    columns = Columns(columns.cost, bounds, columns.start, columns.index, columns.value)
    for integer in (False, True):
        highs = quiet_solver()
        load(highs, columns, row_lower=np.full(len(upper), -INFINITY), row_upper=upper, integer=integer)
        highs.setOptionValue("mip_rel_gap", 0.0)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return INFINITY
        worth = -float(highs.getInfo().mip_dual_bound if integer else highs.getInfo().objective_function_value)
        if worth <= enough:
            break
    return worth


def _most_alone(problem: Problem, index: int, i: int, count: int) -> int:
    """The most copies of item i alone on the kind, by admission, caps and devices; other resources are rows of the programme."""
    item, kind = problem.items[i], problem.kinds[index]
    if item.allowed is not None and index not in item.allowed:
        return 0
    most = count if item.per_machine is None else min(count, item.per_machine)
    if (i, i) in problem.exclusive_pairs:
        most = min(most, 1)
    share = item.request.get(problem.device_resource, 0)
    if 0 < share <= DEVICE:
        devices = kind.capacity.get(problem.device_resource, 0) // int(DEVICE)
        most = min(most, int(DEVICE) // share * devices)
    return most


def _rows(problem: Problem, index: int, items: Sequence[int], most: Sequence[int]) -> tuple[list[list[float]], Floats]:
    """Constraints row by row: resources, caps on groups, and for pairs kept apart a 0/1 column for each item in such a pair."""
    rows: list[list[float]] = []
    upper: list[float] = []
    apart = [(a, b) for a, b in problem.exclusive_pairs if a != b and a in items and b in items]
    marked = sorted({i for pair in apart for i in pair})
    for name in sorted({name for i in items for name in problem.items[i].request}):
        rows.append([float(problem.items[i].request.get(name, 0)) for i in items] + [0.0] * len(marked))
        upper.append(float(problem.kinds[index].capacity.get(name, 0)))
    for shared in problem.shared_caps:
        rows.append([float(i in shared.items) for i in items] + [0.0] * len(marked))
        upper.append(float(shared.cap))
    for i in marked:
        rows.append([float(i == j) for j in items] + [-float(most[i]) * (i == j) for j in marked])
        upper.append(0.0)
    for a, b in apart:
        rows.append([0.0] * len(items) + [float(j in {a, b}) for j in marked])
        upper.append(1.0)
    return rows, np.array(upper)
