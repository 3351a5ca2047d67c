"""Replaying a real trace: the 8,152 jobs of openb, on AWS GPU and CPU types on demand."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.figures import REGION, Figure, families
from gpuscaler.settings import parse_policy
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.traces import read_trace

TRACE = Path(__file__).parents[2] / "shared" / "data" / "jobs_openb_v2023.csv.gz"


def figures() -> Iterator[Figure]:
    """Two configurations of kube-scheduler: its default, which spreads pods, and the one that fills machines."""
    if not TRACE.exists():
        print(f"replay: left out, since ../shared/data/{TRACE.name} is not here")
        return
    yield openb("least-allocated")
    yield openb("most-allocated")


def openb(scoring: str) -> Figure:
    pools = {"gpu": families("g4dn", "g5", "g6", "p4d", "p5"), "cpu": families("c6i", "m6i")}
    lines = [f"- {{name: {name}, types: [{', '.join(types)}], zones: [{REGION}a]}}" for name, types in pools.items()]
    text = "\n".join([f"region: {REGION}", "pools:", *lines])
    trace, policy = read_trace(TRACE), parse_policy(text, "benchmark")
    began = perf_counter()
    result = run(trace, policy, scoring=scoring)
    seconds = perf_counter() - began
    return Figure(
        f"replay of {len(trace.jobs):,} openb jobs, scheduler scoring {scoring}",
        "",
        "≤ 15 s",
        f"{seconds:.1f} s, ${result.cost:,.0f}, bound ${result.lower_bound:,.0f}, {result.unserved} unserved",
        seconds <= 15 and not result.unserved,
        {"seconds": seconds, "cost": result.cost, "lower_bound": result.lower_bound, "unserved": result.unserved},
    )
