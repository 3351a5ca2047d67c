"""Lifecycle hooks that hold machines for longer than necessary."""

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import ProviderHarness

pytestmark = pytest.mark.looptime(False)
HOOK = {"LifecycleHookName": "drain", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 7200}


async def test_machines_held_long_by_a_termination_hook_are_reported_until_it_is_completed() -> None:
    aws = Aws()
    aws.template("plain", InstanceType="g6.xlarge")
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "plain", "Version": "$Latest"}, MaxSize=10)
    aws.client("autoscaling").put_lifecycle_hook(AutoScalingGroupName="gpus", **HOOK)
    harness = ProviderHarness(aws)
    bought = await harness.provider.buy(await harness.order(1))
    await harness.pass_time(120)
    await harness.provider.remove([instance.id for instance in bought.instances])

    async def read_hook_warnings() -> list[str]:
        await harness.provider.inventory()
        return [warning for warning in (await harness.provider.read_account()).warnings if "lifecycle hook" in warning]

    assert await read_hook_warnings() == []
    await harness.pass_time(1000)
    (warning,) = await read_hook_warnings()
    assert "group gpus: saw i-" in warning
    assert "(1 in all) in Terminating:Wait for over 15 min" in warning
    assert "set aws.queue_url" in warning

    await harness.pass_time(7200)
    assert await read_hook_warnings() == []
    await harness.provider.close()
