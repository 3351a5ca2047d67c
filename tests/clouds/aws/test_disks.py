"""Disks of ended machines: EC2 deletes the disks that it was configured to delete, and a group that leaves disks behind is reported."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.clouds.aws.accounts import Aws, pool
from tests.clouds.aws.providers import ProviderHarness

pytestmark = pytest.mark.looptime(False)

LEAVES = "each ended machine leaves a disk that is billed; set it to true"
MAY_LEAVE = LEAVES.replace("leaves", "may leave")


def disk(device: str, **ebs: Any) -> dict[str, Any]:
    return {"DeviceName": device, "Ebs": {"VolumeSize": 100, **ebs}}


def create_group(aws: Aws, *mappings: dict[str, Any], name: str = "gpus") -> None:
    """A group whose launch template has these block devices."""
    aws.template(name, InstanceType="g6.xlarge", BlockDeviceMappings=list(mappings))
    aws.group(name, LaunchTemplate={"LaunchTemplateName": name, "Version": "$Latest"})


def disk_warnings(aws: Aws, name: str = "gpus") -> list[str]:
    """The findings about the group's disks."""
    return [warning for warning in pool(aws.discover(), name).warnings if "DeleteOnTermination" in warning]


def volumes(aws: Aws) -> list[tuple[str, bool]]:
    """State of each volume, and whether it is large, which means from a template instead of the image."""
    return [(volume["State"], volume["Size"] == 100) for volume in aws.client("ec2").describe_volumes()["Volumes"]]


@pytest.fixture
async def bought() -> AsyncIterator[Callable[..., Any]]:
    harnesses = []

    async def make(*mappings: dict[str, Any]) -> tuple[ProviderHarness, list[str]]:
        """A provider, and two machines that it bought in a group with these block devices."""
        aws = Aws()
        create_group(aws, *mappings)
        harnesses.append(ProviderHarness(aws))
        instances = (await harnesses[-1].provider.buy(await harnesses[-1].order(2))).instances
        return harnesses[-1], [instance.id for instance in instances]

    yield make
    for harness in harnesses:
        await harness.provider.close()


async def end_machines(harness: ProviderHarness, machines: list[str]) -> None:
    await harness.provider.inventory()
    assert await harness.provider.remove(machines) == dict.fromkeys(machines)
    await harness.pass_time(300)


async def test_ec2_deletes_the_disks_of_an_ended_machine(bought: Callable[..., Any]) -> None:
    harness, machines = await bought(disk("/dev/xvda"), disk("/dev/xvdf", DeleteOnTermination=True))
    assert volumes(harness.aws) == [("in-use", True)] * 4
    assert disk_warnings(harness.aws) == []

    await end_machines(harness, machines[:1])
    assert volumes(harness.aws) == [("in-use", True)] * 2

    await end_machines(harness, machines[1:])
    assert volumes(harness.aws) == []


async def test_a_group_that_keeps_disks_is_reported_before_machines_leave_any(bought: Callable[..., Any]) -> None:
    harness, machines = await bought(disk("/dev/xvdf", DeleteOnTermination=False))
    assert disk_warnings(harness.aws) == [f"its launch template gpus (version 1) has DeleteOnTermination false for /dev/xvdf: {LEAVES}"]

    await end_machines(harness, machines)

    # gpuscaler deletes no disks: it has no permission, and they may hold data that is still needed.
    assert volumes(harness.aws) == [("available", True)] * 2
    assert not any("Volume" in name for name in harness.write_counts())


def test_a_disk_without_delete_on_termination_is_reported_unless_the_image_defines_it() -> None:
    aws = Aws()
    create_group(aws, disk("/dev/xvda"), disk("/dev/xvdb"), disk("/dev/sda1"), name="of-images")
    create_group(aws, {"DeviceName": "/dev/xvdf", "NoDevice": ""}, {"DeviceName": "/dev/xvdg", "VirtualName": "ephemeral0"}, name="none")
    create_group(aws, disk("/dev/xvda", DeleteOnTermination=False), disk("/dev/xvdf"), disk("/dev/xvdg"), name="both")

    assert (disk_warnings(aws, "of-images"), disk_warnings(aws, "none")) == ([], [])
    assert disk_warnings(aws, "both") == [
        f"its launch template both (version 1) has DeleteOnTermination false for /dev/xvda: {LEAVES}",
        f"its launch template both (version 1) does not give DeleteOnTermination for /dev/xvdf, /dev/xvdg: {MAY_LEAVE}",
    ]


def test_a_launch_template_version_that_deletes_its_disks_has_no_finding() -> None:
    aws = Aws()
    create_group(aws, disk("/dev/xvdf", DeleteOnTermination=False))
    data = {"InstanceType": "g6.xlarge", "BlockDeviceMappings": [disk("/dev/xvdf", DeleteOnTermination=True)]}
    assert len(disk_warnings(aws)) == 1

    aws.client("ec2").create_launch_template_version(LaunchTemplateName="gpus", LaunchTemplateData=data)

    assert disk_warnings(aws) == []


def test_a_launch_configuration_is_reported_only_if_it_keeps_disks() -> None:
    aws = Aws()
    mappings = [disk("/dev/xvdf"), disk("/dev/xvdg", DeleteOnTermination=False)]
    parameters = {"ImageId": "ami-1", "InstanceType": "g6.xlarge", "BlockDeviceMappings": mappings}
    aws.client("autoscaling").create_launch_configuration(LaunchConfigurationName="old", **parameters)
    aws.group("gpus", LaunchConfigurationName="old")

    (sentence,) = disk_warnings(aws)

    assert sentence.startswith("its launch configuration old has DeleteOnTermination false for /dev/xvdg: ")
