"""The invariants I1 to I8 for random schedules, as many as there is time for."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.control.schedules import Schedules
from tests.soaking import RUNS, SEED, again

#: Schedules of one test; together they make RUNS (`make soak RUNS=N SEED=N`).
EACH = 25


@pytest.mark.parametrize("part", range(max(1, RUNS // EACH)))
def test_every_random_schedule_keeps_the_invariants(part: int) -> None:
    run_part(Schedules, part)


def run_part(machine: type[RuleBasedStateMachine], part: int) -> None:
    """Run the schedules of one test; if one fails, the error shows how to run it again, beside the steps that Hypothesis prints."""
    quiet = settings(
        max_examples=EACH,
        stateful_step_count=14,
        deadline=None,
        database=None,
        # A failing schedule is printed unchanged: shrinking it takes hundreds of runs.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )

    # Hypothesis takes the seed only from the function that creates the machine.
    @seed(SEED * 1_000_000 + part)
    def make() -> RuleBasedStateMachine:
        return machine()

    try:
        run_state_machine_as_test(make, settings=quiet)  # type: ignore[arg-type]  # its documentation takes any callable that makes one
    except BaseException as error:
        error.add_note(again(f"test_every_random_schedule_keeps_the_invariants[{part}]"))
        raise
