"""`gpuscaler run` with an AWS account, as the page about it tells: processes, HTTP, boto3 and the embedded cluster."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.clouds.aws.user_data import encoded
from tests.control.world import pod
from tests.docs.test_examples import blocks

from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.incluster import find_access
from gpuscaler.kube.resources import NODES, PODS

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")
pytestmark = pytest.mark.looptime(False)

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "aws-simulated.md"
BOOTSTRAP = "#!/bin/bash\n/etc/eks/bootstrap.sh research --kubelet-extra-args --register-with-taints=gpuscaler.io/arriving=:NoSchedule\n"
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
#: So long each step may take, in seconds, on however slow a machine.
PATIENCE = 120


@asynccontextmanager
async def gpuscaler(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command while it runs; it must end well when it is asked to."""
    called = (sys.executable, "-c", "from gpuscaler.cli import run; run()", *words)
    pipe, beside = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(*called, env={**os.environ, **KEYS}, stdout=pipe, stderr=beside)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def asked(*words: str) -> str:
    async with gpuscaler(*words) as process:
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.read(), PATIENCE)
        await process.wait()
    return said.decode()


async def address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    while line := (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode():
        if found := re.search(r"AWS is at (http://\S+);", line):
            return found[1]
    raise AssertionError("the account was never served")


class Account:
    """The group of the page, in the account at ``url``."""

    def __init__(self, url: str) -> None:
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1", "endpoint_url": url}
        self.ec2, self.scaling = boto3.client("ec2", **keys), boto3.client("autoscaling", **keys)

    def prepare(self) -> None:
        data = {"InstanceType": "g5.xlarge", "ImageId": "ami-1", "UserData": encoded(BOOTSTRAP)}
        self.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        tags = {"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/research": "owned"}
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName="gpu",
            MinSize=0,
            MaxSize=10,
            AvailabilityZones=["us-east-1a", "us-east-1b"],
            LaunchTemplate={"LaunchTemplateName": "gpu"},
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )

    def wants(self) -> int:
        (group,) = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpu"])["AutoScalingGroups"]
        return int(group["DesiredCapacity"])

    def close(self) -> None:
        self.ec2.close()
        self.scaling.close()


async def until(so: Any, what: str) -> None:
    for _ in range(5 * PATIENCE):
        if await so():
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"never: {what}")


async def test_the_page_about_an_account_that_costs_nothing_comes_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kubeconfig, config = str(tmp_path / "kubeconfig"), tmp_path / "run.yaml"
    (told,) = [one for one in blocks(PAGE) if one.kind == "yaml"]
    async with gpuscaler("cluster", "--kubeconfig", kubeconfig, "--cloud", "aws-simulated", "--aws-boot", "4s") as serving:
        url = await address(serving)
        config.write_text(told.text.replace("http://127.0.0.1:4566", url).replace("1m", "5s") + "http: {enabled: false}\n")
        account = Account(url)
        await asyncio.to_thread(account.prepare)
        assert "gpu   us-east-1  cluster-autoscaler" in await asked("pools", "--config", str(config))
        access = find_access({}, kubeconfig=Path(kubeconfig), context="", attended=False)
        async with HttpTransport(access) as transport, gpuscaler("run", "--config", str(config), "--kubeconfig", kubeconfig):
            client = Client(transport)

            async def bound() -> bool:
                return bool(msgspec.json.decode(await client.get(PODS, "train", namespace="default"))["spec"].get("nodeName"))

            async def given_back() -> bool:
                return not await client.list_all(NODES) and await asyncio.to_thread(account.wants) == 0

            await client.create(PODS, pod("train"), namespace="default")
            await until(bound, "the pod has a machine")
            assert await asyncio.to_thread(account.wants) == 1
            assert "How machines are bought:\n  launch-instances: gpu" in await asked("status", "--kubeconfig", kubeconfig)
            await client.delete(PODS, "train", namespace="default")
            await until(given_back, "the machine is given back")
        account.close()
