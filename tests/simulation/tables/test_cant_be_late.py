"""Jobs with a deadline on a spot series."""

import pytest

from gpuscaler.simulation.tables.cant_be_late import DEADLINE, HOUR, ON_DEMAND_PRICE, POLICIES, SPOT_PRICE, STEP, replay

STEPS = int(DEADLINE / STEP)
ALWAYS, NEVER = (True,) * STEPS, (False,) * STEPS
#: 36 minutes of spot, 24 without.
FLICKERING = tuple(number % 6 < 4 for number in range(STEPS))
#: Nothing for the first half, everything after.
LATE = tuple(number >= STEPS // 2 for number in range(STEPS))


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("available", [ALWAYS, NEVER, FLICKERING, LATE], ids=["always", "never", "flickering", "late"])
def test_every_policy_meets_the_deadline(name: str, available: tuple[bool, ...]) -> None:
    assert replay(available, POLICIES[name]).met


def test_on_demand_pays_for_the_work_and_one_changeover() -> None:
    assert replay(NEVER, POLICIES["On-demand"]).cost == pytest.approx((48 + 0.2) * ON_DEMAND_PRICE)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"On-demand"}))
def test_a_job_stays_on_spot_that_is_always_there(name: str) -> None:
    assert replay(ALWAYS, POLICIES[name]).cost == pytest.approx((48 + 0.2) * SPOT_PRICE)


def test_a_policy_that_only_waits_misses_the_deadline_and_costs_nothing() -> None:
    outcome = replay(ALWAYS, lambda job: "")

    assert (outcome.met, outcome.cost) == (False, 0.0)


def test_a_machine_that_is_reclaimed_costs_another_changeover() -> None:
    gap = tuple(number != 6 for number in range(STEPS))

    outcome = replay(gap, POLICIES["Greedy"])

    assert outcome.cost == pytest.approx((48 + 0.4) * SPOT_PRICE)
    assert HOUR == 6 * STEP
