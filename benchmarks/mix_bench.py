"""Time and gap of the optimiser: ``python -m benchmarks.mix_bench [name prefix]``."""

import statistics
import sys
import time

from benchmarks.mix_cases import all_cases
from gpuscaler.planning.mix import solve


def main() -> None:
    """Print a row for every case whose name starts with the argument, and the gaps of the random mixes together."""
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    gaps, seconds = [], []
    for name, problem in all_cases().items():
        if not name.startswith(prefix):
            continue
        began = time.process_time()
        solution = solve(problem)
        took = time.process_time() - began
        gap = solution.cost / solution.lower_bound - 1 if solution.lower_bound else 0.0
        machines = sum(group.times for group in solution.groups)
        if "mix-" in name:
            gaps.append(gap)
            seconds.append(took)
        kind = solution.lower_bound_kind + (" proven" if solution.proven else "")
        print(f"{name:22} {solution.cost:12.4f} {gap:9.4%} {machines:6} machines {took * 1e3:8.1f} ms {solution.work_used:9} {kind}")
    if len(gaps) > 1:
        cuts, times = statistics.quantiles(gaps, n=20), statistics.quantiles(seconds, n=20)
        print(f"{len(gaps)} mixes: gap median {statistics.median(gaps):.4%} p95 {cuts[18]:.4%} max {max(gaps):.4%}; ", end="")
        print(f"time median {statistics.median(seconds) * 1e3:.0f} ms p95 {times[18] * 1e3:.0f} ms max {max(seconds) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
