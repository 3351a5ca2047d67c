"""Machines that a group prepares in advance."""

from pathlib import Path
from typing import Any

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import group_of, instance_ids, make_group

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.simulation.cloud.delays import Delay, Delays

SLOW = Delays(boot=Delay(200.0, 200.0, 200.0), device_plugin=Delay(5.0, 5.0, 5.0))


def pool(scaling: Any, name: str = "gpus") -> list[str]:
    return [instance["LifecycleState"] for instance in scaling.describe_warm_pool(AutoScalingGroupName=name)["Instances"]]


def test_stopped_machines_of_a_warm_pool_are_used_before_others_are_launched(aws: Aws) -> None:
    scaling = make_group(aws, MaxSize=3)
    scaling.put_warm_pool(AutoScalingGroupName="gpus", MaxGroupPreparedCapacity=2)
    aws.later(5)
    assert pool(scaling) == ["Warmed:Pending"] * 2
    aws.later(600)
    assert pool(scaling) == ["Warmed:Stopped"] * 2
    assert (instance_ids(scaling), group_of(scaling)["WarmPoolSize"]) == ([], 2)
    prepared = {instance["InstanceId"] for instance in scaling.describe_warm_pool(AutoScalingGroupName="gpus")["Instances"]}
    (prepared_instance, _) = (
        describe_instance["Instances"][0] for describe_instance in aws.client("ec2").describe_instances()["Reservations"]
    )
    assert prepared_instance["State"]["Name"] == "stopped"

    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)

    assert set(instance_ids(scaling)) < prepared
    assert [instance["LifecycleState"] for instance in group_of(scaling)["Instances"]] == ["InService"]
    assert pool(scaling) == ["Warmed:Stopped"]


def test_a_deleted_warm_pool_terminates_its_machines(aws: Aws) -> None:
    scaling = make_group(aws)
    scaling.put_warm_pool(AutoScalingGroupName="gpus", MinSize=1, MaxGroupPreparedCapacity=0)
    aws.later(600)
    assert pool(scaling) == ["Warmed:Stopped"]

    scaling.delete_warm_pool(AutoScalingGroupName="gpus", ForceDelete=True)
    aws.later(120)

    assert pool(scaling) == []
    assert {
        describe_instance["Instances"][0]["State"]["Name"] for describe_instance in aws.client("ec2").describe_instances()["Reservations"]
    } == {"terminated"}


async def test_a_machine_of_a_warm_pool_becomes_a_node_long_before_a_new_one_could_boot(tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=SLOW)) as here:
        here.group("gpus", MaxSize=1)
        scaling = here.client("autoscaling")
        scaling.put_warm_pool(AutoScalingGroupName="gpus", MinSize=0)
        await here.sleep(400)
        assert pool(scaling) == ["Warmed:Stopped"]
        assert await here.nodes() == []

        await raised(here)
        assert await nodes_after(here, 60) == 1


async def raised(here: Stage) -> None:
    here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)


async def nodes_after(here: Stage, seconds: float) -> int:
    await here.sleep(seconds)
    return len(await here.nodes())


@pytest.mark.parametrize("launch", ["auto", "desired-capacity"])
async def test_a_pod_is_served_from_a_warm_pool(launch: str, tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=SLOW)) as here:
        here.group("gpus", MaxSize=2)
        here.client("autoscaling").put_warm_pool(AutoScalingGroupName="gpus", MaxGroupPreparedCapacity=1)
        await here.sleep(400)
        here.start(here.settings(launch=launch))
        await here.submit("train")

        async def bound() -> bool:
            return all((await here.bound()).values())

        await here.until(bound, 120)
        assert here.desired("gpus") == 1
