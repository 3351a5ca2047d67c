"""The same calls to our endpoint and to moto's server, where moto behaves like AWS: requests parse alike, and answers have one form.

Calls that moto lacks or handles differently are not made: spot, scaling activities, LaunchInstances, hooks that pause, capacity errors,
and a desired capacity above the maximum, which it accepts.
"""

import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws, plain_client

pytestmark = pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed: make setup")

#: Makes a boto3 client of a service; "later" lets a minute and a half pass.
Client = Callable[[str], Any]


@pytest.fixture
def both(aws: Aws, moto: str) -> Iterator[tuple[Client, Client]]:
    """A maker of clients of ours, and one of moto's, whose server is reset first."""
    with urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST"), timeout=20):
        pass
    made: dict[str, Any] = {}

    def theirs(service: str) -> Any:
        # moto does everything at once.
        if service == "later":
            return None
        if service not in made:
            made[service] = plain_client(service, moto)
        return made[service]

    ours: dict[str, Any] = {}

    def own(service: str) -> Any:
        if service == "later":
            return aws.later(90)
        if service not in ours:
            ours[service] = aws.client(service)
        return ours[service]

    yield own, theirs
    for client in made.values():
        client.close()


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as refused:
        call()
    return str(refused.value.response["Error"]["Code"])


def template(client: Client) -> Any:
    """A launch template with two versions."""
    ec2 = client("ec2")
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "red"}]}]
    names = {"/dev/xvdf": (100, False), "/dev/xvdg": (200, True)}
    disks = [{"DeviceName": name, "Ebs": {"VolumeSize": size, "DeleteOnTermination": deleted}} for name, (size, deleted) in names.items()]
    data = {"ImageId": "ami-12c6146b", "InstanceType": "g5.xlarge", "TagSpecifications": tags, "BlockDeviceMappings": disks}
    made = ec2.create_launch_template(LaunchTemplateName="template", LaunchTemplateData=data)["LaunchTemplate"]
    ec2.create_launch_template_version(LaunchTemplateName="template", LaunchTemplateData={**data, "InstanceType": "g5.2xlarge"})
    return made


def templates(client: Client) -> Any:
    made, ec2 = template(client), client("ec2")

    def versions(*wanted: str) -> Any:
        listed = ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"], Versions=wanted)["LaunchTemplateVersions"]
        return [(version["VersionNumber"], version["DefaultVersion"], version["LaunchTemplateData"]) for version in listed]

    (shown,) = ec2.describe_launch_templates(LaunchTemplateNames=["template"])["LaunchTemplates"]
    return [
        {key: shown[key] for key in ("LaunchTemplateName", "DefaultVersionNumber", "LatestVersionNumber")},
        versions("$Latest"),
        versions("$Default"),
        versions("1", "2"),
        refusal(lambda: ec2.describe_launch_templates(LaunchTemplateNames=["none"])),
    ]


