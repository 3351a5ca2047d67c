"""Groups that do not show a recent write yet: never more is launched than was ordered."""

from collections.abc import AsyncIterator, Callable

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import ProviderHarness

from gpuscaler.clouds.protocol import BuyResult
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity

pytestmark = pytest.mark.looptime(False)
SPOT = {"MarketType": "spot"}
LAG = 5.0


@pytest.fixture
async def make_harness() -> AsyncIterator[Callable[..., ProviderHarness]]:
    """Makes a group of a spot type that is bought through the desired capacity, in an account whose answers lag."""
    made: list[ProviderHarness] = []

    def make(machines: int) -> ProviderHarness:
        aws = Aws(conditions=Conditions(activity=2.0, retry=10.0, read_lag=LAG))
        aws.template("spots", InstanceType="g6.xlarge", InstanceMarketOptions=SPOT)
        aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "spots", "Version": "$Latest"}, MaxSize=20)
        limit(aws, machines)
        aws.time += LAG
        harness = ProviderHarness(aws, launch="desired-capacity")
        made.append(harness)
        return harness

    yield make
    for harness in made:
        await harness.provider.close()


def limit(aws: Aws, machines: int | None) -> None:
    set_capacity(aws.account.region("us-east-1"), Limit(machines, market="spot"))


async def wait_for_answer(harness: ProviderHarness, bought: BuyResult) -> BuyResult:
    """The final answer to an order."""
    for _ in range(30):
        if not bought.pending:
            return bought
        await harness.pass_time(2.0)
        for _token, answer in await harness.provider.follow():
            bought = answer
    raise AssertionError(f"saw {bought}, expected an answer within a minute")


def count_machines(harness: ProviderHarness) -> int:
    return len(harness.aws.account.region("us-east-1").groups["gpus"].members)


async def test_a_failed_capacity_increase_is_withdrawn_even_while_reads_do_not_show_it_yet(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness(0)
    bought = await wait_for_answer(harness, await harness.provider.buy(await harness.order(4)))
    assert (bought.instances, bool(bought.refusals)) == ((), True)
    limit(harness.aws, None)
    await harness.pass_time(600)
    assert count_machines(harness) == 0


async def test_an_order_after_a_withdrawal_increases_the_capacity_from_its_lowered_value(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness(1)
    first = await wait_for_answer(harness, await harness.provider.buy(await harness.order(2)))
    second = await wait_for_answer(harness, await harness.provider.buy(await harness.order(2, token="order-2")))
    assert (len(first.instances), len(second.instances)) == (1, 0)
    limit(harness.aws, None)
    await harness.pass_time(600)
    assert count_machines(harness) == 1


async def test_two_consecutive_orders_both_increase_the_desired_capacity(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(10)
    for number in range(2):
        bought = await wait_for_answer(harness, await harness.provider.buy(await harness.order(2, token=f"order-{number}")))
        assert len(bought.instances) == 2
    assert count_machines(harness) == 4
