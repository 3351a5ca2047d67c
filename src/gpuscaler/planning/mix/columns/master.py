"""The restricted master programme: how many machines to buy of each known pattern, as fractions or as integers."""

import highspy
import numpy as np

from gpuscaler.planning.mix.columns.lp import INFINITY, Columns, Optimum, load, quiet_solver, run
from gpuscaler.planning.mix.instance import Floats, Ints, ProblemArrays
from gpuscaler.planning.mix.mixture import Mixture
from gpuscaler.planning.mix.work import Meter

#: Work of an integer programme: for its setup, and between two of the solver's calls of the interrupt callback, per call and per column.
_INTEGER, _QUESTION, _QUESTION_COLUMN = 12_000, 2_000, 30


class Master:
    """Rows: at least the demand of every item, at most the amount of every limit. Columns: patterns, and unplaced pods at ``penalty``.

    Without a penalty everything must be served, so the first patterns must include a mix that serves it.
    """

    def __init__(self, instance: ProblemArrays, *, penalty: Floats | None = None) -> None:
        self.instance = instance
        self.limits = instance.limits
        self.penalty = np.zeros(0) if penalty is None else penalty
        self.slack = 0 if penalty is None else len(instance.demand)
        self.kinds: Ints = np.zeros(0, dtype=np.int64)
        self.held: Floats = np.zeros((0, len(instance.demand)))
        self._known: set[tuple[int, bytes]] = set()
        self._highs = quiet_solver()
        load(
            self._highs,
            self._columns(self.kinds, self.held, unmet=True),
            row_lower=np.concatenate([instance.demand, np.full(len(self.limits), -INFINITY)]),
            row_upper=np.concatenate([np.full(len(instance.demand), INFINITY), [row.amount for row in self.limits]]),
        )

    def add(self, kinds: Ints, held: Floats) -> int:
        """Add the patterns that are new; returns how many were added."""
        fresh = []
        for row, (kind, pods) in enumerate(zip(kinds, held, strict=True)):
            place = (int(kind), pods.tobytes())
            if place not in self._known:
                self._known.add(place)
                fresh.append(row)
        if not fresh:
            return 0
        kinds, held = kinds[fresh], held[fresh]
        columns = self._columns(kinds, held)
        count = len(fresh)
        self._highs.addCols(
            count, columns.cost, np.zeros(count), columns.upper, len(columns.index), columns.start[:-1], columns.index, columns.value
        )
        self.kinds, self.held = np.concatenate([self.kinds, kinds]), np.vstack([self.held, held])
        return count

    def _columns(self, kinds: Ints, held: Floats, *, unmet: bool = False) -> Columns:
        """Programme columns of patterns, after those of unplaced pods if ``unmet``."""
        matrix = np.hstack([held, *(row.weights[kinds][:, None] for row in self.limits)])
        column, row = np.nonzero(matrix)
        own, value, cost = np.arange(self.slack if unmet else 0), matrix[column, row], self.instance.price[kinds]
        return Columns.of(
            np.concatenate([own, row]),
            np.concatenate([own, len(own) + column]),
            np.concatenate([np.ones(len(own)), value]),
            np.concatenate([self.penalty[own], cost]),
        )

    def relax(self, meter: Meter) -> tuple[Optimum, Floats, Floats]:
        """Solve with fractions of machines; returns the optimum, the value of a pod by item, and charges by limit."""
        optimum = run(self._highs)
        items = len(self.instance.demand)
        meter.add(1500 + optimum.iterations * (30 + 2 * items))
        charges = np.maximum(-optimum.duals[items:], 0.0)
        return optimum, np.maximum(optimum.duals[:items], 0.0), charges

    def integer(self, which: Ints, *, meter: Meter) -> tuple[Mixture | None, bool]:
        """Solve with integer numbers of the patterns ``which``.

        Returns the best mix found, with surplus copies not trimmed, and whether the solver finished, so that the mix is optimal.
        """
        demand = self.instance.demand
        highs = quiet_solver()
        load(
            highs,
            self._columns(self.kinds[which], self.held[which], unmet=True),
            row_lower=np.concatenate([demand, np.full(len(self.limits), -INFINITY)]),
            row_upper=np.concatenate([np.full(len(demand), INFINITY), [row.amount for row in self.limits]]),
            integer=True,
        )
        highs.setOptionValue("mip_rel_gap", 1e-6)
        # These two heuristics solve their own programmes without calling the interrupt callback: up to a quarter of a second at a time,
        # with little benefit.
        highs.setOptionValue("mip_heuristic_run_rins", False)
        highs.setOptionValue("mip_heuristic_run_root_reduced_cost", False)
        highs.setOptionValue("mip_heuristic_run_zi_round", True)
        highs.setOptionValue("mip_heuristic_run_shifting", True)
        finished = _run_integer(highs, len(which), meter)
        solution = highs.getSolution()
        if not solution.value_valid:
            return None, finished
        times = np.round(np.array(solution.col_value[self.slack :])).astype(np.int64)
        parts = zip(map(int, self.kinds[which]), self.held[which], map(int, times), strict=True)
        return Mixture.of(list(parts), len(demand)), finished


def _run_integer(highs: highspy.Highs, columns: int, meter: Meter) -> bool:
    """Run branch and bound within the budget; returns whether it finished.

    The solver calls the interrupt callback at fixed points of its work, so the number of calls is a deterministic clock.
    """

    def watch(event: highspy.highs.HighsCallbackEvent) -> None:
        meter.add(_QUESTION + _QUESTION_COLUMN * columns)
        if not meter.left():
            event.interrupt()

    meter.add(_INTEGER)
    highs.cbMipInterrupt.subscribe(watch)
    highs.run()
    return highs.getModelStatus() in {highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible}
