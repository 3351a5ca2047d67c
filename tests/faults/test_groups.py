"""F5, F12, F67 and F74: groups that changed, or whose machines differ from the ones they would launch next."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED, Aws, pool
from tests.clouds.aws.user_data import encoded, node_config
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK
from tests.faults.test_zones import group

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.faults import Fault
from gpuscaler.simulation.cloud.delays import Delay


async def test_f12_missing_spot_capacity_of_a_mixed_group_does_not_pause_on_demand_of_other_groups(tmp_path: Path) -> None:
    """AWS divides the group between markets: it does not request missing spot capacity on demand."""
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.2xlarge", zones=("us-east-1a",), on_demand=50)
        here.group("on-demand")
        here.limit(0, market="spot")
        here.start(here.settings(more="pools: [{name: gpu, priority: 10}]\n"))
        await here.submit("a", "b", "c", "d")
        await here.until(lambda: len(here.machines()) == 4, 25.0)

        assert (len(here.machines("gpu")), len(here.machines("on-demand"))) == (2, 2)
        assert here.desired("gpu") == 2
        await here.sleep(20.0)
        status = await here.status()
        assert {breaker.target.partition(" ")[0] for breaker in status.breakers} == {"spot"}
        assert here.wrote()["SetDesiredCapacity"] == 2


def change(here: Stage, name: str, instance_type: str) -> None:
    """Create a new version of the launch template of a group."""
    data = {"ImageId": "ami-0123", "InstanceType": instance_type, "UserData": encoded(node_config(DISCOVERED, arriving=True))}
    here.client("ec2").create_launch_template_version(LaunchTemplateName=name, LaunchTemplateData=data)


async def test_f67_machines_of_an_older_launch_template_keep_their_price(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
        await here.sleep(60.0)
        change(here, "gpus", "g5.xlarge")
        here.start(here.settings(more="limits: {dollars_per_hour: 58}\n"))
        await here.submit("all", gpus=8)
        await here.submit("one", "two", "three")
        await here.sleep(60.0)

        assert sorted(instance.machine.offering.instance_type for instance in here.region.instances.values()) == [
            *["g5.xlarge"] * 2,
            "p5.48xlarge",
        ]
        (pool,) = (await here.status()).pools
        assert pool.dollars_per_hour == pytest.approx(55.04 + 2 * 1.006)


def test_f05_a_group_stays_a_pool_while_its_launch_template_cannot_be_read() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    discovery = aws.discovery()
    before = pool(discovery.discover(), "gpus").pool
    for operation in ("DescribeLaunchTemplates", "DescribeLaunchTemplateVersions"):
        aws.endpoint.faults.all.append(Fault(operation=operation, code="RequestLimitExceeded", status=503))
    after = pool(discovery.discover(), "gpus")
    discovery.close()

    assert after.pool == before
    assert any("could not be read; its last known state is used" in warning for warning in after.warnings)


async def test_f74_ordered_machines_are_opened_although_a_user_removes_the_tag_of_their_group(tmp_path: Path) -> None:
    slow = replace(QUICK, boot=Delay(115.0, 120.0, 125.0))
    async with aws_stage(tmp_path, Conditions(boot=slow)) as here:
        here.group("gpus")
        here.start(here.settings(exclude="[nothing]"))
        await here.submit("train")
        await here.until(here.machines, 20.0)
        keys = [{"ResourceId": "gpus", "ResourceType": "auto-scaling-group", "Key": key} for key in (f"{CA}/{CLUSTER}", f"{CA}/enabled")]
        here.client("autoscaling").delete_tags(Tags=keys)
        # A change of the file causes a new discovery of the account.
        here.path.write_text(here.settings(exclude="[nothing, else]"))
        await here.sleep(60.0)
        status = await here.status()
        assert (status.pools, await here.nodes()) == ((), [])
        await here.sleep(90.0)
        assert all((await here.bound()).values())

        await here.submit("other")
        await here.sleep(30.0)
        assert len(here.machines()) == 1
