"""Machines that their groups no longer list: their end is known for as long as EC2 reports it."""

from collections.abc import AsyncIterator, Callable

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import Shop

from gpuscaler.embedded.aws.serving.faults import denied

pytestmark = pytest.mark.looptime(False)


@pytest.fixture
async def shops() -> AsyncIterator[Callable[[Aws], Shop]]:
    made: list[Shop] = []

    def make(aws: Aws) -> Shop:
        made.append(Shop(aws))
        return made[-1]

    yield make
    for shop in made:
        await shop.provider.close()


def account() -> Aws:
    aws = Aws()
    aws.group("gpus", instance_type="g6.xlarge")
    return aws


async def states(shop: Shop) -> dict[str, str]:
    return {each.id.rpartition("/")[2]: each.state for each in (await shop.provider.inventory()).instances}


async def test_a_machine_that_someone_else_ended_is_listed_as_terminated_for_an_hour(shops: Callable[[Aws], Shop]) -> None:
    shop = shops(account())
    (bought,) = (await shop.provider.buy(await shop.order(1))).instances
    name = bought.id.rpartition("/")[2]
    await shop.pass_time(60)
    assert await states(shop) == {name: "running"}
    shop.aws.client("ec2").terminate_instances(InstanceIds=[name])
    shop.aws.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="gpus", DesiredCapacity=0)
    await shop.pass_time(120)
    (ended,) = [each for each in (await shop.provider.inventory()).instances if each.state == "terminated"]
    assert (ended.id, ended.key) == (bought.id, bought.key)
    await shop.pass_time(3000)
    assert await states(shop) == {name: "terminated"}
    await shop.pass_time(1000)
    assert await states(shop) == {}


async def test_a_machine_that_ended_before_the_first_pass_is_listed(shops: Callable[[Aws], Shop]) -> None:
    aws = account()
    shop = shops(aws)
    (bought,) = (await shop.provider.buy(await shop.order(1))).instances
    await shop.pass_time(60)
    await shop.provider.remove((bought.id,))
    await shop.pass_time(120)
    (ended,) = (await shops(aws).provider.inventory()).instances
    assert (ended.id, ended.pool, ended.market, ended.state) == (bought.id, "gpus", "on-demand", "terminated")


async def test_a_machine_that_ec2_has_forgotten_counts_as_ended(shops: Callable[[Aws], Shop]) -> None:
    shop = shops(account())
    (bought,) = (await shop.provider.buy(await shop.order(1))).instances
    await shop.pass_time(900)
    name = bought.id.rpartition("/")[2]
    assert await states(shop) == {name: "running"}
    await shop.provider.remove((bought.id,))
    await shop.pass_time(7200)
    assert await states(shop) == {name: "terminated"}


async def test_a_detached_machine_keeps_running_and_is_not_ours(shops: Callable[[Aws], Shop]) -> None:
    shop = shops(account())
    (bought,) = (await shop.provider.buy(await shop.order(1))).instances
    await shop.pass_time(900)
    name = bought.id.rpartition("/")[2]
    assert await states(shop) == {name: "running"}
    region = shop.aws.account.region("us-east-1")
    del region.groups["gpus"].members[name]
    assert await states(shop) == {}
    asked = shop.aws.session.asked["DescribeInstances"]
    assert await states(shop) == {}
    assert shop.aws.session.asked["DescribeInstances"] == asked


async def test_a_missing_permission_does_not_make_a_machine_count_as_ended(shops: Callable[[Aws], Shop]) -> None:
    shop = shops(account())
    (bought,) = (await shop.provider.buy(await shop.order(1))).instances
    await shop.pass_time(900)
    assert len(await states(shop)) == 1
    await shop.provider.remove((bought.id,))
    await shop.pass_time(60)
    shop.aws.endpoint.faults.all.append(denied("DescribeInstances"))
    with pytest.raises(Exception, match="ec2:DescribeInstances"):
        await shop.provider.inventory()
