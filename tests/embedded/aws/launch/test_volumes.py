"""EBS volumes of instances: which exist, and which remain when an instance is terminated."""

from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import TEMPLATE, code, instance_ids, make_group


def disk(device: str, **ebs: Any) -> dict[str, Any]:
    return {"DeviceName": device, "Ebs": {"VolumeSize": 100, **ebs}}


def launched(aws: Aws, *mappings: dict[str, Any], **data: Any) -> tuple[Any, str]:
    """EC2's client, and the only instance of a group whose template has ``mappings``."""
    ec2 = aws.client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName="template", LaunchTemplateData={**TEMPLATE, "BlockDeviceMappings": list(mappings), **data}
    )
    scaling = make_group(aws)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    (ident,) = instance_ids(scaling)
    return ec2, ident


def devices(ec2: Any, ident: str) -> dict[str, bool]:
    """Devices of an instance, with whether their volumes are deleted with it."""
    (instance,) = ec2.describe_instances(InstanceIds=[ident])["Reservations"][0]["Instances"]
    return {mapping["DeviceName"]: mapping["Ebs"]["DeleteOnTermination"] for mapping in instance["BlockDeviceMappings"]}


def end(aws: Aws, ident: str) -> None:
    scaling = aws.client("autoscaling")
    scaling.terminate_instance_in_auto_scaling_group(InstanceId=ident, ShouldDecrementDesiredCapacity=True)
    aws.later(300)


def test_an_instances_root_volume_is_deleted_with_the_instance(aws: Aws) -> None:
    ec2, ident = launched(aws)
    (instance,) = ec2.describe_instances(InstanceIds=[ident])["Reservations"][0]["Instances"]
    (volume,) = ec2.describe_volumes()["Volumes"]
    (image,) = ec2.describe_images(ImageIds=[instance["ImageId"]])["Images"]
    (mapping,) = instance["BlockDeviceMappings"]
    assert (instance["RootDeviceType"], instance["RootDeviceName"]) == ("ebs", image["RootDeviceName"])
    assert (mapping["DeviceName"], mapping["Ebs"]["VolumeId"]) == (image["RootDeviceName"], volume["VolumeId"])
    assert (volume["State"], volume["Size"], volume["AvailabilityZone"]) == ("in-use", 20, "us-east-1a")
    (attachment,) = volume["Attachments"]
    assert (attachment["InstanceId"], attachment["Device"], attachment["DeleteOnTermination"]) == (ident, "/dev/xvda", True)

    end(aws, ident)

    assert ec2.describe_volumes()["Volumes"] == []
    assert devices(ec2, ident) == {}


def test_volumes_without_delete_on_termination_remain_available(aws: Aws) -> None:
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "team", "Value": "red"}]}]
    mappings = (disk("/dev/xvdf", DeleteOnTermination=False), disk("/dev/xvdg", DeleteOnTermination=True))
    ec2, ident = launched(aws, *mappings, TagSpecifications=tags)
    assert devices(ec2, ident) == {"/dev/xvda": True, "/dev/xvdf": False, "/dev/xvdg": True}

    end(aws, ident)

    (left,) = ec2.describe_volumes()["Volumes"]
    assert (left["State"], left["Attachments"], left["Size"], left["Tags"]) == ("available", [], 100, [{"Key": "team", "Value": "red"}])


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (disk("/dev/xvda", VolumeType="gp3"), {"/dev/xvda": True}),
        (disk("/dev/sda1", DeleteOnTermination=False), {"/dev/sda1": False}),
        (disk("/dev/xvdf"), {"/dev/xvda": True, "/dev/xvdf": False}),
        ({"DeviceName": "/dev/xvdf", "NoDevice": ""}, {"/dev/xvda": True}),
        ({"DeviceName": "/dev/xvdf", "VirtualName": "ephemeral0"}, {"/dev/xvda": True}),
    ],
)
def test_by_default_only_the_root_volume_of_a_template_is_deleted(aws: Aws, mapping: dict[str, Any], expected: dict[str, bool]) -> None:
    assert devices(*launched(aws, mapping)) == expected


def test_by_default_volumes_of_a_launch_configuration_are_deleted(aws: Aws) -> None:
    scaling, ec2 = aws.client("autoscaling"), aws.client("ec2")
    mappings = [disk("/dev/xvdf"), disk("/dev/xvdg", DeleteOnTermination=False)]
    asked = {"ImageId": "ami-1", "InstanceType": "g4dn.xlarge", "BlockDeviceMappings": mappings}
    scaling.create_launch_configuration(LaunchConfigurationName="old", **asked)
    sizes = {"MinSize": 1, "MaxSize": 1, "AvailabilityZones": ["us-east-1a"]}
    scaling.create_auto_scaling_group(AutoScalingGroupName="gpus", LaunchConfigurationName="old", **sizes)
    aws.later(20)
    assert devices(ec2, *instance_ids(scaling)) == {"/dev/xvda": True, "/dev/xvdf": True, "/dev/xvdg": False}


def test_volumes_stay_attached_until_their_instance_is_terminated(aws: Aws) -> None:
    ec2, ident = launched(aws)
    ec2.terminate_instances(InstanceIds=[ident])
    assert devices(ec2, ident) == {"/dev/xvda": True}
    assert [describe_volume["State"] for describe_volume in ec2.describe_volumes()["Volumes"]] == ["in-use"]


def test_volumes_are_found_by_id_and_by_filters(aws: Aws) -> None:
    ec2, ident = launched(aws, disk("/dev/xvdf", DeleteOnTermination=False))

    def found(**params: Any) -> list[str]:
        return [describe_volume["Attachments"][0]["Device"] for describe_volume in ec2.describe_volumes(**params)["Volumes"]]

    def by(name: str, value: str) -> list[str]:
        return found(Filters=[{"Name": name, "Values": [value]}])

    assert by("attachment.instance-id", ident) == ["/dev/xvda", "/dev/xvdf"]
    assert by("attachment.delete-on-termination", "false") == ["/dev/xvdf"]
    assert by("attachment.device", "/dev/xvda") == ["/dev/xvda"]
    assert by("status", "available") == []
    (volume,) = ec2.describe_volumes(Filters=[{"Name": "attachment.device", "Values": ["/dev/xvdf"]}])["Volumes"]
    assert found(VolumeIds=[volume["VolumeId"]]) == ["/dev/xvdf"]
    with pytest.raises(ClientError) as refused:
        ec2.describe_volumes(VolumeIds=["vol-0nothing"])
    assert code(refused) == "InvalidVolume.NotFound"
