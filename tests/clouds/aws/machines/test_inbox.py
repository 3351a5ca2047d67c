"""Announcements from a queue: each one about our machines is reported once, in whatever order and however often it is delivered."""

import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.clouds.aws.accounts import Aws
from tests.clouds.aws.providers import ProviderHarness

from gpuscaler.clouds.aws.machines.inbox import HELD_SECONDS, region_of
from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, REBALANCE, Notice
from gpuscaler.embedded.aws.autoscaling import scaling
from gpuscaler.embedded.aws.messages import notices as events
from gpuscaler.embedded.aws.serving.faults import denied

pytestmark = pytest.mark.looptime(False)
SPOT = {"MarketType": "spot"}


@pytest.fixture
async def harness() -> AsyncIterator[ProviderHarness]:
    """Two spot machines, and a queue that receives events."""
    aws = Aws()
    aws.template("spots", InstanceType="g6.xlarge", InstanceMarketOptions=SPOT)
    aws.group("gpus", LaunchTemplate={"LaunchTemplateName": "spots", "Version": "$Latest"}, MaxSize=500)
    url = aws.client("sqs").create_queue(QueueName="events")["QueueUrl"]
    aws.account.region("us-east-1").queues["events"].receives_notices = True
    harness = ProviderHarness(aws, queue_url=url)
    await harness.provider.buy(await harness.order(2))
    await harness.pass_time(120)
    await harness.provider.inventory()
    yield harness
    await harness.provider.close()


def machines(harness: ProviderHarness) -> list[Any]:
    return list(harness.aws.account.region("us-east-1").instances.values())


def send(harness: ProviderHarness, *bodies: str) -> None:
    region = harness.aws.account.region("us-east-1")
    for body in bodies:
        region.queues["events"].send(body, ident=region.uuid(), now=region.now)


def warning(instance: str) -> str:
    detail = {"instance-id": instance, "instance-action": "terminate"}
    return json.dumps({"detail-type": "EC2 Spot Instance Interruption Warning", "time": "2026-11-21T12:00:00Z", "detail": detail})


def name(instance: Any) -> str:
    return f"aws:///us-east-1a/{instance.id}"


async def drain(harness: ProviderHarness) -> list[Notice]:
    """All announcements until no more come."""
    notices: list[Notice] = []
    for _ in range(3):
        notices += await harness.provider.notices()
    return notices


async def test_a_spot_interruption_warning_is_reported_once_with_its_time(harness: ProviderHarness) -> None:
    await drain(harness)
    instance = machines(harness)[0]
    scaling.reclaim(harness.aws.account.region("us-east-1"), instance, notice=120.0)
    (notice,) = (each for each in await drain(harness) if each.kind == INTERRUPTION)
    assert notice == Notice(INTERRUPTION, name(instance), harness.aws.time + 120)


async def test_maintenance_and_rebalance_recommendations_are_reported(harness: ProviderHarness) -> None:
    await drain(harness)
    region = harness.aws.account.region("us-east-1")
    first, second = machines(harness)
    events.rebalance(region, first)
    events.scheduled_change(region, second, datetime.fromtimestamp(harness.aws.time + 86_400, UTC))
    assert {(each.kind, each.instance) for each in await drain(harness)} == {(REBALANCE, name(first)), (MAINTENANCE, name(second))}


async def test_the_termination_of_a_machine_that_we_ended_is_no_interruption(harness: ProviderHarness) -> None:
    await drain(harness)
    ended = name(machines(harness)[0])
    await harness.provider.remove((ended,))
    await harness.pass_time(1)
    assert await drain(harness) == []


async def test_the_termination_hook_of_a_machine_that_we_ended_is_completed(harness: ProviderHarness) -> None:
    scaler = harness.aws.client("autoscaling")
    scaler.put_lifecycle_hook(
        LifecycleHookName="drain", AutoScalingGroupName="gpus", LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING"
    )
    ended = machines(harness)[0]
    await harness.provider.remove((name(ended),))
    await harness.pass_time(5)
    assert [machine["LifecycleState"] for machine in harness.group()["Instances"] if machine["InstanceId"] == ended.id] == [
        "Terminating:Wait"
    ]
    await drain(harness)
    assert harness.aws.session.call_counts["CompleteLifecycleAction"] == 1
    await harness.pass_time(60)
    assert ended.id not in [machine["InstanceId"] for machine in harness.group()["Instances"]]


