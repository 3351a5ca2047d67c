"""F99: starting machines that a lifecycle hook of their group gives up, because nothing completes it."""

from pathlib import Path
from typing import Any

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.simulation.cloud.delays import Delays


def hook(seconds: int, default: str = "ABANDON") -> dict[str, Any]:
    return {
        "AutoScalingGroupName": "gpus",
        "LifecycleHookName": "bootstrap",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "HeartbeatTimeout": seconds,
        "DefaultResult": default,
    }


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


@pytest.mark.parametrize("joins", [False, True])
async def test_f99_a_group_whose_launch_hook_abandons_every_machine_is_paused_and_reported(tmp_path: Path, *, joins: bool) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK if joins else Delays())) as here:
        here.group("gpus")
        here.client("autoscaling").put_lifecycle_hook(**hook(60))
        here.start()
        await here.submit("train")
        await here.sleep(600.0)

        assert len(here.machines()) <= 6
        assert here.desired("gpus") == 0
        status = await here.status()
        assert any("lifecycle hook bootstrap of group gpus" in breaker.text for breaker in status.breakers)
        assert "lifecycle hook bootstrap of group gpus" in status.waiting[0].reason


async def test_f99_a_machine_that_its_launch_hook_may_still_abandon_takes_no_pods_until_the_hook_is_completed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.client("autoscaling").put_lifecycle_hook(**hook(3600))
        here.start()
        await here.submit("train")
        await here.sleep(120.0)
        (machine,) = here.machines()
        assert not await all_bound(here)
        request = {"AutoScalingGroupName": "gpus", "LifecycleHookName": "bootstrap", "InstanceId": machine}
        here.client("autoscaling").complete_lifecycle_action(**request, LifecycleActionResult="CONTINUE")
        await here.sleep(30.0)

        assert await all_bound(here)
        assert here.machines() == [machine]


async def test_f99_a_launch_hook_with_the_default_result_continue_delays_no_pod(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.client("autoscaling").put_lifecycle_hook(**hook(7200, "CONTINUE"))
        here.start()
        await here.submit("train")
        await here.until(lambda: all_bound(here), 120.0)
