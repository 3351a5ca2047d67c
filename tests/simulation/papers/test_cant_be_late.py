"""Jobs with a deadline on a spot series."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpuscaler.simulation.papers.cant_be_late import (
    DEADLINE,
    HOUR,
    ON_DEMAND_PRICE,
    POLICIES,
    SPOT_PRICE,
    STEP,
    cant_be_late_table,
    replay_job,
)
from gpuscaler.simulation.papers.hindsight import cheapest
from gpuscaler.simulation.traces.spot import MarketSeries, SpotError, SpotFile, read_spot

SERIES = Path(__file__).parents[4] / "shared" / "data" / "spot_availability_changes.csv.gz"

STEPS = int(DEADLINE / STEP)
ALWAYS, NEVER = (True,) * STEPS, (False,) * STEPS
#: 36 minutes of spot, 24 without.
FLICKERING = tuple(number % 6 < 4 for number in range(STEPS))
#: Nothing for the first half, everything after.
LATE = tuple(number >= STEPS // 2 for number in range(STEPS))


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("available", [ALWAYS, NEVER, FLICKERING, LATE], ids=["always", "never", "flickering", "late"])
def test_every_policy_meets_the_deadline_of_its_job(name: str, available: tuple[bool, ...]) -> None:
    assert replay_job(available, POLICIES[name]).met


def test_the_on_demand_policy_pays_for_the_work_and_one_changeover() -> None:
    assert replay_job(NEVER, POLICIES["On-demand"]).cost == pytest.approx((48 + 0.2) * ON_DEMAND_PRICE)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"On-demand"}))
def test_a_job_stays_on_spot_that_is_always_available(name: str) -> None:
    assert replay_job(ALWAYS, POLICIES[name]).cost == pytest.approx((48 + 0.2) * SPOT_PRICE)


def test_a_policy_that_only_waits_misses_the_deadline_and_costs_nothing() -> None:
    outcome = replay_job(ALWAYS, lambda job: job.on)

    assert (outcome.met, outcome.cost) == (False, 0.0)


def test_a_reclaimed_machine_costs_another_changeover() -> None:
    gap = tuple(number != 6 for number in range(STEPS))

    outcome = replay_job(gap, POLICIES["Greedy"])

    assert outcome.cost == pytest.approx((48 + 0.4) * SPOT_PRICE)
    assert HOUR == 6 * STEP


def flickering(seed: int) -> tuple[bool, ...]:
    """Periods of random lengths."""
    luck = random.Random(seed)
    spells: list[bool] = []
    while len(spells) < STEPS:
        spells += [len(spells) % 2 == 0] * luck.randint(1, 30)
    return tuple(spells[:STEPS])


@pytest.mark.parametrize("seed", range(20))
def test_no_policy_misses_a_deadline_or_costs_less_than_the_optimum_in_hindsight(seed: int) -> None:
    available = flickering(seed)
    outcomes = [replay_job(available, choose) for choose in POLICIES.values()]
    least = cheapest(np.array([available]), work=1440, changeover=6, step=5, prices=(SPOT_PRICE / 30, ON_DEMAND_PRICE / 30))[0]

    assert all(outcome.met for outcome in outcomes)
    assert least <= min(outcome.cost for outcome in outcomes) + 0.01


@pytest.mark.parametrize(
    ("available", "hours", "price"), [(ALWAYS, 48.2, SPOT_PRICE), (NEVER, 48.2, ON_DEMAND_PRICE)], ids=["spot", "none"]
)
def test_the_optimum_on_a_constant_series_stays_in_one_market(available: tuple[bool, ...], hours: float, price: float) -> None:
    least = cheapest(np.array([available]), work=1440, changeover=6, step=5, prices=(SPOT_PRICE / 30, ON_DEMAND_PRICE / 30))[0]

    assert least == pytest.approx(hours * price, rel=1e-4)


def test_a_changeover_that_does_not_fit_the_time_unit_is_rejected() -> None:
    with pytest.raises(ValueError, match="at most one unit more, got 9"):
        cheapest(np.array([ALWAYS]), work=10, changeover=9, step=5, prices=(1.0, 2.0))


def test_series_shorter_than_a_job_are_rejected() -> None:
    short = MarketSeries("s", "t", "z", ((0.0, 1.0),), 7200.0)

    with pytest.raises(SpotError, match=r"spot\.csv: saw series of availability of at most 7,200 s, expected one of 216,000 s"):
        cant_be_late_table(SpotFile("spot.csv", (short,)))


def test_on_a_real_series_our_policy_costs_less_than_uniform_progress_and_that_less_than_greedy() -> None:
    if not SERIES.exists():
        pytest.skip("needs ../shared/data/spot_availability_changes.csv.gz")
    published = cant_be_late_table(SpotFile("spot.csv", read_spot(SERIES).availability[-1:]))
    costs = {row.policy: row.figures["mean cost, $"] for row in published.rows}
    ranked = [costs[name] for name in ("gpuscaler", "Uniform Progress", "Uniform Progress, strict", "Greedy", "On-demand")]

    assert all(cost < other for cost, other in pairwise(ranked))
    assert all(row.figures["deadlines met, %"] == 100 for row in published.rows)
