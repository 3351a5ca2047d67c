"""The meaning of the states of a group's machines."""

from datetime import UTC, datetime

import pytest

from gpuscaler.clouds.aws.api.groups import Group, Machine
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.aws.machines.listing import details_of, instance_of, state_of
from gpuscaler.model.instances import PENDING, RUNNING, STOPPING, TERMINATED
from gpuscaler.model.pools import Pool


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
def test_lifecycle_states_of_aws_are_mapped_to_machine_states(lifecycle: str, state: str) -> None:
    assert state_of(lifecycle) == state


def test_a_machine_of_a_capacity_block_is_reserved_and_ends_with_it() -> None:
    launched = datetime(2026, 11, 1, tzinfo=UTC)
    entry = {"InstanceId": "i-0123456789", "LaunchTime": launched, "InstanceLifecycle": "capacity-block", "CapacityReservationId": "cr-1"}
    detail = details_of([{"Instances": [entry]}])["i-0123456789"]
    group = Group("block", "us-east-1", "arn", {}, 0, 4, 1, ("us-east-1a",))
    aws_pool = AwsPool(Pool("block", ()), group, "named", ends={"cr-1": 5000.0})

    instance = instance_of(Machine("i-0123456789", "p5.48xlarge", "us-east-1a", "InService"), aws_pool, detail)

    assert (instance.market, instance.ends) == ("reserved", 5000.0)


@pytest.mark.parametrize("lifecycle", ["Detaching", "Detached"])
def test_a_detached_machine_keeps_running_and_is_not_listed_as_terminated(lifecycle: str) -> None:
    assert state_of(lifecycle) == STOPPING
