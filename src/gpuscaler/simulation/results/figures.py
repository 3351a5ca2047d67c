"""The figures that policies are compared by, computed from results, and their mean and spread over seeds."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from gpuscaler.simulation.measures.shares import Share
from gpuscaler.simulation.measures.waits import CLASSES, Wait
from gpuscaler.simulation.world.meter import MachineHours, Result

DOLLARS, HOURS, SECONDS, COUNT, PART = "dollars", "hours", "seconds", "count", "part"

#: Explains the sign of a lower bound.
AT_LEAST = "≥: at least; so many pods never ran, or were cancelled before they did, that the true wait is unknown."


class Figure(Struct, frozen=True):
    """One figure: its key in JSON, its title, its unit, and how to compute it (None if a result does not have it).

    ``wait`` names the field of ``waits`` of a result, for figures that may be lower bounds. A figure that is not ``always`` shown is left
    out of tables if it is zero or unknown under every policy.
    """

    key: str
    title: str
    unit: str
    of: Callable[[Result], float | None]
    wait: str = ""
    always: bool = True
    waits: Callable[[Result], Wait] = attrgetter("wait")


class Spread(Struct, frozen=True, gc=False):
    """A figure over seeds: mean, sample standard deviation (None for one seed), minimum, maximum; ``at_least``: a bound in some run."""

    mean: float
    sd: float | None
    least: float
    most: float
    at_least: bool = False


def idle_gpu_hours(result: Result) -> float | None:
    """GPU-hours that were paid but held by no pod."""
    return None if result.gpu_hours_held is None else max(0.0, result.gpu_hours_paid - result.gpu_hours_held)


def allocation(result: Result) -> float | None:
    """The part of the paid GPU-hours that pods held."""
    return result.gpu_hours_held / result.gpu_hours_paid if result.gpu_hours_held is not None and result.gpu_hours_paid else None


def cost_per_gpu_hour(result: Result) -> float | None:
    """Dollars for each GPU-hour of finished work; includes the cost of pods without GPUs."""
    return result.cost / result.gpu_hours_used if result.gpu_hours_used else None


def late_cost(result: Result) -> float | None:
    """Dollars spent in the last quarter."""
    return None if result.last_quarter is None else result.last_quarter.cost


def late_wait(result: Result) -> Wait:
    """The waits of the last quarter."""
    return Wait() if result.last_quarter is None else result.last_quarter.wait


FIGURES = (
    Figure("cost", "cost", DOLLARS, lambda result: result.cost),
    Figure("lower_bound", "no policy can cost less than", DOLLARS, lambda result: result.lower_bound),
    Figure("cost_per_gpu_hour_used", "cost per GPU-hour used", DOLLARS, cost_per_gpu_hour),
    Figure("gpu_hours_used", "GPU-hours used", HOURS, lambda result: result.gpu_hours_used),
    Figure("gpu_hours_paid", "GPU-hours paid", HOURS, lambda result: result.gpu_hours_paid if result.gpu_hours_held is not None else None),
    Figure("gpu_hours_idle", "GPU-hours idle", HOURS, idle_gpu_hours),
    Figure("gpu_allocation", "paid GPUs allocated", PART, allocation),
    Figure("wait_mean", "wait, mean", SECONDS, lambda result: result.wait.mean, wait="mean"),
    Figure("wait_p50", "wait, median", SECONDS, lambda result: result.wait.p50, wait="p50"),
    Figure("wait_p95", "wait, p95", SECONDS, lambda result: result.wait.p95, wait="p95"),
    Figure("wait_p99", "wait, p99", SECONDS, lambda result: result.wait.p99, wait="p99"),
    Figure("served", "pods that ran", COUNT, lambda result: result.served),
    Figure("unserved", "pods that never ran", COUNT, lambda result: result.unserved),
    Figure("evictions", "evictions", COUNT, lambda result: result.evictions),
    Figure("lost_gpu_hours", "GPU-hours lost to evictions", HOURS, lambda result: result.lost_gpu_hours),
    Figure("capacity_errors", "capacity errors", COUNT, lambda result: result.capacity_errors, always=False),
    Figure("failover_p50", "failover time, median", SECONDS, lambda result: result.failover.p50, always=False),
    Figure("failover_max", "failover time, longest", SECONDS, lambda result: result.failover.max, always=False),
    Figure("reclaimed", "machines reclaimed", COUNT, lambda result: result.reclaimed, always=False),
    Figure("failed", "machines that failed", COUNT, lambda result: result.failed, always=False),
    Figure("last_quarter_cost", "cost, last quarter", DOLLARS, late_cost, always=False),
    Figure(
        "last_quarter_wait_p95",
        "wait, last quarter, p95",
        SECONDS,
        lambda result: late_wait(result).p95,
        wait="p95",
        always=False,
        waits=late_wait,
    ),
)


def by_policy(results: Iterable[Result]) -> Mapping[str, Sequence[Result]]:
    """Group results by policy, one per seed, in the order in which they came."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.policy, []).append(result)
    return groups


