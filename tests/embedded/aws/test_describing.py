"""Groups, tags, launch templates and instance types, created and read by boto3."""

import asyncio
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws, plain_client
from tests.embedded.aws.making import TEMPLATE, code, group_of, make_group

from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.server import serve


def test_a_group_is_described_as_it_was_created(aws: Aws) -> None:
    override = {"InstanceType": "g5.2xlarge", "WeightedCapacity": "2"}
    policy = {
        "LaunchTemplate": {"LaunchTemplateSpecification": {"LaunchTemplateName": "template"}, "Overrides": [override]},
        "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized"},
    }
    tags = [{"Key": "k8s.io/cluster-autoscaler/research", "Value": "owned", "PropagateAtLaunch": True}]
    scaling = make_group(aws, MixedInstancesPolicy=policy, Tags=tags)
    (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpus", "none"])["AutoScalingGroups"]
    assert (group["MinSize"], group["MaxSize"], group["DesiredCapacity"], group["AvailabilityZones"]) == (0, 5, 0, ["us-east-1a"])
    assert group["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"] == [override]
    assert group["MixedInstancesPolicy"]["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0
    assert group["Tags"] == [{"ResourceId": "gpus", "ResourceType": "auto-scaling-group", **tags[0]}]


def test_groups_are_found_by_their_tags(aws: Aws) -> None:
    make_group(aws, "ours", Tags=[{"Key": "k8s.io/cluster-autoscaler/a", "Value": "owned"}])
    scaling = make_group(aws, "theirs", Tags=[{"Key": "k8s.io/cluster-autoscaler/b", "Value": "owned"}])

    def named(*filters: dict[str, Any]) -> list[str]:
        return [
            describe_auto_scaling_group["AutoScalingGroupName"]
            for describe_auto_scaling_group in scaling.describe_auto_scaling_groups(Filters=filters)["AutoScalingGroups"]
        ]

    assert named({"Name": "tag-key", "Values": ["k8s.io/cluster-autoscaler/a"]}) == ["ours"]
    assert named({"Name": "tag:k8s.io/cluster-autoscaler/b", "Values": ["owned"]}) == ["theirs"]
    assert named({"Name": "tag-key", "Values": ["k8s.io/cluster-autoscaler/*"]}) == ["ours", "theirs"]
    rows = scaling.describe_tags(Filters=[{"Name": "auto-scaling-group", "Values": ["ours"]}])["Tags"]
    assert [(row["ResourceId"], row["Key"]) for row in rows] == [("ours", "k8s.io/cluster-autoscaler/a")]


def test_tags_are_added_changed_and_removed(aws: Aws) -> None:
    scaling = make_group(aws)
    tag = {"ResourceId": "gpus", "ResourceType": "auto-scaling-group", "Key": "team", "PropagateAtLaunch": False}
    scaling.create_or_update_tags(Tags=[{**tag, "Value": "red"}])
    scaling.create_or_update_tags(Tags=[{**tag, "Value": "blue"}])
    assert [describe_tag["Value"] for describe_tag in scaling.describe_tags()["Tags"]] == ["blue"]
    scaling.delete_tags(Tags=[{"ResourceId": "gpus", "ResourceType": "auto-scaling-group", "Key": "team"}])
    assert scaling.describe_tags()["Tags"] == []


def test_many_groups_are_described_in_pages(aws: Aws) -> None:
    for number in range(7):
        scaling = make_group(aws, f"group-{number}")
    pages = list(scaling.get_paginator("describe_auto_scaling_groups").paginate(PaginationConfig={"PageSize": 3}))
    assert [len(page["AutoScalingGroups"]) for page in pages] == [3, 3, 1]
    with pytest.raises(ClientError) as refused:
        scaling.describe_auto_scaling_groups(NextToken="made up")
    assert code(refused) == "InvalidNextToken"


def test_a_launch_template_has_versions(aws: Aws) -> None:
    ec2 = aws.client("ec2")
    made = ec2.create_launch_template(LaunchTemplateName="template", LaunchTemplateData=TEMPLATE)["LaunchTemplate"]
    ec2.create_launch_template_version(LaunchTemplateName="template", SourceVersion="1", LaunchTemplateData={"InstanceType": "g6.xlarge"})
    ident = made["LaunchTemplateId"]

    def read(*versions: str) -> list[tuple[int, str, str]]:
        answer = ec2.describe_launch_template_versions(LaunchTemplateId=ident, Versions=versions)["LaunchTemplateVersions"]
        return [
            (version["VersionNumber"], version["LaunchTemplateData"]["InstanceType"], version["LaunchTemplateData"]["ImageId"])
            for version in answer
        ]

    assert read("$Latest") == [(2, "g6.xlarge", "ami-0123")]
    assert read("$Default", "2") == [(1, "g5.xlarge", "ami-0123"), (2, "g6.xlarge", "ami-0123")]
    with pytest.raises(ClientError) as refused:
        read("3")
    assert code(refused) == "InvalidLaunchTemplateId.VersionNotFound"


def test_instance_types_are_described_with_gpus_memory_and_network(aws: Aws) -> None:
    ec2 = aws.client("ec2")
    (described,) = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])["InstanceTypes"]
    gpu = {"Name": "A100", "Manufacturer": "NVIDIA", "Count": 8, "MemoryInfo": {"SizeInMiB": 40960}}
    assert described["GpuInfo"]["Gpus"] == [gpu]
    assert described["VCpuInfo"]["DefaultVCpus"] == 96
    assert described["NetworkInfo"]["EfaInfo"] == {"MaximumEfaInterfaces": 4}
    names = [
        instance_type["InstanceType"]
        for page in ec2.get_paginator("describe_instance_types").paginate()
        for instance_type in page["InstanceTypes"]
    ]
    assert len(names) > 100
    assert "p5.48xlarge" in names
    with pytest.raises(ClientError) as refused:
        ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge", "p99.large"])
    assert code(refused) == "InvalidInstanceType"


