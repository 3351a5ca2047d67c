"""Results as data: the document that ``--json`` prints. docs/reference/simulation-report.md lists its keys; unknown values are null."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuscaler.simulation.cloud.delays import Delays, Faults
from gpuscaler.simulation.measures.bound import KIND
from gpuscaler.simulation.measures.last_quarter import LastQuarter
from gpuscaler.simulation.measures.shares import Share
from gpuscaler.simulation.measures.waits import Wait
from gpuscaler.simulation.results.campaign import Setting
from gpuscaler.simulation.results.figures import FIGURES, by_policy, cost_per_gpu_hour, idle_gpu_hours, spread
from gpuscaler.simulation.results.figures import allocation as gpu_allocation
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.traces.workload import Shaping
from gpuscaler.simulation.world.meter import Result

DAY = 86_400.0
GIB = 2**30


class Inputs(msgspec.Struct, frozen=True):
    """The origin of a run's numbers. ``generated`` and ``derived`` name everything that was not read from a file."""

    trace: str
    pools: str
    spot: tuple[str, ...]
    jobs: int
    pods: int
    set_aside: int
    set_aside_rows: tuple[dict[str, Any], ...]
    days: float
    gpu_model: str
    scheduler_scoring: str
    steering: bool
    checkpoint_seconds: float
    seed: int
    seeds: int
    lower_bound: str
    generated: tuple[str, ...]
    derived: tuple[str, ...]
    load: str | None = None
    restart_cost_seconds: float | None = None


def inputs_of(
    setting: Setting, *, pools: str, seed: int, seeds: int = 1, generated: Sequence[str] = (), derived: Sequence[str] = ()
) -> Inputs:
    """The inputs of runs of ``setting``; ``generated`` and ``derived`` add to what every run has."""
    trace, shaping = setting.trace, setting.shaping
    return Inputs(
        trace=printable(trace.name),
        pools=printable(pools),
        spot=tuple(printable(file.name) for file in setting.spot),
        jobs=len(trace.jobs),
        pods=sum(job.pods for job in trace.jobs),
        set_aside=trace.set_aside,
        set_aside_rows=tuple({"line": row.line, "reason": row.reason} for row in trace.bad_rows),
        days=(trace.jobs[-1].submit - trace.jobs[0].submit) / DAY,
        gpu_model=shaping.gpu_model if isinstance(shaping.gpu_model, str) else "mapped",
        scheduler_scoring=setting.scoring,
        steering=setting.steering,
        checkpoint_seconds=setting.checkpoint,
        seed=seed,
        seeds=seeds,
        lower_bound=KIND,
        generated=(*_drawn_properties(), *generated),
        derived=(
            *_notes(trace),
            *_requests(trace.jobs, shaping),
            *_gangs(trace.jobs, steering=setting.steering),
            *_checkpoints(setting.checkpoint),
            *_restarts(shaping),
            *derived,
        ),
        load=printable(setting.load.name) if setting.load is not None else None,
        restart_cost_seconds=shaping.restart_cost,
    )


