"""An AWS account with many groups, in a separate process: ``python -m benchmarks.aws_server GROUPS ANSWER_SECONDS REGION...``.

It prints its URL to standard output and ends when its standard input does.
"""

import asyncio
import sys
import time
from typing import Any

import boto3
from tests.embedded.aws.memory import attach

from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.faults import Fault
from gpuscaler.embedded.aws.serving.server import serve

TYPES = ("g5.xlarge", "g5.2xlarge", "g5.4xlarge", "g5.8xlarge", "g4dn.xlarge", "g4dn.2xlarge")
TAGS = {
    "k8s.io/cluster-autoscaler/enabled": "true",
    "k8s.io/cluster-autoscaler/bench": "owned",
    "k8s.io/cluster-autoscaler/node-template/label/team": "ml",
    "k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu": "true:NoSchedule",
}
#: Number of machines in each group.
DESIRED = 2


def create_groups(endpoint: Endpoint, region: str, groups: int) -> None:
    """Groups with a launch template each, of six types on spot in three zones."""
    session = boto3.session.Session(**dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "bench"))

    def client(service: str) -> Any:
        boto3_client = session.client(service, region_name=region, endpoint_url="http://127.0.0.1:1")
        attach(boto3_client, endpoint)
        return boto3_client

    ec2, scaling = client("ec2"), client("autoscaling")
    for number in range(groups):
        name = f"{region}-gpu-{number}"
        ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={"ImageId": "ami-0123", "InstanceType": TYPES[0]})
        specification = {"LaunchTemplateName": name, "Version": "$Latest"}
        policy = {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": specification,
                "Overrides": [{"InstanceType": instance_type} for instance_type in TYPES],
            },
            "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized"},
        }
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=20,
            DesiredCapacity=DESIRED,
            AvailabilityZones=[f"{region}{zone}" for zone in "abc"],
            MixedInstancesPolicy=policy,
            Tags=[{"Key": key, "Value": value} for key, value in TAGS.items()],
        )


async def main(groups: int, seconds: float, regions: list[str]) -> None:
    endpoint = Endpoint(Account(now=time.time, regions=regions))
    for region in regions:
        create_groups(endpoint, region, groups // len(regions))
    endpoint.faults.all.append(Fault(delay=seconds))
    serving = await serve(endpoint)
    sys.stdout.write(serving.url + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await serving.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
