"""Instances, fleets, spot prices, reservations, and the smaller services."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import BEGAN, Aws
from tests.embedded.aws.making import code, instance_ids, make_group, mixed

from gpuscaler import catalogue


def fleet(aws: Aws, total: int, *types: str, kind: str = "spot", **params: Any) -> Any:
    ec2 = aws.client("ec2")
    if not ec2.describe_launch_templates()["LaunchTemplates"]:
        ec2.create_launch_template(LaunchTemplateName="template", LaunchTemplateData={"ImageId": "ami-1"})
    overrides = [{"InstanceType": name, "AvailabilityZone": "us-east-1a"} for name in types]
    config = {"LaunchTemplateSpecification": {"LaunchTemplateName": "template", "Version": "$Latest"}, "Overrides": overrides}
    target = {"TotalTargetCapacity": total, "DefaultTargetCapacityType": kind}
    return ec2.create_fleet(Type="instant", LaunchTemplateConfigs=[config], TargetCapacitySpecification=target, **params)


def test_an_instance_is_described_with_its_zone_market_and_tags(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge"), Tags=[{"Key": "team", "Value": "red", "PropagateAtLaunch": True}])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    (ident,) = instance_ids(scaling)
    ec2 = aws.client("ec2")
    (instance,) = ec2.describe_instances(InstanceIds=[ident])["Reservations"][0]["Instances"]
    assert (instance["InstanceType"], instance["InstanceLifecycle"], instance["State"]["Name"]) == ("g5.xlarge", "spot", "running")
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert {tag["Key"]: tag["Value"] for tag in instance["Tags"]} == {"team": "red", "aws:autoscaling:groupName": "gpus"}
    assert instance["PrivateDnsName"] == f"ip-{instance['PrivateIpAddress'].replace('.', '-')}.ec2.internal"
    with pytest.raises(ClientError) as refused:
        ec2.describe_instances(InstanceIds=["i-0nobody"])
    assert code(refused) == "InvalidInstanceID.NotFound"
    rows = scaling.describe_auto_scaling_instances(InstanceIds=[ident])["AutoScalingInstances"]
    assert [(row["AutoScalingGroupName"], row["LifecycleState"]) for row in rows] == [("gpus", "InService")]


def test_a_manually_terminated_instance_is_replaced_by_its_group(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    before = instance_ids(scaling)
    answer = aws.client("ec2").terminate_instances(InstanceIds=before)["TerminatingInstances"][0]
    assert (answer["PreviousState"]["Name"], answer["CurrentState"]["Name"]) == ("running", "shutting-down")
    aws.later(60)
    assert len(instance_ids(scaling)) == 1
    assert instance_ids(scaling) != before


def test_an_instant_fleet_returns_instances_and_errors(aws: Aws) -> None:
    limits = aws.account.region("us-east-1").hardware.markets.limits
    limits["spot", "g5.xlarge", ""] = 1
    limits["spot", "g6.xlarge", ""] = 0
    answer = fleet(aws, 3, "g5.xlarge", "g6.xlarge", ClientToken="token")
    assert [(instance["InstanceType"], instance["Lifecycle"], len(instance["InstanceIds"])) for instance in answer["Instances"]] == [
        ("g5.xlarge", "spot", 1)
    ]
    assert {error["ErrorCode"] for error in answer["Errors"]} == {"InsufficientInstanceCapacity"}
    assert sorted(error["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"] for error in answer["Errors"]) == [
        "g5.xlarge",
        "g6.xlarge",
    ]
    again = fleet(aws, 3, "g5.xlarge", "g6.xlarge", ClientToken="token")
    assert again["Instances"] == answer["Instances"]
    assert len(aws.client("ec2").describe_instances()["Reservations"]) == 1


def test_a_fleet_that_cannot_reach_its_minimum_launches_nothing(aws: Aws) -> None:
    aws.account.region("us-east-1").hardware.markets.limits["on-demand", "", ""] = 1
    answer = fleet(aws, 2, "g5.xlarge", kind="on-demand", OnDemandOptions={"MinTargetCapacity": 2, "SingleInstanceType": True})
    assert answer["Instances"] == []
    assert aws.account.region("us-east-1").hardware.core.list() == ()


def test_spot_prices_are_listed_by_type_and_zone(aws: Aws) -> None:
    prices = aws.client("ec2").describe_spot_price_history(InstanceTypes=["g5.xlarge"], ProductDescriptions=["Linux/UNIX"])[
        "SpotPriceHistory"
    ]
    instance_type = catalogue.lookup("g5.xlarge")
    assert instance_type is not None
    assert {price["AvailabilityZone"] for price in prices} == {"us-east-1a", "us-east-1b", "us-east-1c"}
    assert {float(price["SpotPrice"]) for price in prices} == {instance_type.prices["us-east-1"].spot}


def test_used_capacity_of_reservations_is_counted(aws: Aws) -> None:
    ec2 = aws.client("ec2")
    asked = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1b", "InstanceMatchCriteria": "targeted"}
    made = ec2.create_capacity_reservation(InstanceType="p5.48xlarge", InstanceCount=4, **asked)["CapacityReservation"]
    (reservation,) = ec2.describe_capacity_reservations(CapacityReservationIds=[made["CapacityReservationId"]])["CapacityReservations"]
    assert (reservation["TotalInstanceCount"], reservation["AvailableInstanceCount"], reservation["State"]) == (4, 4, "active")
    assert reservation["StartDate"].timestamp() == BEGAN
    assert ec2.describe_capacity_reservations(Filters=[{"Name": "state", "Values": ["expired"]}])["CapacityReservations"] == []


def test_a_node_group_is_described_with_its_labels_and_taints(aws: Aws) -> None:
    eks = aws.client("eks")
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
    named = {"clusterName": "research", "nodegroupName": "gpu"}
    eks.create_nodegroup(
        **named, subnets=["subnet-useast1a"], nodeRole="arn:aws:iam::123456789012:role/node", labels={"team": "a"}, taints=[taint]
    )
    nodegroup = eks.describe_nodegroup(**named)["nodegroup"]
    assert (nodegroup["labels"], nodegroup["taints"], nodegroup["status"]) == ({"team": "a"}, [taint], "ACTIVE")
    with pytest.raises(eks.exceptions.ResourceNotFoundException):
        eks.describe_nodegroup(clusterName="research", nodegroupName="none")


def test_the_price_list_has_on_demand_prices(aws: Aws) -> None:
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in (("instanceType", "g5.xlarge"), ("regionCode", "us-west-2"), ("operatingSystem", "Linux"))
    ]
    (row,) = aws.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    (term,) = json.loads(row)["terms"]["OnDemand"].values()
    (price,) = term["priceDimensions"].values()
    instance_type = catalogue.lookup("g5.xlarge")
    assert instance_type is not None
    assert float(price["pricePerUnit"]["USD"]) == pytest.approx(instance_type.prices["us-west-2"].on_demand)


def test_the_caller_is_identified_by_its_account(aws: Aws) -> None:
    assert aws.client("sts").get_caller_identity()["Account"] == aws.account.id


def test_a_group_can_launch_from_a_launch_configuration(aws: Aws) -> None:
    scaling = aws.client("autoscaling")
    scaling.create_launch_configuration(LaunchConfigurationName="old", ImageId="ami-1", InstanceType="g4dn.xlarge")
    assert scaling.describe_launch_configurations()["LaunchConfigurations"][0]["InstanceType"] == "g4dn.xlarge"
    sizes = {"MinSize": 1, "MaxSize": 2, "AvailabilityZones": ["us-east-1c"]}
    scaling.create_auto_scaling_group(AutoScalingGroupName="gpus", LaunchConfigurationName="old", **sizes)
    aws.later(2)
    assert len(instance_ids(scaling)) == 1
    with pytest.raises(ClientError, match="launch configurations"):
        scaling.launch_instances(AutoScalingGroupName="gpus", RequestedCapacity=1, ClientToken="x")


def test_a_template_that_targets_a_reservation_gets_exactly_the_reserved_capacity(aws: Aws) -> None:
    ec2, scaling = aws.client("ec2"), aws.client("autoscaling")
    aws.account.region("us-east-1").hardware.markets.limits["on-demand", "", ""] = 0
    asked = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a", "EndDateType": "limited"}
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstanceCount=2, EndDate=datetime.fromtimestamp(BEGAN + 3600, UTC), **asked
    )["CapacityReservation"]
    target = {"CapacityReservationTarget": {"CapacityReservationId": made["CapacityReservationId"]}}
    data = {"InstanceType": "p5.48xlarge", "ImageId": "ami-1", "CapacityReservationSpecification": target}
    ec2.create_launch_template(LaunchTemplateName="reserved", LaunchTemplateData=data)
    sizes = {"MinSize": 0, "MaxSize": 9, "AvailabilityZones": ["us-east-1a"]}
    scaling.create_auto_scaling_group(AutoScalingGroupName="gpus", LaunchTemplate={"LaunchTemplateName": "reserved"}, **sizes)
    answer = scaling.launch_instances(AutoScalingGroupName="gpus", RequestedCapacity=3, ClientToken="one")
    assert [(instance["MarketType"], len(instance["InstanceIds"])) for instance in answer["Instances"]] == [("on-demand", 2)]
    assert [error["ErrorCode"] for error in answer["Errors"]] == ["ReservationCapacityExceeded"]

    def left() -> tuple[int, str]:
        (reservation,) = ec2.describe_capacity_reservations()["CapacityReservations"]
        return reservation["AvailableInstanceCount"], reservation["State"]

    assert left() == (0, "active")
    scaling.terminate_instance_in_auto_scaling_group(InstanceId=instance_ids(scaling)[0], ShouldDecrementDesiredCapacity=True)
    assert left() == (1, "active")
    aws.later(3600)
    assert left() == (0, "expired")
