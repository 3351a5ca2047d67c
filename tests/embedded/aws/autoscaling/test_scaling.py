"""Reactions of groups to a changed desired capacity: launch, fail, retry, shrink, balance."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import BEGAN, Aws
from tests.embedded.aws.making import activity_messages, code, group_of, instance_ids, make_group, members, mixed

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.hardware import Trouble

SPOT_DRY = (
    "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available that matches your request. "
    "Launching EC2 instance failed."
)


def hardware(aws: Aws) -> Any:
    return aws.account.region("us-east-1").hardware


def test_an_increased_desired_capacity_launches_instances_a_moment_later(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=2)
    assert members(scaling) == []
    aws.later(1)
    assert members(scaling) == [("g5.xlarge", "us-east-1a", "Pending")] * 2
    aws.later(10)
    assert members(scaling) == [("g5.xlarge", "us-east-1a", "InService")] * 2
    activities = scaling.describe_scaling_activities(AutoScalingGroupName="gpus")["Activities"]
    assert [activity["StatusCode"] for activity in activities] == ["Successful", "Successful"]
    assert activities[0]["Description"] == f"Launching a new EC2 instance: {instance_ids(scaling)[1]}"
    assert "a user request explicitly set group desired capacity changing the desired capacity from 0 to 2." in activities[0]["Cause"]


def test_a_launch_without_capacity_fails_in_an_activity_and_is_retried(make_aws: Callable[..., Aws]) -> None:
    aws = make_aws(Conditions(activity=20.0, retry=60.0))
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge", "g5.2xlarge"))
    hardware(aws).markets.limits["spot", "", "us-east-1a"] = 0
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=3)
    aws.later(20)
    assert activity_messages(scaling) == []
    aws.later(1)
    assert activity_messages(scaling) == [("Failed", SPOT_DRY)]
    # It keeps trying, and launches what becomes available: a surplus if the caller has bought elsewhere since.
    hardware(aws).markets.limits.clear()
    aws.later(40)
    assert [kind for kind, _, _ in members(scaling)] == ["g5.xlarge"] * 3


def test_activities_of_launches_name_the_zone_that_was_tried(aws: Aws) -> None:
    scaling = make_group(aws, AvailabilityZones=["us-east-1b"])
    aws.account.region("us-east-1").hardware.troubles.append(Trouble("InsufficientInstanceCapacity", times=1))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(90)
    activities = scaling.describe_scaling_activities(AutoScalingGroupName="gpus")["Activities"]
    assert [activity["StatusCode"] for activity in activities] == ["Successful", "Failed"]
    assert {activity["Details"] for activity in activities} == {'{"Subnet ID": "subnet-useast1b", "Availability Zone": "us-east-1b"}'}


def test_available_capacity_is_granted_and_the_rest_fails(aws: Aws) -> None:
    scaling = make_group(aws)
    hardware(aws).markets.limits["on-demand", "g5.xlarge", ""] = 2
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=5)
    aws.later(2)
    assert len(members(scaling)) == 2
    status, message = activity_messages(scaling)[0]
    assert status == "Failed"
    assert message.startswith("We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a).")


def test_other_types_and_zones_of_the_group_are_tried(aws: Aws) -> None:
    scaling = make_group(
        aws, AvailabilityZones=["us-east-1a", "us-east-1b"], MixedInstancesPolicy=mixed("g5.xlarge", "g6.xlarge", on_demand=100)
    )
    hardware(aws).markets.limits["on-demand", "g5.xlarge", ""] = 0
    hardware(aws).markets.limits["on-demand", "g6.xlarge", "us-east-1b"] = 0
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=4)
    aws.later(2)
    assert [(kind, zone) for kind, zone, _ in members(scaling)] == [("g6.xlarge", "us-east-1a")] * 4
    assert sum(status == "Failed" for status, _ in activity_messages(scaling)) == 1


@pytest.mark.parametrize(
    ("reason_code", "words"),
    [
        (
            "MaxSpotInstanceCountExceeded",
            "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded",
        ),
        ("UnfulfillableCapacity", "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration."),
        ("InvalidFleetConfiguration", "Your requested instance type (g5.xlarge) is not supported in your requested Availability Zone"),
        ("InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet 'subnet-useast1a'"),
    ],
)
def test_each_launch_failure_has_its_aws_message(aws: Aws, reason_code: str, words: str) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge"))
    hardware(aws).troubles.append(Trouble(reason_code, times=1))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(2)
    assert words in activity_messages(scaling)[0][1]
    aws.later(60)
    assert len(members(scaling)) == 1


def test_the_vcpu_quota_of_a_family_applies_to_all_its_types(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge", "g6.2xlarge", on_demand=100))
    hardware(aws).vcpu_limits["G and VT", "on-demand"] = 8
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=2)
    aws.later(2)
    assert len(members(scaling)) == 2
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=3)
    aws.later(2)
    assert (
        "VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of 8 allows"
        in activity_messages(scaling)[0][1]
    )


def test_a_maximum_price_below_the_market_is_refused(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge", SpotMaxPrice="0.01"))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(2)
    assert "SpotMaxPriceTooLow - Your Spot request price of 0.01 is lower than the minimum required" in activity_messages(scaling)[0][1]


def test_a_launch_can_fail_after_it_was_accepted(aws: Aws) -> None:
    scaling = make_group(aws)
    hardware(aws).troubles.append(Trouble("Client.InternalError", times=1))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(1)
    assert [state for *_, state in members(scaling)] == ["Pending"]
    aws.later(10)
    assert members(scaling) == []
    assert activity_messages(scaling) == [("Failed", "Client.InternalError: Client error on launch.")]


def test_the_shares_of_on_demand_and_spot_apply_to_the_whole_group(aws: Aws) -> None:
    scaling = make_group(aws, MaxSize=20, MixedInstancesPolicy=mixed("g5.xlarge", on_demand=50, base=2))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=6)
    aws.later(2)
    region = aws.account.region("us-east-1")
    markets = [region.instances[instance].machine.offering.market for instance in instance_ids(scaling)]
    assert (markets.count("on-demand"), markets.count("spot")) == (4, 2)


def test_instance_weights_count_towards_the_desired_capacity(aws: Aws) -> None:
    scaling = make_group(aws, MaxSize=20, MixedInstancesPolicy=mixed("g5.12xlarge=4", on_demand=100))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=6)
    aws.later(2)
    instances = group_of(scaling)["Instances"]
    assert [instance["WeightedCapacity"] for instance in instances] == ["4", "4"]


def test_instances_are_distributed_equally_over_zones(aws: Aws) -> None:
    scaling = make_group(aws, MaxSize=9, AvailabilityZones=["us-east-1a", "us-east-1b", "us-east-1c"])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=6)
    aws.later(2)
    zones = [zone for _, zone, _ in members(scaling)]
    assert {zone: zones.count(zone) for zone in zones} == {"us-east-1a": 2, "us-east-1b": 2, "us-east-1c": 2}


@pytest.mark.parametrize("suspended", [True, False])
def test_a_group_with_uneven_zones_is_rebalanced_unless_rebalancing_is_suspended(aws: Aws, suspended: bool) -> None:
    scaling = make_group(aws, AvailabilityZones=["us-east-1a", "us-east-1b"])
    hardware(aws).markets.limits["", "", "us-east-1b"] = 0
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=4)
    aws.later(20)
    hardware(aws).markets.limits.clear()
    if suspended:
        scaling.suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["AZRebalance"])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=4)
    aws.later(300)
    zones = sorted(zone[-1] for _, zone, _ in members(scaling))
    assert zones == (["a"] * 4 if suspended else ["a", "a", "b", "b"])


def test_zone_rebalancing_launches_before_it_terminates_and_keeps_protected_instances(aws: Aws) -> None:
    scaling = make_group(aws, AvailabilityZones=["us-east-1a", "us-east-1b"])
    hardware(aws).markets.limits["", "", "us-east-1b"] = 0
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=2)
    aws.later(20)
    both = instance_ids(scaling)
    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=both, ProtectedFromScaleIn=True)
    hardware(aws).markets.limits.clear()
    aws.later(600)
    assert instance_ids(scaling) == both

    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=both[:1], ProtectedFromScaleIn=False)
    aws.later(2)
    assert [(zone[-1], state) for _, zone, state in members(scaling)] == [("a", "InService"), ("a", "InService"), ("b", "Pending")]
    aws.later(300)
    assert sorted(zone[-1] for _, zone, _ in members(scaling)) == ["a", "b"]
    assert both[1] in instance_ids(scaling)
    causes = [
        describe_scaling_activity["Cause"]
        for describe_scaling_activity in scaling.describe_scaling_activities(AutoScalingGroupName="gpus")["Activities"]
    ]
    assert any("instances were launched to balance instances in zones us-east-1b with other zones" in cause for cause in causes)


def test_a_lowered_capacity_terminates_unprotected_instances_by_the_termination_policy(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=3)
    aws.later(20)
    kept = instance_ids(scaling)[:1]
    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=kept, ProtectedFromScaleIn=True)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=0)
    aws.later(60)
    assert instance_ids(scaling) == kept
    assert group_of(scaling)["DesiredCapacity"] == 0
    assert activity_messages(scaling)[0][1] == (
        "Could not scale to desired capacity because all remaining instances are protected from scale-in."
    )


def test_terminating_a_named_instance_can_lower_the_desired_capacity(aws: Aws) -> None:
    scaling = make_group(aws, MinSize=1)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=2)
    aws.later(20)
    ended, stays = instance_ids(scaling)
    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=[ended, stays], ProtectedFromScaleIn=True)
    answer = scaling.terminate_instance_in_auto_scaling_group(InstanceId=ended, ShouldDecrementDesiredCapacity=True)
    assert answer["Activity"]["Description"] == f"Terminating EC2 instance: {ended}"
    assert group_of(scaling)["DesiredCapacity"] == 1
    assert [state for *_, state in members(scaling)] == ["Terminating", "InService"]
    aws.later(60)
    assert instance_ids(scaling) == [stays]
    with pytest.raises(ClientError, match=r"desiredSize equals minSize \(1\)") as refused:
        scaling.terminate_instance_in_auto_scaling_group(InstanceId=stays, ShouldDecrementDesiredCapacity=True)
    assert code(refused) == "ValidationError"
    scaling.terminate_instance_in_auto_scaling_group(InstanceId=stays, ShouldDecrementDesiredCapacity=False)
    aws.later(60)
    assert len(instance_ids(scaling)) == 1
    assert instance_ids(scaling) != [stays]
    with pytest.raises(ClientError, match="No managed instance found"):
        scaling.terminate_instance_in_auto_scaling_group(InstanceId=ended, ShouldDecrementDesiredCapacity=True)


def test_desired_capacity_stays_between_min_and_max(aws: Aws) -> None:
    scaling = make_group(aws, MinSize=1)
    for wanted, words in ((6, "above max value 5"), (0, "below min value 1")):
        with pytest.raises(ClientError, match=words) as refused:
            scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=wanted)
        assert code(refused) == "ValidationError"
    with pytest.raises(ClientError, match="AutoScalingGroup name not found"):
        scaling.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=1)


def test_nothing_is_launched_while_the_launch_process_is_suspended(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["Launch"])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(300)
    assert members(scaling) == []
    assert activity_messages(scaling) == []
    scaling.resume_processes(AutoScalingGroupName="gpus", ScalingProcesses=["Launch"])
    aws.later(2)
    assert len(members(scaling)) == 1


def test_descriptions_of_groups_can_lag_behind_writes(make_aws: Callable[..., Aws]) -> None:
    aws = make_aws(Conditions(read_lag=5.0))
    scaling = make_group(aws)
    assert scaling.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    aws.later(6)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(4)
    assert (group_of(scaling)["DesiredCapacity"], len(members(scaling))) == (0, 0)
    aws.later(1.5)
    assert (group_of(scaling)["DesiredCapacity"], len(members(scaling))) == (1, 0)
    aws.later(1)
    assert members(scaling) == [("g5.xlarge", "us-east-1a", "Pending")]


def test_activities_are_listed_from_a_given_time_and_in_pages(aws: Aws) -> None:
    scaling = make_group(aws)
    hardware(aws).markets.limits["", "", ""] = 0
    for wanted in (1, 2, 3):
        scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=wanted)
        aws.later(10)
    since = (datetime.fromtimestamp(BEGAN, UTC) + timedelta(seconds=5)).isoformat()
    filters = [{"Name": "StartTimeLowerBound", "Values": [since]}, {"Name": "Status", "Values": ["Failed"]}]
    pages = scaling.get_paginator("describe_scaling_activities").paginate(
        AutoScalingGroupName="gpus", Filters=filters, PaginationConfig={"PageSize": 1}
    )
    starts = [[activity["StartTime"].timestamp() - BEGAN for activity in page["Activities"]] for page in pages]
    assert starts == [[21.0], [11.0]]


def test_deleted_groups_disappear_with_their_instances(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    with pytest.raises(ClientError) as refused:
        scaling.delete_auto_scaling_group(AutoScalingGroupName="gpus")
    assert code(refused) == "ResourceInUse"
    scaling.delete_auto_scaling_group(AutoScalingGroupName="gpus", ForceDelete=True)
    aws.later(60)
    assert scaling.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert hardware(aws).core.list() == ()
