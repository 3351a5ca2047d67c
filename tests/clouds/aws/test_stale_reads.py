"""Groups that do not show a recent write yet: never more is launched than was ordered."""

from collections.abc import AsyncIterator, Callable

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import Shop

from gpuscaler.clouds.protocol import Bought
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity

pytestmark = pytest.mark.looptime(False)
SPOT = {"MarketType": "spot"}
LAG = 5.0


@pytest.fixture
async def shop() -> AsyncIterator[Callable[..., Shop]]:
    """Makes a group of a spot type that is bought through the desired capacity, in an account whose answers lag."""
    made: list[Shop] = []

    def make(machines: int) -> Shop:
        aws = Aws(conditions=Conditions(activity=2.0, retry=10.0, read_lag=LAG))
        aws.template("spots", InstanceType="g6.xlarge", InstanceMarketOptions=SPOT)
        aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "spots", "Version": "$Latest"}, MaxSize=20)
        limit(aws, machines)
        aws.time += LAG
        shop = Shop(aws, launch="desired-capacity")
        made.append(shop)
        return shop

    yield make
    for shop in made:
        await shop.provider.close()


def limit(aws: Aws, machines: int | None) -> None:
    set_capacity(aws.account.region("us-east-1"), Limit(machines, market="spot"))


async def settled(shop: Shop, bought: Bought) -> Bought:
    """The final answer to an order."""
    for _ in range(30):
        if not bought.pending:
            return bought
        await shop.pass_time(2.0)
        for _token, answered in await shop.provider.follow():
            bought = answered
    raise AssertionError(f"saw {bought}, expected an answer within a minute")


def machines(shop: Shop) -> int:
    return len(shop.aws.account.region("us-east-1").groups["gpus"].members)


async def test_a_raise_that_does_not_show_yet_is_withdrawn_before_it_is_refused(shop: Callable[..., Shop]) -> None:
    one = shop(0)
    bought = await settled(one, await one.provider.buy(await one.order(4)))
    assert (bought.instances, bool(bought.refusals)) == ((), True)
    limit(one.aws, None)
    await one.pass_time(600)
    assert machines(one) == 0


async def test_an_order_after_a_withdrawal_adds_to_the_lowered_capacity(shop: Callable[..., Shop]) -> None:
    one = shop(1)
    first = await settled(one, await one.provider.buy(await one.order(2)))
    second = await settled(one, await one.provider.buy(await one.order(2, token="order-2")))
    assert (len(first.instances), len(second.instances)) == (1, 0)
    limit(one.aws, None)
    await one.pass_time(600)
    assert machines(one) == 1


async def test_two_consecutive_orders_are_both_added(shop: Callable[..., Shop]) -> None:
    one = shop(10)
    for number in range(2):
        bought = await settled(one, await one.provider.buy(await one.order(2, token=f"order-{number}")))
        assert len(bought.instances) == 2
    assert machines(one) == 4
