"""Machines that their groups no longer list: their end is known for as long as EC2 reports it."""

from collections.abc import AsyncIterator, Callable

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import ProviderHarness

from gpuscaler.embedded.aws.serving.faults import denied

pytestmark = pytest.mark.looptime(False)


@pytest.fixture
async def make_harness() -> AsyncIterator[Callable[[Aws], ProviderHarness]]:
    made: list[ProviderHarness] = []

    def make(aws: Aws) -> ProviderHarness:
        made.append(ProviderHarness(aws))
        return made[-1]

    yield make
    for harness in made:
        await harness.provider.close()


def account() -> Aws:
    aws = Aws()
    aws.group("gpus", instance_type="g6.xlarge")
    return aws


async def states(harness: ProviderHarness) -> dict[str, str]:
    return {each.id.rpartition("/")[2]: each.state for each in (await harness.provider.inventory()).instances}


async def test_a_machine_that_someone_else_ended_is_listed_as_terminated_for_an_hour(
    make_harness: Callable[[Aws], ProviderHarness],
) -> None:
    harness = make_harness(account())
    (bought,) = (await harness.provider.buy(await harness.order(1))).instances
    name = bought.id.rpartition("/")[2]
    await harness.pass_time(60)
    assert await states(harness) == {name: "running"}
    harness.aws.client("ec2").terminate_instances(InstanceIds=[name])
    harness.aws.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="gpus", DesiredCapacity=0)
    await harness.pass_time(120)
    (ended,) = [each for each in (await harness.provider.inventory()).instances if each.state == "terminated"]
    assert (ended.id, ended.key) == (bought.id, bought.key)
    await harness.pass_time(3000)
    assert await states(harness) == {name: "terminated"}
    await harness.pass_time(1000)
    assert await states(harness) == {}


async def test_a_machine_that_ended_before_the_first_pass_is_listed(make_harness: Callable[[Aws], ProviderHarness]) -> None:
    aws = account()
    harness = make_harness(aws)
    (bought,) = (await harness.provider.buy(await harness.order(1))).instances
    await harness.pass_time(60)
    await harness.provider.remove((bought.id,))
    await harness.pass_time(120)
    (ended,) = (await make_harness(aws).provider.inventory()).instances
    assert (ended.id, ended.pool, ended.market, ended.state) == (bought.id, "gpus", "on-demand", "terminated")


async def test_a_machine_that_ec2_no_longer_lists_counts_as_ended(make_harness: Callable[[Aws], ProviderHarness]) -> None:
    harness = make_harness(account())
    (bought,) = (await harness.provider.buy(await harness.order(1))).instances
    await harness.pass_time(900)
    name = bought.id.rpartition("/")[2]
    assert await states(harness) == {name: "running"}
    await harness.provider.remove((bought.id,))
    await harness.pass_time(7200)
    assert await states(harness) == {name: "terminated"}


async def test_a_detached_machine_that_keeps_running_is_not_listed(make_harness: Callable[[Aws], ProviderHarness]) -> None:
    harness = make_harness(account())
    (bought,) = (await harness.provider.buy(await harness.order(1))).instances
    await harness.pass_time(900)
    name = bought.id.rpartition("/")[2]
    assert await states(harness) == {name: "running"}
    region = harness.aws.account.region("us-east-1")
    del region.groups["gpus"].members[name]
    assert await states(harness) == {}
    asked = harness.aws.session.call_counts["DescribeInstances"]
    assert await states(harness) == {}
    assert harness.aws.session.call_counts["DescribeInstances"] == asked


async def test_a_missing_permission_does_not_make_a_machine_count_as_ended(make_harness: Callable[[Aws], ProviderHarness]) -> None:
    harness = make_harness(account())
    (bought,) = (await harness.provider.buy(await harness.order(1))).instances
    await harness.pass_time(900)
    assert len(await states(harness)) == 1
    await harness.provider.remove((bought.id,))
    await harness.pass_time(60)
    harness.aws.endpoint.faults.all.append(denied("DescribeInstances"))
    with pytest.raises(Exception, match="ec2:DescribeInstances"):
        await harness.provider.inventory()
