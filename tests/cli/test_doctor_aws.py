"""``gpuscaler doctor --config`` with an AWS account, over HTTP."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli import main
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.server import serve

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")
pytestmark = pytest.mark.looptime(False)
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "system"},
    "spec": {},
    "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
CLEAN = Path(__file__).parents[1] / "doctor" / "clean" / "budgets.yaml"


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return tmp_path / "run.yaml"


def write(run_file: Path, url: str, *pools: str) -> None:
    text = f"cloud: aws\naws: {{cluster: research, regions: [us-east-1], endpoint_url: '{url}'}}\n"
    run_file.write_text(text + (f"pools: [{', '.join(f'{{name: {name}}}' for name in pools)}]\n" if pools else ""))


def doctor(run_file: Path, objects: Path = CLEAN) -> Result:
    return CliRunner().invoke(main, ["doctor", "--cluster", str(objects), "--config", str(run_file), "--json"], catch_exceptions=False)


async def test_the_account_of_the_run_file_is_read_beside_the_files_of_a_cluster(run_file: Path) -> None:
    endpoint = Endpoint(Account(now=time.time))
    serving = await serve(endpoint)
    write(run_file, serving.url)
    try:
        result = await asyncio.to_thread(doctor, run_file)
    finally:
        await serving.close()
    document = json.loads(result.output)

    assert result.exit_code == 1
    assert [(finding["id"], finding["object"]) for finding in document["findings"]] == [("D1", "run file")]
    # The simulated account has no IAM.
    reasons = {entry["id"]: entry["reason"] for entry in document["unchecked"]}
    assert "aws/Right could not be read" in reasons["D29"]


def test_an_account_that_does_not_answer_is_unchecked_and_no_finding(run_file: Path) -> None:
    write(run_file, "http://127.0.0.1:1")
    result = doctor(run_file)
    document = json.loads(result.output)

    assert result.exit_code == 3
    assert not document["findings"]
    unchecked = {entry["id"] for entry in document["unchecked"]}
    assert {"D1", "D4", "D5", "D7", "D8", "D16", "D17", "D25", "D29", "D33"} <= unchecked


def add_group(url: str) -> None:
    """A group of g5.xlarge of the cluster, without machines."""
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1", "endpoint_url": url}
    ec2, scaling = boto3.client("ec2", **keys), boto3.client("autoscaling", **keys)
    ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData={"InstanceType": "g5.xlarge", "ImageId": "ami-1"})
    tags = {"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/research": "owned"}
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="gpus",
        MinSize=0,
        MaxSize=2,
        VPCZoneIdentifier="subnet-useast1b",
        LaunchTemplate={"LaunchTemplateName": "gpu"},
        Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
    )
    ec2.close()
    scaling.close()


def waiting(name: str, gpus: int) -> dict[str, Any]:
    """A pod that has been pending for weeks."""
    long_ago = "2026-11-01T00:00:00Z"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": long_ago}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": long_ago},
        "spec": {"containers": [{"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


async def test_pods_are_judged_by_the_pools_of_the_account(run_file: Path) -> None:
    objects = run_file.parent / "objects.json"
    objects.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [waiting("fits", 1), waiting("too-large", 8), NODE]}))
    serving = await serve(Endpoint(Account(now=time.time)))
    try:
        await asyncio.to_thread(add_group, serving.url)
        write(run_file, serving.url)
        read = await asyncio.to_thread(doctor, run_file, objects)
    finally:
        await serving.close()
    write(run_file, "http://127.0.0.1:1")
    unread = await asyncio.to_thread(doctor, run_file, objects)

    assert unplaced(read) == [("critical", "Pod default/too-large")]
    # Which pools there are is not known: that is no reason to say that a pod fits none.
    assert "critical" not in {severity for severity, _ in unplaced(unread)}


async def test_a_pool_of_the_run_file_that_the_account_does_not_have_is_a_mistake(run_file: Path) -> None:
    serving = await serve(Endpoint(Account(now=time.time)))
    try:
        await asyncio.to_thread(add_group, serving.url)
        write(run_file, serving.url, "gpus", "gpux")
        result = await asyncio.to_thread(doctor, run_file)
    finally:
        await serving.close()

    (found,) = (found for found in json.loads(result.output)["findings"] if found["id"] == "D1")
    assert (found["severity"], found["object"], found["field"]) == ("critical", "run file", "pools[gpux]")
    assert found["seen"].startswith("gpux: expected a group of that name")
    assert found["expected"].endswith(": gpus")


def unplaced(result: Result) -> list[tuple[str, str]]:
    return [(found["severity"], found["object"]) for found in json.loads(result.output)["findings"] if found["id"] == "D39"]