def spread(figure: Figure, results: Sequence[Result]) -> Spread | None:
    """A figure over the runs of one policy; None if no run has it."""
    values = [value for value in map(figure.of, results) if value is not None]
    if not values:
        return None
    at_least = bool(figure.wait) and any(figure.wait in figure.waits(result).at_least for result in results)
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, min(values), max(values), at_least)


def reported_figures(figures: Iterable[Figure], results: Sequence[Result]) -> tuple[Figure, ...]:
    """The figures that a table has rows for."""
    # A time of 0 s is worth a row, a count of 0 is not.
    nothing = {None, 0.0}
    return tuple(
        figure
        for figure in figures
        if figure.always or any(figure.of(result) not in (nothing if figure.unit != SECONDS else {None}) for result in results)
    )


def format_figure(unit: str, value: Spread | None) -> str:
    """Format a figure: its mean, and its standard deviation if there are several seeds."""
    if value is None:
        return "-"
    # Equal values have no spread worth a column.
    sd = value.sd or None
    if unit == SECONDS:
        text = _seconds(value.mean, sd)
    elif unit == PART:
        text = f"{value.mean:.1%}" if sd is None else f"{100 * value.mean:.1f} ± {100 * sd:.1f} %"
    elif unit == DOLLARS:
        text = f"${value.mean:,.2f}" + ("" if sd is None else f" ± {sd:,.2f}")
    elif unit == HOURS:
        text = f"{value.mean:,.1f}" + ("" if sd is None else f" ± {sd:,.1f}")
    else:
        text = f"{value.mean:,.0f}" if sd is None else f"{value.mean:,.1f} ± {sd:,.1f}"
    return f"≥ {text}" if value.at_least else text


def _seconds(mean: float, sd: float | None) -> str:
    unit, size = ("s", 1.0) if mean < 120 else ("min", 60.0) if mean < 7200 else ("h", 3600.0)
    return f"{mean / size:,.1f}" + ("" if sd is None else f" ± {sd / size:,.1f}") + f" {unit}"


def single_value(value: float | None, *, at_least: bool = False) -> Spread | None:
    """Wrap a value of a single run for display."""
    return None if value is None else Spread(value, None, value, value, at_least)


def mean_machines(results: Sequence[Result]) -> tuple[MachineHours, ...]:
    """Machines, hours and cost of every offering, averaged over ``results``, most expensive first; ``machines`` is rounded."""
    sums: dict[tuple[str, str, str, str], list[float]] = {}
    for row in (row for result in results for row in result.machine_hours):
        totals = sums.setdefault((row.pool, row.instance_type, row.market, row.zone), [0.0, 0.0, 0.0])
        for number, value in enumerate((row.hours, row.cost, row.machines)):
            totals[number] += value / len(results)
    rows = [MachineHours(*key, hours=hours, cost=cost, machines=round(machines)) for key, (hours, cost, machines) in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.cost, row.pool, row.instance_type, row.market, row.zone)))


def mean_shares(shares: Sequence[Sequence[Share]]) -> dict[str | None, Share]:
    """Dollars and GPU-hours of every name, averaged over all runs, most expensive first, the unheld rest last."""
    sums: dict[str | None, list[float]] = {}
    for share in (share for run in shares for share in run):
        totals = sums.setdefault(share.name, [0.0, 0.0])
        totals[0] += share.cost / len(shares)
        totals[1] += share.gpu_hours / len(shares)
    ordered = sorted(sums, key=lambda name: (name is None, -sums[name][0], name or ""))
    return {name: Share(name, *sums[name]) for name in ordered}


def classes_of(results: Iterable[Result]) -> tuple[str, ...]:
    """The kinds of pods that occurred, in their usual order."""
    names = {class_wait.pod_class for result in results for class_wait in result.wait_by_class}
    return tuple(name for name in CLASSES if name in names)


def class_wait(pod_class: str, field: str, results: Sequence[Result]) -> Spread | None:
    """``field`` of the wait of one kind of pods, over the runs of one policy."""
    waits = [class_wait.wait for result in results for class_wait in result.wait_by_class if class_wait.pod_class == pod_class]
    values = [value for value in (getattr(wait, field) for wait in waits) if value is not None]
    if not values:
        return None
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, min(values), max(values), any(field in wait.at_least for wait in waits))
