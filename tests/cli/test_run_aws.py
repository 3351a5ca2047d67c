"""`gpuscaler run` with an AWS account, as on its documentation page: processes, HTTP, boto3 and the embedded cluster."""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.cli.walls import WALLED
from tests.clouds.aws.user_data import encoded
from tests.docs.test_examples import blocks
from tests.objects import pod

from gpuscaler.cli import main
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.incluster import find_access
from gpuscaler.kube.resources import CONFIG_MAPS, NODES, PODS

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")
pytestmark = pytest.mark.looptime(False)

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "aws-simulated.md"
REAL = PAGE.with_name("aws.md")
BOOTSTRAP = "#!/bin/bash\n/etc/eks/bootstrap.sh research --kubelet-extra-args --register-with-taints=gpuscaler.io/arriving=:NoSchedule\n"
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
#: Maximum time of each step in seconds, even on slow machines.
PATIENCE = 120
#: Added to the run files of the pages. The first plan, and the removal of an idle machine, may wait for a resync.
ADDED = "http: {enabled: false}\npace: {resync: 200ms}\n"
#: Options of an account with quick machines. In its usual order, the launch is answered before the node joins the cluster.
QUICK = ("--cloud", "aws-simulated", "--aws-boot", "500ms", "--aws-condition", "answer=0.1")


@asynccontextmanager
async def run_program(
    *words: str, folder: Path | None = None, more: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in a folder; it must exit successfully when terminated."""
    pipe, stdout = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    environ = {**os.environ, **KEYS, **(more or {})}
    process = await asyncio.create_subprocess_exec(*words, cwd=folder, env=environ, stdout=pipe, stderr=stdout)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def gpuscaler(*words: str, more: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return run_program(sys.executable, "-c", "from gpuscaler.cli import run; run()", *words, more=more)


async def run_here(*words: str, more: Mapping[str, str] | None = None) -> str:
    """Return the output of a command that reads and ends, run in a thread of this process; it must exit successfully."""
    done = await asyncio.to_thread(CliRunner().invoke, main, words, env={**KEYS, **(more or {})})
    assert done.exit_code == 0, done.output
    return done.output


async def address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    while line := (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode():
        if match := re.search(r"AWS is at (http://\S+);", line):
            return match[1]
    raise AssertionError("the account was never served")


class Account:
    """Create the group of the page in the account at ``url``."""

    def __init__(self, url: str) -> None:
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1", "endpoint_url": url}
        self.ec2, self.scaling = boto3.client("ec2", **keys), boto3.client("autoscaling", **keys)

    def prepare(self, cluster: str = "research") -> None:
        data = {"InstanceType": "g5.xlarge", "ImageId": "ami-1", "UserData": encoded(BOOTSTRAP)}
        self.ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        tags = {"k8s.io/cluster-autoscaler/enabled": "true", f"k8s.io/cluster-autoscaler/{cluster}": "owned"}
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


async def until(condition: Any, event: str) -> None:
    for _ in range(20 * PATIENCE):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: {event}")


async def test_the_page_about_the_simulated_account_is_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kubeconfig, config = str(tmp_path / "kubeconfig"), tmp_path / "run.yaml"
    (block,) = [block for block in blocks(PAGE) if block.kind == "yaml"]
    async with gpuscaler("cluster", "--kubeconfig", kubeconfig, *QUICK) as serving:
        url = await address(serving)
        text = block.text.replace("http://127.0.0.1:4566", url).replace("1m", "500ms")
        config.write_text(f"{text}{ADDED}")
        account = Account(url)
        await asyncio.to_thread(account.prepare)
        assert "gpu   us-east-1  cluster-autoscaler" in await run_here("pools", "--config", str(config))
        access = find_access({}, kubeconfig=Path(kubeconfig), context="", attended=False)
        # On a real cloud no simulation module is loaded.
        controller = gpuscaler("run", "--config", str(config), "--kubeconfig", kubeconfig, more=WALLED)
        async with HttpTransport(access) as transport, controller:
            client = Client(transport)

            async def bound() -> bool:
                return bool(msgspec.json.decode(await client.get(PODS, "train", namespace="default"))["spec"].get("nodeName"))

            async def given_back() -> bool:
                return not await client.list_all(NODES) and await asyncio.to_thread(account.wants) == 0

            await client.create(PODS, pod("train"), namespace="default")
            await until(bound, "the pod has a machine")
            assert await asyncio.to_thread(account.wants) == 1
            assert "How machines are bought:\n  launch-instances: gpu" in await run_here("status", "--kubeconfig", kubeconfig)
            sent = await run_here("doctor", "--send-test-message", "--config", str(config), "--kubeconfig", kubeconfig)
            assert "received by the controller" in sent
            assert "Proved: the controller receives messages from the queue." in sent
            await client.delete(PODS, "train", namespace="default")
            await until(given_back, "the machine is removed")
        account.close()


def commands_of_page(kind: str) -> list[str]:
    """Return gpuscaler's commands in shell blocks of the AWS page, or its files."""
    if kind == "yaml":
        return [block.text for block in blocks(REAL) if block.kind == "yaml"]
    return [line for block in blocks(REAL) if block.kind == "sh" for line in block.text.splitlines() if line.startswith("gpuscaler ")]


def split(command: str) -> list[str]:
    """Split a command line of gpuscaler into the words after the program's name, as a shell does."""
    return shlex.split(command)[1:]


def shell(command: str, folder: Path, more: Mapping[str, str]) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run a command line in a folder, as in a shell."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    piped = "" if "|" in command else "exec "
    return run_program("bash", "-c", f"set -o pipefail; {piped}{command}", folder=folder, more={**more, "PATH": path})


async def run_until_printed(command: str, folder: Path, more: Mapping[str, str], *, until: str = "") -> str:
    """Return the whole output of a command, or the output up to and including ``until``."""
    text = ""
    async with shell(command, folder, more) as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await process.stdout.readline()).decode():
                text += line
                if until and until in line:
                    return text
            await process.wait()
    assert not until, f"{command} never said {until!r}: {text}"
    return text


