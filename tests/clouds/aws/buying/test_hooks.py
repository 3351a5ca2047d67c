"""Lifecycle hooks that hold machines for longer than necessary."""

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import Shop

pytestmark = pytest.mark.looptime(False)
HOOK = {"LifecycleHookName": "drain", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 7200}


async def test_machines_held_long_by_an_ending_hook_are_reported_until_it_is_completed() -> None:
    aws = Aws()
    aws.template("plain", InstanceType="g6.xlarge")
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "plain", "Version": "$Latest"}, MaxSize=10)
    aws.client("autoscaling").put_lifecycle_hook(AutoScalingGroupName="gpus", **HOOK)
    shop = Shop(aws)
    bought = await shop.provider.buy(await shop.order(1))
    await shop.pass_time(120)
    await shop.provider.remove([instance.id for instance in bought.instances])

    async def said() -> list[str]:
        await shop.provider.inventory()
        return [warning for warning in (await shop.provider.read_account()).warnings if "lifecycle hook" in warning]

    assert await said() == []
    await shop.pass_time(1000)
    (warning,) = await said()
    assert "group gpus: saw i-" in warning
    assert "(1 in all) in Terminating:Wait for over 15 min" in warning
    assert "set aws.queue_url" in warning

    await shop.pass_time(7200)
    assert await said() == []
    await shop.provider.close()
