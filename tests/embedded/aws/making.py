"""Objects that tests create first: a launch template and a group."""

from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws

TEMPLATE = {"InstanceType": "g5.xlarge", "ImageId": "ami-0123", "UserData": "IyEvYmluL2Jhc2g="}


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def make_group(aws: Aws, name: str = "gpus", **settings: Any) -> Any:
    """A group of g5.xlarge in one zone, or as specified; returns an Auto Scaling client."""
    ec2, scaling = aws.client("ec2"), aws.client("autoscaling")
    if not ec2.describe_launch_templates()["LaunchTemplates"]:
        ec2.create_launch_template(LaunchTemplateName="template", LaunchTemplateData=TEMPLATE)
    params = {"MinSize": 0, "MaxSize": 5, "AvailabilityZones": ["us-east-1a"], **settings}
    if "MixedInstancesPolicy" not in params:
        params["LaunchTemplate"] = {"LaunchTemplateName": "template", "Version": "$Latest"}
    scaling.create_auto_scaling_group(AutoScalingGroupName=name, **params)
    return scaling


def mixed(*types: str, on_demand: int = 0, base: int = 0, **settings: Any) -> dict[str, Any]:
    """A mixed-instances policy; ``name=2`` in ``types`` gives a weight."""
    overrides = []
    for text in types:
        name, _, weight = text.partition("=")
        overrides.append({"InstanceType": name, **({"WeightedCapacity": weight} if weight else {})})
    return {
        "LaunchTemplate": {"LaunchTemplateSpecification": {"LaunchTemplateName": "template"}, "Overrides": overrides},
        "InstancesDistribution": {
            "OnDemandBaseCapacity": base,
            "OnDemandPercentageAboveBaseCapacity": on_demand,
            "SpotAllocationStrategy": "price-capacity-optimized",
            **settings,
        },
    }


def group_of(scaling: Any, name: str = "gpus") -> Any:
    (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return group


def members(scaling: Any, name: str = "gpus") -> list[tuple[str, str, str]]:
    """Type, zone and lifecycle state of each instance."""
    return [
        (instance["InstanceType"], instance["AvailabilityZone"], instance["LifecycleState"])
        for instance in group_of(scaling, name)["Instances"]
    ]


def instance_ids(scaling: Any, name: str = "gpus") -> list[str]:
    return [instance["InstanceId"] for instance in group_of(scaling, name)["Instances"]]


def activity_messages(scaling: Any, name: str = "gpus") -> list[tuple[str, str]]:
    """Status and message of each activity, the newest first."""
    activities = scaling.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
    return [(activity["StatusCode"], activity.get("StatusMessage", "")) for activity in activities]
