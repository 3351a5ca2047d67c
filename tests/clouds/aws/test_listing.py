"""What the states of a group's machines mean."""

import pytest

from gpuscaler.clouds.aws.listing import state_of
from gpuscaler.model.instances import PENDING, RUNNING, STOPPING, TERMINATED


@pytest.mark.parametrize(
    ("lifecycle", "state"),
    [
        ("Pending:Wait", PENDING),
        ("InService", RUNNING),
        ("Standby", RUNNING),
        ("Heard of never", RUNNING),
        ("Terminating:Wait", STOPPING),
        ("Terminated", TERMINATED),
    ],
)
def test_a_state_of_a_group_s_machine_is_one_of_ours(lifecycle: str, state: str) -> None:
    assert state_of(lifecycle) == state


@pytest.mark.parametrize("lifecycle", ["Detaching", "Detached"])
def test_a_machine_that_is_detached_goes_on_and_is_not_called_terminated(lifecycle: str) -> None:
    assert state_of(lifecycle) == STOPPING
