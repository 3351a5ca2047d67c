"""Orders that one process sent and another continues: nothing is forgotten, and no changes of others are undone."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import ProviderHarness

from gpuscaler.clouds.protocol import CAPACITY, CloudError, Order, UnfilledOrder
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity

pytestmark = pytest.mark.looptime(False)


@pytest.fixture
async def make_harnesses() -> AsyncIterator[Callable[..., tuple[ProviderHarness, ProviderHarness]]]:
    """Two processes, one after the other, with one account."""
    made: list[ProviderHarness] = []

    def make(activity: float = 0.0, **group: Any) -> tuple[ProviderHarness, ProviderHarness]:
        aws = Aws(conditions=Conditions(activity=activity))
        aws.group("gpus", **{"instance_type": "g6.xlarge", "MaxSize": 20, **group})
        made.extend(ProviderHarness(aws, launch="desired-capacity") for _ in range(2))
        return made[0], made[1]

    yield make
    for harness in made:
        await harness.provider.close()


def dry(harness: ProviderHarness, machines: int | None = 0) -> None:
    set_capacity(harness.aws.account.region("us-east-1"), Limit(machines))


def raise_group(harness: ProviderHarness, desired: int) -> None:
    harness.aws.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=desired)


def rest(order: Order, at: float, *, missing: int = 0, accepted: bool = True) -> UnfilledOrder:
    return UnfilledOrder(order, missing or order.count, at, accepted)


async def test_a_restarted_process_withdraws_its_own_capacity_increase_and_keeps_those_of_others(
    make_harnesses: Callable[..., Any],
) -> None:
    first, then = make_harnesses(activity=20.0)
    dry(first)
    order, at = await first.order(4), first.aws.time
    assert (await first.provider.buy(order)).pending == 4
    raise_group(first, 7)
    await then.provider.pools()
    await then.provider.withdraw(rest(order, at))
    assert then.group()["DesiredCapacity"] == 3
    await then.provider.withdraw(rest(order, at))
    assert then.group()["DesiredCapacity"] == 3


async def test_machines_launched_while_no_process_ran_are_kept(make_harnesses: Callable[..., Any]) -> None:
    first, then = make_harnesses(activity=20.0)
    dry(first, 1)
    order, at = await first.order(3), first.aws.time
    assert (await first.provider.buy(order)).pending == 2
    await then.provider.pools()
    await then.provider.withdraw(rest(order, at, missing=2))
    assert (then.group()["DesiredCapacity"], len(then.group()["Instances"])) == (1, 1)


async def test_a_restarted_process_reports_the_result_of_an_accepted_order(make_harnesses: Callable[..., Any]) -> None:
    first, then = make_harnesses(activity=20.0)
    dry(first)
    order, at = await first.order(4), first.aws.time
    assert (await first.provider.buy(order)).pending == 4
    await then.provider.pools()
    unfilled = rest(order, at)
    assert await then.provider.follow([unfilled]) == []
    await then.pass_time(20)
    ((token, settled),) = await then.provider.follow([unfilled])
    assert (token, settled.instances, {refusal.cause for refusal in settled.refusals}) == ("order-1", (), {CAPACITY})
    assert then.group()["DesiredCapacity"] == 0
    raise_group(then, 2)
    assert await then.provider.follow([unfilled]) == []
    assert then.group()["DesiredCapacity"] == 2


async def test_a_groups_activities_show_whether_an_order_was_sent(make_harnesses: Callable[..., Any]) -> None:
    first, then = make_harnesses()
    dry(first)
    order, at = await first.order(4), first.aws.time
    raise_group(first, 4)
    await first.pass_time(5)
    await then.provider.pools()
    ((_, settled),) = await then.provider.follow([rest(order, at, accepted=False)])
    assert (settled.pending, {refusal.cause for refusal in settled.refusals}) == (0, {CAPACITY})
    assert then.group()["DesiredCapacity"] == 0


async def test_withdrawing_an_order_that_was_never_sent_keeps_the_increases_of_others(make_harnesses: Callable[..., Any]) -> None:
    first, then = make_harnesses()
    dry(first)
    order, at = await first.order(4), first.aws.time
    raise_group(first, 3)
    await first.pass_time(5)
    await then.provider.pools()
    doubtful = rest(order, at, accepted=False)
    assert await then.provider.follow([doubtful]) == []
    with pytest.raises(CloudError, match="do not show yet whether the group was raised"):
        await then.provider.withdraw(doubtful)
    await then.pass_time(180)
    await then.provider.withdraw(doubtful)
    assert then.group()["DesiredCapacity"] == 3


async def test_tokens_of_launch_instances_are_relied_on_only_after_one_call_succeeded() -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g6.xlarge")
    harness = ProviderHarness(aws)
    order = await harness.order(1)
    before = harness.provider.keeps_tokens
    await harness.provider.buy(order)
    assert (before, harness.provider.keeps_tokens) == (False, True)
    await harness.provider.close()