async def test_reported_messages_are_deleted_from_the_queue(harness: ProviderHarness) -> None:
    send(harness, warning(machines(harness)[0].id), "{", warning("i-0fffffffffffffff0"))
    await drain(harness)
    assert not harness.aws.account.region("us-east-1").queues["events"].messages


async def test_a_queue_without_delete_permission_is_still_read_and_reported(harness: ProviderHarness) -> None:
    await drain(harness)
    first, second = machines(harness)
    harness.aws.endpoint.faults.all.append(denied("DeleteMessage*"))
    send(harness, warning(first.id))
    assert [notice.instance for notice in await harness.provider.notices()] == [name(first)]
    send(harness, warning(second.id))
    assert [notice.instance for notice in await harness.provider.notices()] == [name(second)]
    (queue_warning,) = (warning for warning in (await harness.provider.read_account()).warnings if warning.startswith("the queue"))
    assert "IAM does not allow sqs:DeleteMessage in us-east-1" in queue_warning
    harness.aws.endpoint.faults.all.clear()
    harness.aws.time += 60
    await drain(harness)
    assert not any(warning.startswith("the queue") for warning in (await harness.provider.read_account()).warnings)


async def test_a_message_about_an_unlisted_machine_is_reported_once_it_is_listed(harness: ProviderHarness) -> None:
    await drain(harness)
    (bought,) = (await harness.provider.buy(await harness.order(1, token="order-2"))).instances
    send(harness, warning(bought.id.rpartition("/")[2]))
    assert await drain(harness) == []
    await harness.provider.inventory()
    assert [each.instance for each in await drain(harness)] == [bought.id]


async def test_an_empty_queue_is_read_once_per_pass_and_a_full_one_concurrently(harness: ProviderHarness) -> None:
    await drain(harness)
    asked = harness.aws.session.call_counts
    asked.clear()
    await harness.provider.notices()
    idle = asked["ReceiveMessage"]
    send(harness, warning(machines(harness)[0].id))
    await harness.provider.notices()

    assert (idle, asked["ReceiveMessage"]) == (1, 1 + 1 + 8)


async def test_each_of_a_thousand_messages_in_any_order_is_handled_once(harness: ProviderHarness) -> None:
    await drain(harness)
    harness.aws.account.region("us-east-1").queues["events"].receives_notices = False
    await harness.provider.buy(await harness.order(100, token="order-2"))
    await harness.provider.inventory()
    ours = [machine.id for machine in machines(harness)]
    luck = random.Random(1)
    bodies = [warning(luck.choice(ours)) for _ in range(940)]
    bodies += [warning(f"i-{number:017x}") for number in range(0xF000, 0xF000 + 50)]
    bodies += [luck.choice(("{", "[]", "{}", "null")) for _ in range(10)]
    luck.shuffle(bodies)
    wanted = {json.loads(body)["detail"]["instance-id"] for body in bodies if "detail" in body} & set(ours)
    assert harness.provider.inbox is not None
    before = harness.provider.inbox.counts.messages
    send(harness, *bodies)
    instances = [each.instance.rpartition("/")[2] for each in await drain(harness)]
    assert sorted(instances) == sorted(wanted)
    await harness.pass_time(HELD_SECONDS)
    assert await drain(harness) == []
    counts = harness.provider.inbox.counts
    assert (counts.messages - before, counts.malformed, counts.foreign) == (1000, 10, 50)


@pytest.mark.parametrize(
    ("url", "region"), [("https://sqs.eu-west-1.amazonaws.com/1/q", "eu-west-1"), ("http://127.0.0.1:4566/1/q", ""), ("", "")]
)
def test_the_region_of_a_queue_is_read_from_its_url(url: str, region: str) -> None:
    assert region_of(url) == region