def groups(client: Client) -> Any:
    template(client)
    scaling = client("autoscaling")
    subject = {"MinSize": 0, "MaxSize": 4, "AvailabilityZones": ["us-east-1a"]}
    tags = [{"Key": "k8s.io/cluster-autoscaler/research", "Value": "owned", "PropagateAtLaunch": True}]
    policy: dict[str, dict[str, Any]] = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": {"LaunchTemplateName": "template", "Version": "$Latest"},
            "Overrides": [{"InstanceType": "g5.xlarge", "WeightedCapacity": "1"}, {"InstanceType": "g6.xlarge", "WeightedCapacity": "2"}],
        },
        "InstancesDistribution": {
            "OnDemandAllocationStrategy": "prioritized",
            "OnDemandBaseCapacity": 1,
            "OnDemandPercentageAboveBaseCapacity": 50,
            "SpotAllocationStrategy": "price-capacity-optimized",
        },
    }
    scaling.create_auto_scaling_group(AutoScalingGroupName="mixed", MixedInstancesPolicy=policy, Tags=tags, **subject)
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="plain", LaunchTemplate={"LaunchTemplateName": "template", "Version": "1"}, **subject
    )
    scaling.suspend_processes(AutoScalingGroupName="plain", ScalingProcesses=["AZRebalance"])
    described = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    kept = ("AutoScalingGroupName", "MinSize", "MaxSize", "DesiredCapacity", "AvailabilityZones", "Instances", "Tags", "HealthCheckType")
    shown = [{key: group.get(key) for key in kept} for group in described]
    mixed = next(group for group in described if group["AutoScalingGroupName"] == "mixed")["MixedInstancesPolicy"]
    filtered = scaling.describe_auto_scaling_groups(Filters=[{"Name": "tag:k8s.io/cluster-autoscaler/research", "Values": ["owned"]}])
    return [
        sorted(shown, key=lambda group: str(group["AutoScalingGroupName"])),
        mixed["LaunchTemplate"]["Overrides"],
        {key: mixed["InstancesDistribution"][key] for key in policy["InstancesDistribution"]},
        [
            group["ProcessName"]
            for group in next(group for group in described if group["AutoScalingGroupName"] == "plain")["SuspendedProcesses"]
        ],
        [group["AutoScalingGroupName"] for group in filtered["AutoScalingGroups"]],
        [(describe_tag["ResourceId"], describe_tag["Key"], describe_tag["Value"]) for describe_tag in scaling.describe_tags()["Tags"]],
        scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["none"])["AutoScalingGroups"],
    ]


