"""The numbers of random cases: small by default, larger on request.

`make soak RUNS=N SEED=N` runs N schedules. `make properties EXAMPLES=N` tries N times as many examples as each property declares.
"""

import os

RUNS = int(os.environ.get("SOAK_RUNS", "50"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
_EXAMPLES = float(os.environ.get("EXAMPLES", "0.34"))


def part_of_runs(divisor: int) -> int:
    """The number of runs for a test that takes as long as ``divisor`` schedules; at least 5."""
    return max(5, RUNS // divisor)


def again(test: str) -> str:
    """The command that repeats a run. Hypothesis' draws depend on all loaded modules, so running one file alone would differ."""
    return f"To repeat this run: make soak RUNS={RUNS} SEED={SEED} ONLY='{test}'"


def seeds(few: int) -> range:
    """Seeds of AWS worlds, each of which takes as long as 400 schedules. At least a ``few`` are run."""
    first = 1000 * SEED + 1
    return range(first, first + max(few, RUNS // 400))


def examples(written: int) -> int:
    """The number of examples to try for a property that declares ``written``."""
    return max(5, round(written * _EXAMPLES))
