"""What DESIGN promises of every schedule (I1 to I8), for as many schedules as there is time for."""

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.control.schedules import Schedules

#: Schedules of one test; together they make RUNS (`make soak RUNS=N SEED=N`).
EACH = 25
RUNS = int(os.environ.get("SOAK_RUNS", "1000"))
SEED = int(os.environ.get("SOAK_SEED", "0"))


@pytest.mark.parametrize("part", range(max(1, RUNS // EACH)))
def test_every_schedule_keeps_the_invariants(part: int) -> None:
    quiet = settings(
        max_examples=EACH,
        stateful_step_count=14,
        deadline=None,
        database=None,
        # A failing schedule is printed as it is: to shorten one takes hundreds of runs.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    seed(SEED * 1_000_000 + part)(run_state_machine_as_test)(Schedules, settings=quiet)
