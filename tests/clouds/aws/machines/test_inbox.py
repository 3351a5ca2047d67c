"""Announcements from a queue: each is reported once, for our machines only, in any order and however often it comes."""

import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import Shop

from gpuscaler.clouds.aws.machines.inbox import HELD_SECONDS, region_of
from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, REBALANCE, Notice
from gpuscaler.embedded.aws.autoscaling import scaling
from gpuscaler.embedded.aws.messages import notices as events
from gpuscaler.embedded.aws.serving.faults import denied

pytestmark = pytest.mark.looptime(False)
SPOT = {"MarketType": "spot"}


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """Two spot machines, and a queue that receives events."""
    aws = Aws()
    aws.template("spots", InstanceType="g6.xlarge", InstanceMarketOptions=SPOT)
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "spots", "Version": "$Latest"}, MaxSize=500)
    url = aws.client("sqs").create_queue(QueueName="events")["QueueUrl"]
    aws.account.region("us-east-1").queues["events"].receives_notices = True
    shop = Shop(aws, queue_url=url)
    await shop.provider.buy(await shop.order(2))
    await shop.pass_time(120)
    await shop.provider.inventory()
    yield shop
    await shop.provider.close()


def machines(shop: Shop) -> list[Any]:
    return list(shop.aws.account.region("us-east-1").instances.values())


def send(shop: Shop, *bodies: str) -> None:
    region = shop.aws.account.region("us-east-1")
    for body in bodies:
        region.queues["events"].send(body, ident=region.uuid(), now=region.now)


def warning(instance: str) -> str:
    detail = {"instance-id": instance, "instance-action": "terminate"}
    return json.dumps({"detail-type": "EC2 Spot Instance Interruption Warning", "time": "2026-11-21T12:00:00Z", "detail": detail})


def name(one: Any) -> str:
    return f"aws:///us-east-1a/{one.id}"


async def drain(shop: Shop) -> list[Notice]:
    """All announcements until no more come."""
    notices: list[Notice] = []
    for _ in range(3):
        notices += await shop.provider.notices()
    return notices


async def test_a_spot_warning_is_reported_once_with_its_time(shop: Shop) -> None:
    await drain(shop)
    one = machines(shop)[0]
    scaling.reclaim(shop.aws.account.region("us-east-1"), one, notice=120.0)
    (notice,) = (each for each in await drain(shop) if each.kind == INTERRUPTION)
    assert notice == Notice(INTERRUPTION, name(one), shop.aws.time + 120)


async def test_maintenance_and_rebalance_recommendations_are_reported(shop: Shop) -> None:
    await drain(shop)
    region = shop.aws.account.region("us-east-1")
    first, second = machines(shop)
    events.rebalance(region, first)
    events.scheduled_change(region, second, datetime.fromtimestamp(shop.aws.time + 86_400, UTC))
    assert {(each.kind, each.instance) for each in await drain(shop)} == {(REBALANCE, name(first)), (MAINTENANCE, name(second))}


async def test_the_end_of_a_machine_that_we_ended_is_no_interruption(shop: Shop) -> None:
    await drain(shop)
    gone = name(machines(shop)[0])
    await shop.provider.remove((gone,))
    await shop.pass_time(1)
    assert await drain(shop) == []


async def test_the_hook_of_a_machine_that_we_ended_is_completed(shop: Shop) -> None:
    scaler = shop.aws.client("autoscaling")
    scaler.put_lifecycle_hook(
        LifecycleHookName="drain", AutoScalingGroupName="gpus", LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING"
    )
    gone = machines(shop)[0]
    await shop.provider.remove((name(gone),))
    await shop.pass_time(5)
    assert [one["LifecycleState"] for one in shop.group()["Instances"] if one["InstanceId"] == gone.id] == ["Terminating:Wait"]
    await drain(shop)
    assert shop.aws.session.asked["CompleteLifecycleAction"] == 1
    await shop.pass_time(60)
    assert gone.id not in [one["InstanceId"] for one in shop.group()["Instances"]]


async def test_reported_messages_are_deleted(shop: Shop) -> None:
    send(shop, warning(machines(shop)[0].id), "{", warning("i-0fffffffffffffff0"))
    await drain(shop)
    assert not shop.aws.account.region("us-east-1").queues["events"].messages


async def test_a_queue_without_delete_permission_is_still_read_and_reported(shop: Shop) -> None:
    await drain(shop)
    first, second = machines(shop)
    shop.aws.endpoint.faults.all.append(denied("DeleteMessage*"))
    send(shop, warning(first.id))
    assert [notice.instance for notice in await shop.provider.notices()] == [name(first)]
    send(shop, warning(second.id))
    assert [notice.instance for notice in await shop.provider.notices()] == [name(second)]
    (said,) = (warning for warning in (await shop.provider.read_account()).warnings if warning.startswith("the queue"))
    assert "IAM does not allow sqs:DeleteMessage in us-east-1" in said
    shop.aws.endpoint.faults.all.clear()
    shop.aws.time += 60
    await drain(shop)
    assert not any(warning.startswith("the queue") for warning in (await shop.provider.read_account()).warnings)


async def test_a_message_about_an_unlisted_machine_is_reported_once_it_is_listed(shop: Shop) -> None:
    await drain(shop)
    (bought,) = (await shop.provider.buy(await shop.order(1, token="order-2"))).instances
    send(shop, warning(bought.id.rpartition("/")[2]))
    assert await drain(shop) == []
    await shop.provider.inventory()
    assert [each.instance for each in await drain(shop)] == [bought.id]


async def test_an_idle_queue_is_read_once_per_pass_and_a_busy_one_concurrently(shop: Shop) -> None:
    await drain(shop)
    asked = shop.aws.session.asked
    asked.clear()
    await shop.provider.notices()
    idle = asked["ReceiveMessage"]
    send(shop, warning(machines(shop)[0].id))
    await shop.provider.notices()

    assert (idle, asked["ReceiveMessage"]) == (1, 1 + 1 + 8)


async def test_a_thousand_messages_in_any_order_are_each_acted_on_once(shop: Shop) -> None:
    await drain(shop)
    shop.aws.account.region("us-east-1").queues["events"].receives_notices = False
    await shop.provider.buy(await shop.order(100, token="order-2"))
    await shop.provider.inventory()
    ours = [machine.id for machine in machines(shop)]
    luck = random.Random(1)
    bodies = [warning(luck.choice(ours)) for _ in range(940)]
    bodies += [warning(f"i-{number:017x}") for number in range(0xF000, 0xF000 + 50)]
    bodies += [luck.choice(("{", "[]", "{}", "null")) for _ in range(10)]
    luck.shuffle(bodies)
    wanted = {json.loads(body)["detail"]["instance-id"] for body in bodies if "detail" in body} & set(ours)
    assert shop.provider.inbox is not None
    before = shop.provider.inbox.counts.messages
    send(shop, *bodies)
    found = [each.instance.rpartition("/")[2] for each in await drain(shop)]
    assert sorted(found) == sorted(wanted)
    await shop.pass_time(HELD_SECONDS)
    assert await drain(shop) == []
    counts = shop.provider.inbox.counts
    assert (counts.messages - before, counts.malformed, counts.foreign) == (1000, 10, 50)


@pytest.mark.parametrize(
    ("url", "region"), [("https://sqs.eu-west-1.amazonaws.com/1/q", "eu-west-1"), ("http://127.0.0.1:4566/1/q", ""), ("", "")]
)
def test_the_region_of_a_queue_is_in_its_url(url: str, region: str) -> None:
    assert region_of(url) == region