async def test_the_commands_of_the_aws_page_have_the_effects_that_the_page_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 3, 5 and 6 in order, with the simulated account and the cluster of the page's context."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    commands, files = commands_of_page("sh"), commands_of_page("yaml")
    assert len(commands) == 7, f"a command of the page that no test runs: {commands}"
    kubeconfig, config = tmp_path / "kubeconfig", tmp_path / "run.yaml"
    regions = ("--aws-region", "us-east-1", "--aws-region", "us-west-2")
    async with gpuscaler("cluster", "--kubeconfig", str(kubeconfig), *QUICK, *regions) as serving:
        url = await address(serving)
        kubeconfig.write_text(kubeconfig.read_text().replace("gpuscaler-embedded", "my-cluster"))
        environ = {"AWS_ENDPOINT_URL": url, "KUBECONFIG": str(kubeconfig)}
        account = Account(url)
        await asyncio.to_thread(account.prepare, "prod")
        access = find_access({}, kubeconfig=kubeconfig, context="my-cluster", attended=False)
        async with HttpTransport(access) as transport:
            client = Client(transport)
            await client.create(PODS, pod("train"), namespace="default")
            before = await client.list_all(CONFIG_MAPS, namespace="kube-system")

            config.write_text(f"{files[0]}{ADDED}")
            pools, as_json, compared, plan, dry, run, status = commands
            assert "gpu   us-east-1  cluster-autoscaler" in await run_here(*split(pools), more=environ)
            assert await run_until_printed(as_json, tmp_path, environ) == "[]\n"
            assert "gpu   us-east-1  cluster-autoscaler" in await run_here(*split(compared), more=environ)
            config.write_text(f"{files[1]}{ADDED}")
            assert "For pending pods: $1.01 per hour" in await run_here(*split(plan), more=environ)
            await run_until_printed(dry, tmp_path, environ, until="buys 1 machine")
            assert await asyncio.to_thread(account.wants) == 0
            assert await client.list_all(CONFIG_MAPS, namespace="kube-system") == before

            queue = f"{url}/queue/us-east-1/123456789012/gpuscaler"
            config.write_text(re.sub(r"https://sqs\S+", queue, files[2]) + ADDED)
            async with shell(run, tmp_path, environ) as running:
                assert running.stdout is not None

                async def bought() -> bool:
                    return await asyncio.to_thread(account.wants) == 1

                async def told() -> bool:
                    config_maps = await client.list_all(CONFIG_MAPS, namespace="kube-system")
                    return "gpuscaler-status" in {msgspec.json.decode(data)["metadata"]["name"] for data in config_maps}

                await until(bought, "a machine is bought for the pod")
                await until(told, "the status is written")
                assert "launch-instances: gpu" in await run_here(*split(status), more=environ)

                async def bound() -> bool:
                    config_maps = msgspec.json.decode(await client.get(PODS, "train", namespace="default"))
                    return bool(config_maps["spec"].get("nodeName"))

                await until(bound, "the pod is bound to it, which its device plugin as shipped came to")
        account.close()
