"""On a real control plane: time until promised pods are bound, and how long a machine stays closed for a scheduler with delayed watches.

``WORKLOADS=500 python -m benchmarks binding`` plays 500 random workloads, ten at a time, which takes an hour.
"""

import asyncio
import os
from collections.abc import Iterator

from tests.e2e import steering
from tests.e2e.promising import Promised, promised
from tests.e2e.stage import version

from benchmarks.figures import Figure
from gpuscaler.lifecycle.steering.binding import MARGIN_SECONDS

#: Maximum seconds between machines of random workloads becoming ready.
MAX_APART_SECONDS = 120.0
#: Number of machines that become ready in one second.
SIMULTANEOUS_MACHINES = 100
#: Delays of the scheduler's view of pods, and the margins it gets before a machine opens, in seconds.
WATCH_DELAYS, MARGINS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0), (0.0, 0.5, 1.0, 2.0)


def figures() -> Iterator[Figure]:
    yield random_workloads(int(os.environ.get("WORKLOADS", "20")))
    yield simultaneous_machines(asyncio.run(promised("bench-binding-many", machines=SIMULTANEOUS_MACHINES, boot=30.0)))
    yield overcommitted_by_margin(
        {(delay, margin): asyncio.run(run_delayed(delay, margin)) for delay in WATCH_DELAYS for margin in MARGINS}
    )


def random_workloads(count: int) -> Figure:
    tally = asyncio.run(steering.measure_all(count, seed=1, apart=MAX_APART_SECONDS, restart=True))
    p50, p99 = tally.waited(0.5), tally.waited(0.99)
    flawless = tally.bound == tally.planned and not (tally.further or tally.again or tally.broken or tally.overfull or tally.failed)
    return Figure(
        f"Kubernetes {version()}, {count} random workloads, ten at a time, the controller killed in between: from ready to bound",
        "",
        "p50 ≤ 0.5 s, p99 ≤ 2 s; all bound, no further purchase, no node overcommitted, no pod rejected",
        str(tally),
        flawless and p50 <= 0.5 and p99 <= 2.0,
        {
            "planned": tally.planned,
            "bound": tally.bound,
            "ours": tally.ours,
            "further": tally.further,
            "again": tally.again,
            "p50": p50,
            "p99": p99,
        },
    )


def simultaneous_machines(promised: Promised) -> Figure:
    return Figure(
        f"Kubernetes {version()}: {promised.machines} machines that become ready at about the same time",
        "",
        "all bound within 5 s; no node overcommitted, no pod rejected",
        str(promised),
        len(promised.waits) == promised.pods and promised.late <= 5.0 and not (promised.overfull or promised.moved or promised.failed),
        {"pods": promised.pods, "apart": promised.apart, "late": promised.late},
    )


async def run_delayed(delay: float, margin: float) -> Promised:
    result = await promised(f"bench-binding-{delay}-{margin}", rivals=150, deaf=delay, margin=margin)
    print(f"scheduler {delay:g} s behind, margin {margin:g} s: {result}", flush=True)
    return result


def overcommitted_by_margin(results: dict[tuple[float, float], Promised]) -> Figure:
    """Overcommitted nodes out of ten, by the delay of kube-scheduler's view of pods and the margin it gets."""
    failures = {case: len(promised.overfull) + promised.failed for case, promised in results.items()}
    rows = (f"{delay:g} s late: {', '.join(f'{failures[delay, margin]}' for margin in MARGINS)}" for delay in WATCH_DELAYS)
    return Figure(
        f"Kubernetes {version()}: nodes overcommitted and pods rejected if kube-scheduler sees pods late, with a margin of "
        f"{', '.join(f'{margin:g}' for margin in MARGINS)} s before a machine opens",
        "",
        f"none if its delay is below the margin of {MARGIN_SECONDS:g} s",
        "; ".join(rows),
        all(not count for (delay, margin), count in failures.items() if margin == MARGIN_SECONDS and delay < margin),
        {f"{delay:g}-{margin:g}": float(count) for (delay, margin), count in failures.items()},
    )
