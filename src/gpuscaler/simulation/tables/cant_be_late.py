"""A job with a deadline on spot and on-demand machines: the simulation of "Can't Be Late" (Wu et al., NSDI 2024).

A job needs ``WORK`` seconds and has ``DEADLINE``; every ``STEP`` seconds a policy that sees whether spot can be had now chooses a market or
waits. Every change of machine costs ``CHANGEOVER`` seconds without progress, which are paid for. Work done is never lost.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gpuscaler.planning.deadline import ON_DEMAND, SPOT, WAIT, Job, safe
from gpuscaler.simulation.tables import Published, Row
from gpuscaler.simulation.tables.series import SeriesFile

HOUR = 3600.0
WORK, DEADLINE, CHANGEOVER, STEP = 48 * HOUR, 60 * HOUR, 0.2 * HOUR, 600.0
SPOT_PRICE, ON_DEMAND_PRICE = 0.9731, 3.06
PRICES: Mapping[str, float] = {WAIT: 0.0, SPOT: SPOT_PRICE, ON_DEMAND: ON_DEMAND_PRICE}
#: A job begins at every so many seconds of each series.
SPACING = 6 * HOUR

#: A market or waiting, for a job as it stands.
Choose = Callable[[Job], str]


class Outcome(Struct, frozen=True, gc=False):
    """What one job cost in dollars, and whether it was done by its deadline."""

    cost: float
    met: bool


def on_demand(job: Job) -> str:  # noqa: ARG001  # a policy is asked with the job
    """Never anything but on-demand."""
    return ON_DEMAND


def greedy(job: Job) -> str:
    """Spot or nothing, until only on-demand is sure to be done in time."""
    wish = SPOT if job.spot else WAIT
    return wish if safe(job, wish) else ON_DEMAND


def uniform_progress(job: Job) -> str:
    """The paper's policy: as far along as the time that has passed, and a little further before on-demand is left for waiting."""
    rate = job.total / job.allowed
    elapsed, done = job.allowed - job.left, job.total - job.work
    if job.spot and (job.on != ON_DEMAND or done >= (elapsed + 2 * job.changeover) * rate):
        wish = SPOT
    elif done < elapsed * rate or (job.on == ON_DEMAND and done < (elapsed + 2 * job.changeover) * rate):
        wish = ON_DEMAND
    else:
        wish = WAIT
    return wish if safe(job, wish) else ON_DEMAND


def replay(available: Sequence[bool], choose: Choose) -> Outcome:
    """One job, with spot as ``available`` says for every step from its beginning."""
    work, on, warming, cost = WORK, WAIT, 0.0, 0.0
    for number in range(int(DEADLINE / STEP)):
        spot = available[number]
        if on == SPOT and not spot:
            on = WAIT
        left = DEADLINE - number * STEP
        chosen = choose(Job(WORK, DEADLINE, work, left, CHANGEOVER, STEP, on, warming if on != WAIT else 0.0, spot))
        if chosen == SPOT and not spot:
            chosen = WAIT
        if chosen != on:
            warming = CHANGEOVER
        on = chosen
        if on == WAIT:
            continue
        useful = max(0.0, STEP - warming)
        busy = min(STEP, warming + work)
        warming = max(0.0, warming - STEP)
        work = max(0.0, work - useful)
        cost += PRICES[on] * busy / HOUR
        if work <= 0:
            return Outcome(cost, True)
    return Outcome(cost, False)


#: Policies by the name that the table gives them.
POLICIES: Mapping[str, Choose] = {"On-demand": on_demand, "Greedy": greedy, "Uniform Progress": uniform_progress}


def table(file: SeriesFile) -> Published:
    """Every policy on a job that begins every ``SPACING`` seconds of each series; a series that is shorter than a job is left out."""
    steps, apart = int(DEADLINE / STEP), int(SPACING / STEP)
    sampled = [tuple(nodes > 0 for nodes in one.sampled(STEP)) for one in file.series]
    jobs = [series[start : start + steps] for series in sampled for start in range(0, len(series) - steps + 1, apart)]
    rows = []
    for name, choose in POLICIES.items():
        outcomes = [replay(job, choose) for job in jobs]
        cost = sum(outcome.cost for outcome in outcomes) / max(1, len(outcomes))
        met = sum(outcome.met for outcome in outcomes) / max(1, len(outcomes))
        rows.append(Row(name, cost, figures={"deadlines met, %": 100 * met}))
    return Published(
        name="cant-be-late",
        title="Mean cost of a job of 48 h that must be done in 60 h",
        unit="$",
        source="Wu et al., Can't Be Late, NSDI 2024",
        rows=tuple(rows),
        inputs=(f"{len(jobs):,} jobs in {len(sampled)} series, one every {SPACING / HOUR:g} h",),
    )