def test_instance_requirements_select_matching_types(aws: Aws) -> None:
    needs = {
        "VCpuCount": {"Min": 4, "Max": 16},
        "MemoryMiB": {"Min": 0},
        "AcceleratorCount": {"Min": 1, "Max": 1},
        "AcceleratorManufacturers": ["nvidia"],
        "AcceleratorNames": ["a10g"],
    }
    asked = {"ArchitectureTypes": ["x86_64"], "VirtualizationTypes": ["hvm"], "InstanceRequirements": needs}
    instance_types = aws.client("ec2").get_instance_types_from_instance_requirements(**asked)["InstanceTypes"]
    assert [instance_type["InstanceType"] for instance_type in instance_types] == ["g5.2xlarge", "g5.4xlarge", "g5.xlarge"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"MinSize": 3, "MaxSize": 2}, "must be greater than or equal to min bound"),
        ({"DesiredCapacity": 9}, "must be between the specified min size:0 and max size:5"),
        ({"AvailabilityZones": ["eu-west-1a"]}, "Invalid availability zone"),
        ({"VPCZoneIdentifier": "subnet-0"}, "subnet-0"),
    ],
)
def test_a_group_with_inconsistent_settings_is_refused(aws: Aws, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError, match=words) as refused:
        make_group(aws, **params)
    assert code(refused) == "ValidationError"


def test_a_warm_pool_is_described_with_its_group_until_it_is_deleted(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.put_warm_pool(AutoScalingGroupName="gpus", MinSize=2)
    configuration = {"MinSize": 2, "PoolState": "Stopped"}
    assert group_of(scaling)["WarmPoolConfiguration"] == configuration
    answer = scaling.describe_warm_pool(AutoScalingGroupName="gpus")
    assert (answer["WarmPoolConfiguration"], answer["Instances"]) == (configuration, [])
    scaling.delete_warm_pool(AutoScalingGroupName="gpus")
    assert "WarmPoolConfiguration" not in group_of(scaling)
    assert scaling.describe_instance_refreshes(AutoScalingGroupName="gpus")["InstanceRefreshes"] == []


def test_unsupported_operations_are_named_in_the_error(aws: Aws) -> None:
    with pytest.raises(ClientError, match="DescribeAccountLimits is an operation that this endpoint does not support") as refused:
        aws.client("autoscaling").describe_account_limits()
    assert code(refused) == "NotImplemented"
    with pytest.raises(ClientError) as refused:
        aws.client("autoscaling", "eu-north-1").describe_auto_scaling_groups()
    assert code(refused) == "OptInRequired"


async def test_the_endpoint_serves_boto3_over_http() -> None:
    serving = await serve(Endpoint(Account(now=time.time)))

    def ask() -> Any:
        client = plain_client("ec2", serving.url)
        try:
            return client.describe_instance_types(InstanceTypes=["g5.xlarge"])
        finally:
            client.close()

    try:
        answer = await asyncio.to_thread(ask)
    finally:
        await serving.close()
    assert answer["InstanceTypes"][0]["GpuInfo"]["Gpus"][0]["Name"] == "A10G"
