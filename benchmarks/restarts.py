"""Events that must never happen, counted over many seeds in virtual time: machines bought twice or lost, broken promises."""

from collections.abc import Iterator
from functools import partial

from tests.control.test_promises import WorkloadResult, run_workload
from tests.control.test_restarts import run_with_restarts

from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time

KILLED_RUNS, WORKLOADS = 1_000, 500


def figures() -> Iterator[Figure]:
    yield killed_controllers()
    yield kept_promises()


def killed_controllers() -> Figure:
    """Runs in which the controller is killed at any step between intent and arrival, with lost answers and delayed lists of the cloud."""
    failed_seeds = []
    for seed in range(KILLED_RUNS):
        try:
            run_in_virtual_time(partial(run_with_restarts, seed))
        except AssertionError:
            failed_seeds.append(seed)
    return Figure(
        f"kill at every step between intent and arrival, {KILLED_RUNS:,} seeded runs",
        "",
        "0 machines bought twice, 0 lost",
        f"{len(failed_seeds)} runs in which a machine was bought twice or lost" + (f": seeds {failed_seeds[:10]}" if failed_seeds else ""),
        not failed_seeds,
        {"runs": KILLED_RUNS, "wrong": len(failed_seeds)},
    )


def kept_promises() -> Figure:
    """Random workloads with machines that arrive in any order, with steering and without."""
    steered = [run_in_virtual_time(partial(run_workload, seed)) for seed in range(WORKLOADS)]
    unsteered = [run_in_virtual_time(partial(run_workload, seed, steered=False)) for seed in range(WORKLOADS)]
    planned, bound, further, kept, promised = sum_runs(steered)
    *_, unsteered_further, unsteered_kept, unsteered_promised = sum_runs(unsteered)
    return Figure(
        f"promises kept: {WORKLOADS} random workloads, machines up to 120 s apart in any order",
        "",
        "every planned pod bound, no further purchase",
        f"{bound:,} of {planned:,} pods bound, {further} further purchases, {kept:,} of {promised:,} promises kept; "
        f"without steering {unsteered_further} further purchases, {unsteered_kept:,} of {unsteered_promised:,}",
        bound == planned and further == 0,
        {
            "planned": planned,
            "bound": bound,
            "further": further,
            "kept": kept,
            "promised": promised,
            "unsteered_further": unsteered_further,
        },
    )


def sum_runs(runs: list[WorkloadResult]) -> tuple[int, int, int, int, int]:
    return (
        sum(run.planned for run in runs),
        sum(run.bound for run in runs),
        sum(run.further for run in runs),
        sum(run.kept for run in runs),
        sum(run.promised for run in runs),
    )
