"""Linear and integer programmes, solved by HiGHS in one thread with a fixed seed."""

from dataclasses import dataclass

import highspy
import numpy as np

from gpuscaler.planning.mix.instance import Floats, Ints

INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Columns:
    """A matrix in compressed columns: column j has the entries ``start[j]:start[j + 1]`` of ``index`` and ``value``."""

    cost: Floats
    upper: Floats
    start: Ints
    index: Ints
    value: Floats

    @classmethod
    def of(cls, row: Ints, column: Ints, value: Floats, cost: Floats) -> "Columns":
        """Make columns from entries in any order, at most one for each (row, column)."""
        order = np.lexsort((row, column))
        start = np.zeros(len(cost) + 1, dtype=np.int64)
        np.cumsum(np.bincount(column, minlength=len(cost)), out=start[1:])
        return cls(cost, np.full(len(cost), INFINITY), start, row[order], value[order])


@dataclass(frozen=True, slots=True)
class Optimum:
    """``values`` of the columns and ``duals`` of the rows (both zero arrays unless ``optimal``); ``iterations`` of the simplex method."""

    optimal: bool
    objective: float
    values: Floats
    duals: Floats
    iterations: int


def quiet_solver() -> highspy.Highs:
    """A solver that prints nothing and is deterministic."""
    highs = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy leaves its constructor untyped
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("parallel", "off")
    highs.setOptionValue("random_seed", 0)
    return highs


def load(highs: highspy.Highs, columns: Columns, *, row_lower: Floats, row_upper: Floats, integer: bool = False) -> None:
    """Load into the solver: minimise cost·x with row_lower <= A x <= row_upper and 0 <= x <= upper."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns.cost), len(row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = columns.cost, np.zeros(len(columns.cost)), columns.upper
    lp.row_lower_, lp.row_upper_ = row_lower, row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = columns.start, columns.index, columns.value
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(columns.cost)
    highs.passModel(lp)


def run(highs: highspy.Highs) -> Optimum:
    """Solve the loaded programme, starting from the last basis if there is one."""
    highs.run()
    optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    info, solution = highs.getInfo(), highs.getSolution()
    return Optimum(
        optimal=optimal,
        objective=float(info.objective_function_value) if optimal else 0.0,
        values=np.array(solution.col_value) if optimal else np.zeros(highs.getNumCol()),
        duals=np.array(solution.row_dual) if optimal else np.zeros(highs.getNumRow()),
        iterations=max(int(info.simplex_iteration_count), 0),
    )
