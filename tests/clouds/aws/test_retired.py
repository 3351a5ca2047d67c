"""Machines of types that their group no longer launches, and of reservations that are over."""

from datetime import UTC, datetime
from typing import Any

from tests.clouds.aws.accounts import DISCOVERED, Aws, pool, reasons

from gpuscaler.clouds.aws.discovery.describing import pool_as_json

RESERVED: dict[str, Any] = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a", "InstanceMatchCriteria": "targeted"}


def wait(aws: Aws, seconds: float) -> None:
    aws.time += seconds
    aws.account.advance()


def test_types_that_a_group_no_longer_launches_keep_their_price_and_are_not_offered() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="p5.48xlarge", DesiredCapacity=1)
    wait(aws, 60.0)
    aws.client("ec2").create_launch_template_version(
        LaunchTemplateName="gpus", LaunchTemplateData={"ImageId": "ami-1", "InstanceType": "g5.xlarge"}
    )
    aws_pool = pool(aws.discover(), "gpus")

    assert [offering.key[1:] for offering in aws_pool.pool.offerings if not offering.retired] == [("on-demand", "g5.xlarge", "us-east-1a")]
    kept = {offering.market: offering for offering in aws_pool.pool.offerings if offering.retired}
    assert {offering.instance_type for offering in kept.values()} == {"p5.48xlarge"}
    assert kept["on-demand"].price == 55.04
    assert aws_pool.pool.chooser == "buyer"
    assert pool_as_json(aws_pool)["resources"]["nvidia.com/gpu"] == "1"


def test_machines_of_an_expired_reservation_stay_in_their_pool_at_the_on_demand_price() -> None:
    aws = Aws()
    end = datetime.fromtimestamp(aws.time + 3600.0, UTC)
    made = aws.client("ec2").create_capacity_reservation(
        InstanceType="g5.xlarge", InstanceCount=2, EndDateType="limited", EndDate=end, **RESERVED
    )
    target = {"CapacityReservationTarget": {"CapacityReservationId": made["CapacityReservation"]["CapacityReservationId"]}}
    aws.template("gpus", InstanceType="g5.xlarge", CapacityReservationSpecification=target)
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "gpus"}, DesiredCapacity=1)
    aws.group("empty", LaunchTemplate={"LaunchTemplateName": "gpus"})
    wait(aws, 3700.0)
    discovered = aws.discover()

    kept = pool(discovered, "gpus")
    assert all(offering.retired for offering in kept.pool.offerings)
    assert {offering.market: offering.price for offering in kept.pool.offerings}["on-demand"] == 1.006
    assert any("is over; it is not used" in warning for warning in kept.warnings)
    assert "is over" in reasons(discovered)["empty"]


def test_mig_devices_and_gpu_shares_declared_by_tags_are_offered_as_parts_of_gpus() -> None:
    resources = "k8s.io/cluster-autoscaler/node-template/resources"
    aws = Aws()
    aws.group(
        "mig", {**DISCOVERED, f"{resources}/nvidia.com/gpu": "0", f"{resources}/nvidia.com/mig-1g.5gb": "56"}, instance_type="p4d.24xlarge"
    )
    aws.group("shared", {**DISCOVERED, f"{resources}/nvidia.com/gpu": "4"}, instance_type="g5.xlarge")
    discovered = aws.discover()

    assert {aws_pool.pool.name: aws_pool.pool.offerings[0].gpus for aws_pool in discovered.pools} == {"mig": 8, "shared": 1}
    assert not any(aws_pool.pool.buys_without_gpus for aws_pool in discovered.pools)
