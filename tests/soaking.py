"""How many random schedules are played: few in every run of the tests, as many as are asked for with `make soak RUNS=N SEED=N`."""

import os

RUNS = int(os.environ.get("SOAK_RUNS", "50"))
SEED = int(os.environ.get("SOAK_SEED", "0"))


def part_of_runs(divisor: int) -> int:
    """How many are played of what takes as long as ``divisor`` schedules; always some."""
    return max(5, RUNS // divisor)
