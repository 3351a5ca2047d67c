"""Replacements of healthy instances in a group: by an instance refresh, by age, by a health state that a user sets."""

from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import code, instance_ids, make_group, members


def two(aws: Aws, **params: Any) -> Any:
    """A group of two instances in service."""
    scaling = make_group(aws, **params)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=2)
    aws.later(20)
    return scaling


def causes(scaling: Any) -> list[str]:
    return [
        describe_scaling_activity["Cause"]
        for describe_scaling_activity in scaling.describe_scaling_activities(AutoScalingGroupName="gpus")["Activities"]
    ]


def refresh(scaling: Any) -> dict[str, Any]:
    (latest, *_) = scaling.describe_instance_refreshes(AutoScalingGroupName="gpus")["InstanceRefreshes"]
    return {key: latest[key] for key in ("Status", "PercentageComplete", "InstancesToUpdate")}


def watch(aws: Aws, scaling: Any, seconds: int) -> set[int]:
    """The number of instances in service, second by second."""
    counts = set()
    for _ in range(seconds):
        aws.later(1)
        counts.add(sum(state == "InService" for *_, state in members(scaling)))
    return counts


def test_an_instance_refresh_replaces_one_instance_after_the_other(aws: Aws) -> None:
    scaling = two(aws)
    before = set(instance_ids(scaling))

    scaling.start_instance_refresh(AutoScalingGroupName="gpus", Preferences={"InstanceWarmup": 30})
    assert refresh(scaling) == {"Status": "InProgress", "PercentageComplete": 0, "InstancesToUpdate": 2}
    with pytest.raises(ClientError) as refused:
        scaling.start_instance_refresh(AutoScalingGroupName="gpus")
    assert code(refused) == "InstanceRefreshInProgress"

    assert watch(aws, scaling, 300) == {1, 2}
    assert refresh(scaling) == {"Status": "Successful", "PercentageComplete": 100, "InstancesToUpdate": 0}
    assert not before & set(instance_ids(scaling))
    assert sum("taken out of service in response to an instance refresh" in cause for cause in causes(scaling)) == 2


def test_an_instance_refresh_that_may_exceed_the_capacity_launches_before_it_terminates(aws: Aws) -> None:
    scaling = two(aws)

    scaling.start_instance_refresh(
        AutoScalingGroupName="gpus", Preferences={"MinHealthyPercentage": 100, "MaxHealthyPercentage": 150, "InstanceWarmup": 0}
    )

    assert watch(aws, scaling, 300) == {2, 3}
    assert refresh(scaling)["Status"] == "Successful"


@pytest.mark.parametrize(("how", "status", "kept"), [("Wait", "Failed", 1), ("Ignore", "Successful", 1), ("Refresh", "Successful", 0)])
def test_an_instance_refresh_waits_for_skips_or_terminates_protected_instances(how: str, status: str, kept: int, aws: Aws) -> None:
    scaling = two(aws)
    held = instance_ids(scaling)[:1]
    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=held, ProtectedFromScaleIn=True)

    scaling.start_instance_refresh(AutoScalingGroupName="gpus", Preferences={"ScaleInProtectedInstances": how, "InstanceWarmup": 0})
    aws.later(3900)

    assert refresh(scaling)["Status"] == status
    assert len(set(held) & set(instance_ids(scaling))) == kept


def test_a_cancelled_instance_refresh_replaces_no_further_instance(aws: Aws) -> None:
    scaling = two(aws)
    scaling.start_instance_refresh(AutoScalingGroupName="gpus", Preferences={"InstanceWarmup": 600})
    aws.later(120)

    scaling.cancel_instance_refresh(AutoScalingGroupName="gpus")
    before = instance_ids(scaling)
    aws.later(1800)

    assert (refresh(scaling)["Status"], instance_ids(scaling)) == ("Cancelled", before)


def test_an_instance_over_its_maximum_lifetime_is_replaced(aws: Aws) -> None:
    scaling = two(aws, MaxInstanceLifetime=86_400)
    before = set(instance_ids(scaling))

    aws.later(86_300)
    assert set(instance_ids(scaling)) == before
    aws.later(300)

    assert not before & set(instance_ids(scaling))
    assert len(instance_ids(scaling)) == 2


def test_an_instance_set_to_unhealthy_is_replaced_even_if_it_is_protected(aws: Aws) -> None:
    scaling = two(aws)
    sick, well = instance_ids(scaling)
    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=[sick, well], ProtectedFromScaleIn=True)

    scaling.set_instance_health(InstanceId=sick, HealthStatus="Unhealthy")
    aws.later(120)

    assert sick not in instance_ids(scaling)
    assert well in instance_ids(scaling)
    assert len(instance_ids(scaling)) == 2
    assert any("in response to a user health-check" in cause for cause in causes(scaling))