def printable(name: str) -> str:
    """A file's name, escaped if it is not printable: names need not be text."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _drawn_properties() -> list[str]:
    """Describe the drawn properties of machines, which no file contains."""
    delays, faults = Delays(), Faults()
    return [
        f"boot delay: {delays.boot}",
        f"device plugin delay: {delays.device_plugin}",
        f"answer of the cloud: {delays.answer}",
        f"image pull of a machine's first pod: {delays.image_pull}",
        f"machines that never register: {faults.never_registers:.1%}; failures: one in {faults.gpu_hours_between_failures:,.0f} GPU-hours",
        f"spot purchases granted in part: {faults.partial_grants:.0%}",
        f"spot machines of a market that runs dry: reclaimed after {faults.reclaim}",
        f"notice of a reclaim: {faults.notice_seconds:.0f} s, none for {faults.without_notice:.0%} of machines",
    ]


def _checkpoints(seconds: float) -> list[str]:
    return [f"checkpoints: every {seconds:,.0f} s of work" if seconds else "checkpoints: none, an evicted pod starts from scratch"]


def _notes(trace: Trace) -> list[str]:
    """Notes of a trace about its own jobs."""
    return [f"{count:,} {'job' if count == 1 else 'jobs'} of the trace, by its notes: {note}" for note, count in trace.notes]


def _restarts(shaping: Shaping) -> list[str]:
    if shaping.restart_cost is None:
        return []
    return [
        f"restart cost of every pod: {shaping.restart_cost:,.0f} s, as requested: pods may move, and only gpuscaler considers this cost"
    ]


def _requests(jobs: Sequence[Job], shaping: Shaping) -> list[str]:
    """Requests that were not in the trace."""
    notes = []
    for name, missing, value, unit, words in (
        ("cpu", sum(job.cpu_milli is None for job in jobs), shaping.cpu_per_gpu, 1000, "CPUs"),
        ("memory", sum(job.memory is None for job in jobs), shaping.memory_per_gpu, GIB, "GiB"),
    ):
        if missing:
            source = f"{value / unit:g} {words} per GPU, as requested" if value else "none: nothing is requested"
            notes.append(f"{name} request of {missing:,} {'job' if missing == 1 else 'jobs'}: {source}")
    return notes


def _gangs(jobs: Sequence[Job], *, steering: bool) -> list[str]:
    if not any(job.pods > 1 for job in jobs):
        return []
    places = "gpuscaler keeps each gang in one zone and on one GPU product; other policies may not" if steering else "in any zones"
    return [f"jobs of several pods: gangs, which start together; {places}"]


def document(inputs: Inputs, results: Sequence[Result]) -> dict[str, Any]:
    """The whole report as plain data."""
    return {
        "inputs": msgspec.to_builtins(inputs),
        "policies": [policy_document(result) for result in results],
        "summary": [_summary(name, runs) for name, runs in by_policy(results).items()],
    }


def _summary(name: str, runs: Sequence[Result]) -> dict[str, Any]:
    """Every figure of a policy over its seeds."""
    spreads = {figure.key: spread(figure, runs) for figure in FIGURES}
    return {"name": name, "seeds": len(runs), "figures": {key: spread and msgspec.to_builtins(spread) for key, spread in spreads.items()}}


def policy_document(result: Result) -> dict[str, Any]:
    """One result as plain data."""
    return {
        "name": result.policy,
        "seed": result.seed,
        "cost": result.cost,
        "lower_bound": result.lower_bound,
        "gpu_hours_used": result.gpu_hours_used,
        "gpu_hours_paid": result.gpu_hours_paid,
        "cost_per_gpu_hour_used": cost_per_gpu_hour(result),
        "gpu_hours_held": result.gpu_hours_held,
        "gpu_hours_idle": idle_gpu_hours(result),
        "gpu_allocation": gpu_allocation(result),
        "wait": _wait(result.wait),
        "wait_at_least": result.wait.at_least,
        "wait_by_class": [
            {
                "class": class_wait.pod_class,
                "pods": class_wait.pods,
                "served": class_wait.served,
                **_wait(class_wait.wait),
                "at_least": class_wait.wait.at_least,
            }
            for class_wait in result.wait_by_class
        ],
        "served": result.served,
        "unserved": result.unserved,
        "unserved_reasons": [{"pods": reason.pods, "reason": reason.reason} for reason in result.unserved_reasons],
        "evictions": result.evictions,
        "lost_gpu_hours": result.lost_gpu_hours,
        "failover_seconds": msgspec.to_builtins(result.failover),
        "reclaimed": result.reclaimed,
        "failed": result.failed,
        "capacity_errors": result.capacity_errors,
        "promises": {"kept": result.kept, "broken": result.broken},
        "planner_calls": result.plans,
        "machine_hours": msgspec.to_builtins(result.machine_hours),
        "services": [service_result._asdict() for service_result in result.services],
        "cost_by_user": _shares("user", result.users),
        "cost_by_namespace": _shares("namespace", result.namespaces),
        "cost_by_class": _shares("class", result.classes),
        "hours": (result.ended - result.began) / 3600.0,
        "last_quarter": _last_quarter(result.last_quarter),
    }


def _last_quarter(part: LastQuarter | None) -> dict[str, Any] | None:
    if part is None:
        return None
    counts = {"pods": part.pods, "served": part.served}
    return {"after_hours": part.after / 3600.0, "cost": part.cost, **counts, "wait": _wait(part.wait), "at_least": part.wait.at_least}


def _wait(wait: Wait) -> dict[str, float | None]:
    return {"mean": wait.mean, "p50": wait.p50, "p95": wait.p95, "p99": wait.p99}


def _shares(key: str, shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Empty if the trace names none."""
    if not has_named_shares(shares):
        return []
    return [{key: share.name, "cost": share.cost, "gpu_hours": share.gpu_hours} for share in shares]


def has_named_shares(shares: Sequence[Share]) -> bool:
    """Whether any share belongs to a name that the trace gives."""
    return any(share.name for share in shares)
