"""LaunchInstances: synchronous, in one zone, with an error for each offering that refused, only once per token."""

from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import code, group_of, instance_ids, make_group, members, mixed

from gpuscaler.embedded.aws.hardware.hardware import Trouble


def ask(scaling: Any, count: int, token: str = "one", **params: Any) -> Any:
    return scaling.launch_instances(AutoScalingGroupName="gpus", RequestedCapacity=count, ClientToken=token, **params)


def limit(aws: Aws, market: str, name: str, zone: str, count: int) -> None:
    aws.account.region("us-east-1").hardware.markets.limits[market, name, zone] = count


def test_the_response_of_launch_instances_has_instances_and_refusals(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge", "g6.xlarge"))
    limit(aws, "spot", "g5.xlarge", "us-east-1a", 1)
    limit(aws, "spot", "g6.xlarge", "us-east-1a", 1)
    answer = ask(scaling, 4)
    where = {"MarketType": "spot", "SubnetId": "subnet-useast1a", "AvailabilityZone": "us-east-1a", "AvailabilityZoneId": "use1-az1"}
    assert sorted(instance["InstanceType"] for instance in answer["Instances"]) == ["g5.xlarge", "g6.xlarge"]
    assert [ident for instance in answer["Instances"] for ident in instance["InstanceIds"]] == instance_ids(scaling)
    text = "There is no Spot capacity available that matches your request."
    refused = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": text, **where}
    assert sorted(answer["Errors"], key=lambda error: str(error["InstanceType"])) == [
        {"InstanceType": "g5.xlarge", **refused},
        {"InstanceType": "g6.xlarge", **refused},
    ]
    # Only the launched instances are desired: no more are launched later.
    assert group_of(scaling)["DesiredCapacity"] == 2
    aws.account.region("us-east-1").hardware.markets.limits.clear()
    aws.later(600)
    assert len(instance_ids(scaling)) == 2


def test_with_a_retry_strategy_the_group_launches_the_rest_later(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge"))
    limit(aws, "spot", "", "", 1)
    ask(scaling, 3, RetryStrategy="retry-with-group-configuration")
    assert (group_of(scaling)["DesiredCapacity"], len(instance_ids(scaling))) == (3, 1)
    aws.account.region("us-east-1").hardware.markets.limits.clear()
    aws.later(120)
    assert len(instance_ids(scaling)) == 3


def test_launch_instances_launches_once_per_token(aws: Aws) -> None:
    scaling = make_group(aws)
    first = ask(scaling, 2)
    assert ask(scaling, 2)["Instances"] == first["Instances"]
    assert len(instance_ids(scaling)) == 2
    with pytest.raises(ClientError) as refused:
        ask(scaling, 3)
    assert code(refused) == "IdempotentParameterMismatch"


@pytest.mark.parametrize(
    "params", [{"AvailabilityZones": ["us-east-1b"]}, {"AvailabilityZoneIds": ["use1-az2"]}, {"SubnetIds": ["subnet-useast1b"]}]
)
def test_launch_instances_requires_a_zone_for_a_group_with_several_zones(aws: Aws, params: dict[str, Any]) -> None:
    scaling = make_group(aws, AvailabilityZones=["us-east-1a", "us-east-1b"])
    with pytest.raises(ClientError, match="must be given for a group with several"):
        ask(scaling, 1)
    ask(scaling, 1, **params)
    assert members(scaling) == [("g5.xlarge", "us-east-1b", "Pending")]
    with pytest.raises(ClientError, match="us-east-1c is not an Availability Zone"):
        ask(scaling, 1, token="two", AvailabilityZones=["us-east-1c"])


def test_an_invalid_launch_is_refused_and_changes_nothing(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge", on_demand=50))
    with pytest.raises(ClientError, match="mix Spot and On-Demand"):
        ask(scaling, 1)
    with pytest.raises(ClientError, match="above max value 5"):
        ask(scaling, 6)
    with pytest.raises(ClientError, match="between 1 and 100"):
        ask(scaling, 101)
    assert (group_of(scaling)["DesiredCapacity"], instance_ids(scaling)) == (0, [])


def test_a_refusal_can_have_any_ec2_error_code(aws: Aws) -> None:
    scaling = make_group(aws)
    for number, reason in enumerate(
        ["Unsupported", "VcpuLimitExceeded", "InsufficientFreeAddressesInSubnet", "ReservationCapacityExceeded"]
    ):
        aws.account.region("us-east-1").hardware.troubles.append(Trouble(reason, market="on-demand", times=1))
        answer = ask(scaling, 1, token=f"token-{number}")
        assert [error["ErrorCode"] for error in answer["Errors"]] == [reason]
        assert answer["Instances"] == []
