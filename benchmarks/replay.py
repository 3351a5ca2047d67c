"""Replays of real traces: the 8,152 jobs of openb and the 41,125 of Philly's first half of 2017, on AWS types on demand."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.figures import REGION, Figure, types_of_families
from gpuscaler.settings import load_policy, parse_policy
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.traces.traces import read_trace
from gpuscaler.simulation.traces.workload import without_spot

DATA = Path(__file__).parents[2] / "shared" / "data"
OPENB, PHILLY = DATA / "jobs_openb_v2023.csv.gz", DATA / "jobs_philly_2017_first_half.csv.gz"
POOLS = Path(__file__).parents[1] / "docs" / "examples" / "aws-gpu-pools.yaml"


def figures() -> Iterator[Figure]:
    """Openb with two configurations of kube-scheduler: its default, which spreads pods, and the one that fills machines; then Philly."""
    if not OPENB.exists():
        print(f"replay: skipped, since ../shared/data/{OPENB.name} does not exist")
        return
    yield replay_openb("least-allocated")
    yield replay_openb("most-allocated")
    yield replay_philly()


def replay_openb(scoring: str) -> Figure:
    pools = {"gpu": types_of_families("g4dn", "g5", "g6", "p4d", "p5"), "cpu": types_of_families("c6i", "m6i")}
    lines = [f"- {{name: {name}, types: [{', '.join(types)}], zones: [{REGION}a]}}" for name, types in pools.items()]
    text = "\n".join([f"region: {REGION}", "pools:", *lines])
    trace, policy = read_trace(OPENB), parse_policy(text, "benchmark")
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


def replay_philly() -> Figure:
    trace, (policy, _) = read_trace(PHILLY), without_spot(load_policy(str(POOLS)))
    began = process_time()
    result = run(trace, policy)
    seconds = process_time() - began
    return Figure(
        f"replay of {len(trace.jobs):,} Philly jobs, CPU time of one core",
        "",
        "≤ 60 s",
        f"{seconds:.1f} s, ${result.cost:,.0f}, bound ${result.lower_bound:,.0f}, {result.unserved} unserved",
        seconds <= 60 and not result.unserved,
        {"seconds": seconds, "cost": result.cost, "lower_bound": result.lower_bound, "unserved": result.unserved},
    )
