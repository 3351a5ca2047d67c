"""Free words of replies in each spelling that AWS may use."""

import pytest
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import make_group

from gpuscaler.embedded.aws.conditions import Conditions


def words(aws: Aws) -> dict[str, str]:
    """Market, lifecycle, health and state of one machine, as four calls spell them."""
    scaling = make_group(aws)
    answer = scaling.launch_instances(AutoScalingGroupName="gpus", RequestedCapacity=1, ClientToken="one", AvailabilityZones=["us-east-1a"])
    aws.later(20)
    (member,) = scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]["Instances"]
    (instance,) = aws.client("ec2").describe_instances()["Reservations"][0]["Instances"]
    return {
        "market": answer["Instances"][0]["MarketType"],
        "lifecycle": member["LifecycleState"],
        "health": member["HealthStatus"],
        "state": instance["State"]["Name"],
    }


def test_enumeration_values_are_spelt_as_in_the_api_reference_by_default() -> None:
    assert words(Aws()) == {"market": "on-demand", "lifecycle": "InService", "health": "Healthy", "state": "running"}


def test_markets_can_be_spelt_as_in_the_user_guide() -> None:
    spelled = words(Aws(Conditions(spelling="guide")))

    assert spelled == {"market": "OnDemand", "lifecycle": "InService", "health": "Healthy", "state": "running"}


@pytest.mark.parametrize("seed", range(3))
def test_enumeration_values_can_have_any_case(seed: int) -> None:
    aws = Aws(Conditions(spelling="random"), seed=seed)

    spelled = words(aws)

    assert {key: word.lower() for key, word in spelled.items()} == {
        "market": "on-demand",
        "lifecycle": "inservice",
        "health": "healthy",
        "state": "running",
    }
    assert spelled != words(Aws())