def instances(client: Client) -> Any:
    template(client)
    ec2, scaling = client("ec2"), client("autoscaling")
    tags = [{"Key": "Name", "Value": "node", "PropagateAtLaunch": True}, {"Key": "mine", "Value": "no", "PropagateAtLaunch": False}]
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="gpus",
        MinSize=1,
        MaxSize=4,
        DesiredCapacity=2,
        AvailabilityZones=["us-east-1a"],
        LaunchTemplate={"LaunchTemplateName": "template", "Version": "2"},
        Tags=tags,
        NewInstancesProtectedFromScaleIn=True,
    )
    client("later")

    def volumes() -> Any:
        # With other images, root devices have other names and sizes.
        listed = [describe_volume for describe_volume in ec2.describe_volumes()["Volumes"] if describe_volume["Size"] >= 100]
        return sorted(
            (volume["Size"], volume["State"], [attachment["Device"] for attachment in volume["Attachments"]]) for volume in listed
        )

    def shown() -> Any:
        (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpus"])["AutoScalingGroups"]
        kept = ("InstanceType", "AvailabilityZone", "LifecycleState", "HealthStatus", "ProtectedFromScaleIn")
        return group["DesiredCapacity"], [[instance[key] for key in kept] for instance in group["Instances"]]

    first = shown()
    rows = scaling.describe_auto_scaling_instances()["AutoScalingInstances"]
    idents = [row["InstanceId"] for row in rows]
    scaling.set_instance_protection(AutoScalingGroupName="gpus", InstanceIds=idents[:1], ProtectedFromScaleIn=False)
    kept = sorted(
        describe_auto_scaling_instance["ProtectedFromScaleIn"]
        for describe_auto_scaling_instance in scaling.describe_auto_scaling_instances()["AutoScalingInstances"]
    )
    (machine,) = ec2.describe_instances(InstanceIds=idents[:1])["Reservations"][0]["Instances"]
    disks = {
        mapping["DeviceName"]: mapping["Ebs"]["DeleteOnTermination"]
        for mapping in machine["BlockDeviceMappings"]
        if mapping["DeviceName"] > "/dev/xvda"
    }
    attached = volumes()
    named = ec2.describe_instances(Filters=[{"Name": "tag:Name", "Values": ["node"]}])["Reservations"]
    scaling.terminate_instance_in_auto_scaling_group(InstanceId=idents[0], ShouldDecrementDesiredCapacity=True)
    client("later")
    return [
        first,
        [(row["AutoScalingGroupName"], row["InstanceType"], row["HealthStatus"].upper()) for row in rows],
        kept,
        (machine["InstanceType"], machine["State"], machine["Placement"]["AvailabilityZone"], "InstanceLifecycle" in machine),
        {tag["Key"]: tag["Value"] for tag in machine["Tags"] if not tag["Key"].startswith("aws:ec2")},
        sum(len(reservation["Instances"]) for reservation in named),
        shown(),
        (disks, attached, volumes()),
        refusal(lambda: ec2.describe_volumes(VolumeIds=["vol-0000000000000ffff"])),
        refusal(lambda: ec2.describe_instances(InstanceIds=["i-0000000000000ffff"])),
    ]


def queues(client: Client) -> Any:
    sqs = client("sqs")
    url = sqs.create_queue(QueueName="events", Attributes={"VisibilityTimeout": "7"})["QueueUrl"]
    sent = sqs.send_message(QueueUrl=url, MessageBody='{"a": "<&>"}')
    (got,) = sqs.receive_message(QueueUrl=url, AttributeNames=["ApproximateReceiveCount"])["Messages"]
    entries = [{"Id": "one", "ReceiptHandle": got["ReceiptHandle"]}, {"Id": "two", "ReceiptHandle": "made up"}]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    late = {"Id": "late", "MessageBody": "late", "DelaySeconds": 901}
    batch = sqs.send_message_batch(QueueUrl=url, Entries=[late, {"Id": "later", "MessageBody": "later", "DelaySeconds": 900}])
    return [
        url.rpartition("/")[2],
        sqs.get_queue_url(QueueName="events")["QueueUrl"] == url,
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout", "QueueArn"])["Attributes"],
        (sent["MD5OfMessageBody"], got["MD5OfBody"], got["Body"], got["Attributes"]),
        (answer["Successful"], [(entry["Id"], entry["Code"]) for entry in answer["Failed"]]),
        [entry["Id"] for entry in batch["Successful"]],
        [(entry["Id"], entry["SenderFault"], entry["Code"], entry["Message"]) for entry in batch["Failed"]],
        "Messages" in sqs.receive_message(QueueUrl=url),
        refusal(lambda: sqs.get_queue_url(QueueName="none")),
        refusal(lambda: sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=11)),
        refusal(lambda: sqs.delete_message_batch(QueueUrl=url, Entries=[])),
    ]


def descriptions(client: Client) -> Any:
    ec2 = client("ec2")
    (kind,) = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])["InstanceTypes"]
    gpus = [(gpu["Name"], gpu["Manufacturer"], gpu["Count"], gpu["MemoryInfo"]) for gpu in kind["GpuInfo"]["Gpus"]]
    zones = {
        describe_availability_zone["ZoneName"]: describe_availability_zone["RegionName"]
        for describe_availability_zone in ec2.describe_availability_zones()["AvailabilityZones"]
    }
    return [
        (kind["VCpuInfo"]["DefaultVCpus"], kind["MemoryInfo"], gpus, kind["ProcessorInfo"]["SupportedArchitectures"]),
        (kind["NetworkInfo"]["EfaSupported"], kind["NetworkInfo"]["EfaInfo"]),
        zones["us-east-1a"],
        refusal(lambda: ec2.describe_instances(InstanceIds=["i-0123456789abcdef0"])),
        refusal(lambda: ec2.describe_instance_types(InstanceTypes=["p99.huge"])),
        client("sts").get_caller_identity()["Account"],
    ]


@pytest.mark.parametrize("script", [templates, groups, instances, queues, descriptions])
def test_our_endpoint_and_moto_return_equal_responses(both: tuple[Client, Client], script: Callable[[Client], Any]) -> None:
    ours, theirs = both
    assert script(ours) == script(theirs)
