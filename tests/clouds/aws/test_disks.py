"""Disks of ended machines: EC2 deletes those it was configured to delete, and a group that leaves some is reported."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.clouds.aws.accounts import Aws, pool
from tests.clouds.aws.providers import Shop

pytestmark = pytest.mark.looptime(False)

LEAVES = "each ended machine leaves a disk that is billed; set it to true"
MAY_LEAVE = LEAVES.replace("leaves", "may leave")


def disk(device: str, **ebs: Any) -> dict[str, Any]:
    return {"DeviceName": device, "Ebs": {"VolumeSize": 100, **ebs}}


def grouped(aws: Aws, *mappings: dict[str, Any], name: str = "gpus") -> None:
    """A group whose launch template has these block devices."""
    aws.template(name, InstanceType="g6.xlarge", BlockDeviceMappings=list(mappings))
    aws.group(name, LaunchTemplate={"LaunchTemplateName": name, "Version": "$Latest"})


def told(aws: Aws, name: str = "gpus") -> list[str]:
    """The findings about the group's disks."""
    return [warning for warning in pool(aws.discover(), name).warnings if "DeleteOnTermination" in warning]


def volumes(aws: Aws) -> list[tuple[str, bool]]:
    """State of each volume, and whether it is large, which means from a template instead of the image."""
    return [
        (describe_volume["State"], describe_volume["Size"] == 100) for describe_volume in aws.client("ec2").describe_volumes()["Volumes"]
    ]


@pytest.fixture
async def bought() -> AsyncIterator[Callable[..., Any]]:
    shops = []

    async def make(*mappings: dict[str, Any]) -> tuple[Shop, list[str]]:
        """A provider, and two machines that it bought in a group with these block devices."""
        aws = Aws()
        grouped(aws, *mappings)
        shops.append(Shop(aws))
        instances = (await shops[-1].provider.buy(await shops[-1].order(2))).instances
        return shops[-1], [instance.id for instance in instances]

    yield make
    for shop in shops:
        await shop.provider.close()


async def give_back(shop: Shop, machines: list[str]) -> None:
    await shop.provider.inventory()
    assert await shop.provider.remove(machines) == dict.fromkeys(machines)
    await shop.pass_time(300)


async def test_an_ended_machine_leaves_no_disk_that_ec2_was_to_delete(bought: Callable[..., Any]) -> None:
    shop, machines = await bought(disk("/dev/xvda"), disk("/dev/xvdf", DeleteOnTermination=True))
    assert volumes(shop.aws) == [("in-use", True)] * 4
    assert told(shop.aws) == []

    await give_back(shop, machines[:1])
    assert volumes(shop.aws) == [("in-use", True)] * 2

    await give_back(shop, machines[1:])
    assert volumes(shop.aws) == []


async def test_a_group_that_keeps_disks_is_reported_before_machines_leave_any(bought: Callable[..., Any]) -> None:
    shop, machines = await bought(disk("/dev/xvdf", DeleteOnTermination=False))
    assert told(shop.aws) == [f"its launch template gpus (version 1) has DeleteOnTermination false for /dev/xvdf: {LEAVES}"]

    await give_back(shop, machines)

    # gpuscaler deletes no disks: it has no permission, and they may hold data that is still needed.
    assert volumes(shop.aws) == [("available", True)] * 2
    assert not any("Volume" in name for name in shop.wrote())


def test_a_disk_without_delete_on_termination_is_reported_unless_it_is_the_images() -> None:
    aws = Aws()
    grouped(aws, disk("/dev/xvda"), disk("/dev/xvdb"), disk("/dev/sda1"), name="of-images")
    grouped(aws, {"DeviceName": "/dev/xvdf", "NoDevice": ""}, {"DeviceName": "/dev/xvdg", "VirtualName": "ephemeral0"}, name="none")
    grouped(aws, disk("/dev/xvda", DeleteOnTermination=False), disk("/dev/xvdf"), disk("/dev/xvdg"), name="both")

    assert (told(aws, "of-images"), told(aws, "none")) == ([], [])
    assert told(aws, "both") == [
        f"its launch template both (version 1) has DeleteOnTermination false for /dev/xvda: {LEAVES}",
        f"its launch template both (version 1) does not give DeleteOnTermination for /dev/xvdf, /dev/xvdg: {MAY_LEAVE}",
    ]


def test_a_version_that_deletes_its_disks_has_no_finding() -> None:
    aws = Aws()
    grouped(aws, disk("/dev/xvdf", DeleteOnTermination=False))
    data = {"InstanceType": "g6.xlarge", "BlockDeviceMappings": [disk("/dev/xvdf", DeleteOnTermination=True)]}
    assert len(told(aws)) == 1

    aws.client("ec2").create_launch_template_version(LaunchTemplateName="gpus", LaunchTemplateData=data)

    assert told(aws) == []


def test_a_launch_configuration_is_reported_only_if_it_keeps_disks() -> None:
    aws = Aws()
    mappings = [disk("/dev/xvdf"), disk("/dev/xvdg", DeleteOnTermination=False)]
    asked = {"ImageId": "ami-1", "InstanceType": "g6.xlarge", "BlockDeviceMappings": mappings}
    aws.client("autoscaling").create_launch_configuration(LaunchConfigurationName="old", **asked)
    aws.group("gpus", LaunchConfigurationName="old")

    (sentence,) = told(aws)

    assert sentence.startswith("its launch configuration old has DeleteOnTermination false for /dev/xvdg: ")
