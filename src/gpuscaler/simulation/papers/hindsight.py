"""The minimum cost of a job with a deadline if the whole spot series is known: dynamic programming over the remaining work."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: States between two decisions: no machine, on spot or on-demand and working, or with one unit of the changeover left.
IDLE, SPOT, SPOT_WARMING, ON_DEMAND, ON_DEMAND_WARMING = range(5)
NEVER = np.float32(1e9)

Values = npt.NDArray[np.float32]


def cheapest(
    available: npt.NDArray[np.bool_], *, work: int, changeover: int, step: int, prices: tuple[float, float]
) -> npt.NDArray[np.float64]:
    """The minimum cost of each job, in dollars.

    ``available[job, number]`` says whether spot is available in that step. ``work``, ``changeover`` and ``step`` are in units of one
    length; a changeover takes more than a step and at most a unit more. ``prices`` are those of a unit on spot and on-demand.
    """
    if not step < changeover <= step + 1:
        raise ValueError(f"a changeover must take more than a step of {step} units and at most one unit more, got {changeover}")
    jobs, steps = available.shape
    values = np.full((5, jobs, work + 1), NEVER, dtype=np.float32)
    values[:, :, 0] = 0.0
    for number in range(steps - 1, -1, -1):
        spot_available = available[:, number]
        spot, on_demand = (_running(values, state, price, changeover, step) for state, price in zip((SPOT, ON_DEMAND), prices, strict=True))
        best = np.minimum(values[IDLE], on_demand[0])
        with_spot = np.where(spot_available[:, None], np.minimum(best, spot[0]), best)
        values = np.stack(
            [
                with_spot,
                np.where(spot_available[:, None], np.minimum(best, spot[1]), best),
                np.where(spot_available[:, None], np.minimum(best, spot[2]), best),
                np.minimum(with_spot, on_demand[1]),
                np.minimum(with_spot, on_demand[2]),
            ]
        )
    return np.asarray(values[IDLE, :, work], dtype=np.float64)


def _running(values: Values, state: int, price: float, changeover: int, step: int) -> Sequence[Values]:
    """Cost to the end when the step is spent on ``state``'s machine: from a new one, a working one, and one that is nearly ready."""
    new = values[state + 1] + np.float32(step * price)
    new[:, 0] = 0.0
    costs = [new]
    for warming in (0, changeover - step):
        useful = step - warming
        after = np.empty_like(values[state])
        after[:, useful:] = values[state][:, : after.shape[1] - useful] + np.float32(step * price)
        # Work that ends within the step is paid up to its end.
        ends = np.arange(min(useful, after.shape[1] - 1) + 1)
        after[:, : len(ends)] = (ends + warming) * np.float32(price)
        after[:, 0] = 0.0
        costs.append(after)
    return costs
