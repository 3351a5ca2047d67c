"""Results as data: the document that ``--json`` prints. Its keys are in docs/reference/traces.md; what is unknown is null."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuscaler.clouds.delays import Delays
from gpuscaler.simulation.bound import KIND
from gpuscaler.simulation.meter import Result
from gpuscaler.simulation.traces import Job, Trace
from gpuscaler.simulation.workload import Shaping

DAY = 86_400.0


class Inputs(msgspec.Struct, frozen=True):
    """Where a run's numbers come from. ``generated`` and ``derived`` name everything that was not read from a file."""

    trace: str
    pools: str
    jobs: int
    pods: int
    set_aside: int
    set_aside_rows: tuple[dict[str, Any], ...]
    days: float
    gpu_model: str
    scheduler_scoring: str
    seed: int
    lower_bound: str
    generated: tuple[str, ...]
    derived: tuple[str, ...]


def inputs_of(
    trace: Trace,
    *,
    pools: str,
    shaping: Shaping,
    scoring: str,
    seed: int,
    generated: Sequence[str] = (),
    derived: Sequence[str] = (),
) -> Inputs:
    """What a run of ``trace`` was made from; ``generated`` and ``derived`` add to what every run has."""
    delays = Delays()
    return Inputs(
        trace=trace.name,
        pools=pools,
        jobs=len(trace.jobs),
        pods=sum(job.pods for job in trace.jobs),
        set_aside=trace.set_aside,
        set_aside_rows=tuple({"line": row.line, "reason": row.reason} for row in trace.bad_rows),
        days=(trace.jobs[-1].submit - trace.jobs[0].submit) / DAY,
        gpu_model=shaping.gpu_model if isinstance(shaping.gpu_model, str) else "mapped",
        scheduler_scoring=scoring,
        seed=seed,
        lower_bound=KIND,
        generated=(f"boot delay: {delays.boot}", f"device plugin delay: {delays.device_plugin}", *generated),
        derived=(*_requests(trace.jobs, shaping), *derived),
    )


def _requests(jobs: Sequence[Job], shaping: Shaping) -> list[str]:
    """Which requests were not in the trace."""
    notes = []
    for name, silent, given, unit in (
        ("cpu", sum(job.cpu_milli is None for job in jobs), shaping.cpu_per_gpu, "millicores"),
        ("memory", sum(job.memory is None for job in jobs), shaping.memory_per_gpu, "bytes"),
    ):
        if silent:
            what = f"{given} {unit} per GPU, as was asked" if given else "none: nothing is requested"
            notes.append(f"{name} request of {silent} jobs: {what}")
    if any(job.pods > 1 for job in jobs):
        notes.append("jobs of several pods: gangs whose pods start together, in one zone on one GPU product")
    return notes


def document(inputs: Inputs, results: Sequence[Result]) -> dict[str, Any]:
    """The whole report as plain data."""
    return {"inputs": msgspec.to_builtins(inputs), "policies": [_policy(result) for result in results]}


def _policy(result: Result) -> dict[str, Any]:
    return {
        "name": result.policy,
        "seed": result.seed,
        "cost": result.cost,
        "lower_bound": result.lower_bound,
        "gpu_hours_used": result.gpu_hours_used,
        "gpu_hours_paid": result.gpu_hours_paid,
        "wait": msgspec.to_builtins(result.wait),
        "served": result.served,
        "unserved": result.unserved,
        "unserved_reasons": [{"pods": one.pods, "reason": one.reason} for one in result.unserved_reasons],
        "evictions": result.evictions,
        "lost_gpu_hours": result.lost_gpu_hours,
        "failover_seconds": msgspec.to_builtins(result.failover),
        "reclaimed": result.reclaimed,
        "failed": result.failed,
        "capacity_errors": result.capacity_errors,
        "promises": {"kept": result.kept, "broken": result.broken},
        "planner_calls": result.plans,
        "machine_hours": msgspec.to_builtins(result.machine_hours),
        "services": [one._asdict() for one in result.services],
    }
