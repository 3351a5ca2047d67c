"""`gpuscaler cluster --cloud aws-simulated`: an AWS account whose instances become nodes."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.clouds.aws.user_data import encoded, node_config
from tests.embedded.tolerant import tolerant_plugin

from gpuscaler.cli.cluster import cluster
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.incluster import find_access
from gpuscaler.kube.resources import NODES

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")
pytestmark = pytest.mark.looptime(False)
PREFIX = "k8s.io/cluster-autoscaler/node-template"


def launch(url: str) -> list[str]:
    """Launch a g5.xlarge in a new group with boto3; return its id."""
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1", "endpoint_url": url}
    ec2, scaling = boto3.client("ec2", **keys), boto3.client("autoscaling", **keys)
    try:
        tags = {f"{PREFIX}/label/team": "red", f"{PREFIX}/taint/nvidia.com/gpu": "true:NoSchedule"}
        data = {"InstanceType": "g5.xlarge", "ImageId": "ami-1", "UserData": encoded(node_config(tags))}
        ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="gpus",
            MinSize=0,
            MaxSize=2,
            VPCZoneIdentifier="subnet-useast1b",
            LaunchTemplate={"LaunchTemplateName": "gpu"},
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )
        answer = scaling.launch_instances(AutoScalingGroupName="gpus", RequestedCapacity=1, ClientToken="one")
        return [ident for reservation in answer["Instances"] for ident in reservation["InstanceIds"]]
    finally:
        ec2.close()
        scaling.close()


async def first_node(kubeconfig: Path) -> dict[str, Any]:
    """Return the first node with a GPU."""
    access = find_access({}, kubeconfig=kubeconfig, context="", attended=False)
    async with HttpTransport(access) as transport, asyncio.timeout(60):
        client = Client(transport)
        while True:
            for raw in await client.list_all(NODES):
                node: dict[str, Any] = msgspec.json.decode(raw)
                if "nvidia.com/gpu" in node["status"]["allocatable"]:
                    return node
            await asyncio.sleep(0.1)


async def test_an_instance_launched_by_boto3_becomes_a_node_with_a_gpu(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    options = ("--kubeconfig", str(kubeconfig), "--cloud", "aws-simulated", "--speed", "200")
    words = (sys.executable, "-c", "from gpuscaler.cli import run; run()", "cluster", *options)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = None
        while url is None:
            line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
            assert line, await process.communicate()
            url = re.search(r"AWS is at (http://\S+);", line)
        async with HttpTransport(find_access({}, kubeconfig=kubeconfig, context="", attended=False)) as transport:
            await tolerant_plugin(Client(transport))
        (ident,) = await asyncio.to_thread(launch, url[1])
        node = await first_node(kubeconfig)
        assert node["spec"]["providerID"] == f"aws:///us-east-1b/{ident}"
        assert re.fullmatch(r"ip-10-1-\d+-\d+\.ec2\.internal", node["metadata"]["name"])
        labels = node["metadata"]["labels"]
        assert (labels["team"], labels["node.kubernetes.io/instance-type"]) == ("red", "g5.xlarge")
        assert [taint["key"] for taint in node["spec"]["taints"]] == ["nvidia.com/gpu", "gpuscaler.io/arriving"]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--aws-port", "4566"), "--aws-port: saw this option without --cloud"),
        (("--spot", "series.csv"), "--spot: saw this option without --cloud"),
        (("--cloud", "aws-simulated", "--spot", "nowhere.csv"), "nowhere.csv"),
        (("--aws-boot", "20s"), "--aws-boot: saw this option without --cloud"),
        (("--cloud", "aws-simulated", "--aws-condition", "spelling=loud"), "--aws-condition: Invalid enum value 'loud'"),
        (("--cloud", "aws-simulated", "--aws-condition", "speling=random"), "saw 'speling', expected one of reaction, "),
        (("--aws-condition", "spelling=random"), "saw this option without --cloud"),
        (("--cloud", "aws-simulated", "--aws-boot", "soon"), "--aws-boot: saw 'soon', expected a duration such as 20s"),
    ],
)
def test_cluster_rejects_an_aws_account_that_it_cannot_serve(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    ended = CliRunner().invoke(cluster, ["--kubeconfig", str(tmp_path / "kubeconfig"), *options])
    assert ended.exit_code == 2
    assert words in ended.output.replace("\n", " ")
    assert not (tmp_path / "kubeconfig").exists()
