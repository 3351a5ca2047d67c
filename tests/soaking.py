"""How much is drawn at random: little in every run of the tests, as much as is asked for otherwise.

`make soak RUNS=N SEED=N` plays schedules; `make properties EXAMPLES=N` tries N times as many examples as are written beside each property.
"""

import os

RUNS = int(os.environ.get("SOAK_RUNS", "50"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
_EXAMPLES = float(os.environ.get("EXAMPLES", "0.34"))


def part_of_runs(divisor: int) -> int:
    """How many are played of what takes as long as ``divisor`` schedules; always some."""
    return max(5, RUNS // divisor)


def again(test: str) -> str:
    """How the same is played once more: what Hypothesis draws depends on all modules that are loaded, so that one file alone differs."""
    return f"The same again: make soak RUNS={RUNS} SEED={SEED} ONLY='{test}'"


def seeds(few: int) -> range:
    """Seeds of worlds of AWS, each of which takes as long as 400 schedules; a ``few`` in every run of the tests."""
    first = 1000 * SEED + 1
    return range(first, first + max(few, RUNS // 400))


def examples(written: int) -> int:
    """How many examples of a property are tried."""
    return max(5, round(written * _EXAMPLES))
