"""The provider against our own endpoint, through the real boto3: buying, listing, withdrawing, ending."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.clouds.aws.accounts import BEGAN, Aws
from tests.clouds.aws.providers import Shop

from gpuscaler.clouds.protocol import CAPACITY, QUOTA, THROTTLED, UNAUTHORISED, Bought, CloudError, LostAnswerError, Order, Unfilled
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.hardware import Trouble
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.embedded.aws.serving.faults import Fault, denied, throttled

pytestmark = pytest.mark.looptime(False)

ZONES = ["us-east-1a", "us-east-1b"]
SPOT = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized"}


@pytest.fixture
async def shop() -> AsyncIterator[Callable[..., Shop]]:
    made = []

    def make(conditions: Conditions | None = None, *, launch: str = "auto", **group: Any) -> Shop:
        aws = Aws(conditions=conditions)
        aws.group("gpus", **{"instance_type": "g6.xlarge", "AvailabilityZones": ZONES, "MaxSize": 20, **group})
        made.append(Shop(aws, launch=launch))
        return made[-1]

    yield make
    for shop in made:
        await shop.provider.close()


def spot_group(aws: Aws, *types: str, weights: tuple[str, ...] = ()) -> None:
    aws.template("spot", InstanceType=types[0])
    overrides = [{"InstanceType": one} for one in types]
    for one, weight in zip(overrides, weights, strict=False):
        one["WeightedCapacity"] = weight
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "spot", "Version": "$Latest"}, "Overrides": overrides}
    policy = {"LaunchTemplate": template, "InstancesDistribution": SPOT}
    aws.group("spots", MixedInstancesPolicy=policy, AvailabilityZones=ZONES, MaxSize=40)


def limit(shop: Shop, machines: int | None, **where: str) -> None:
    set_capacity(shop.aws.account.region("us-east-1"), Limit(machines, **where))


async def test_machines_are_launched_at_once_and_returned_with_ids(shop: Callable[..., Shop]) -> None:
    one = shop()
    bought = await one.provider.buy(await one.order(3))
    assert len(bought.instances) == 3
    assert bought.refusals == ()
    assert {(each.pool, each.market, each.instance_type, each.token) for each in bought.instances} == {
        ("gpus", "on-demand", "g6.xlarge", "order-1")
    }
    assert one.wrote() == {"LaunchInstances": 1}
    assert one.fenced == [10.0]
    inventory = await one.provider.inventory()
    assert {each.id for each in inventory.instances} == {each.id for each in bought.instances}
    assert {(each.token, each.launched > 0) for each in inventory.instances} == {("order-1", True)}


async def test_an_order_that_is_sent_again_buys_nothing_more(shop: Callable[..., Shop]) -> None:
    one = shop()
    order = await one.order(2)
    first = await one.provider.buy(order)
    assert {each.id for each in (await one.provider.buy(order)).instances} == {each.id for each in first.instances}
    assert one.group()["DesiredCapacity"] == 2
    assert one.provider.keeps_tokens


async def test_a_lost_answer_is_recovered_by_sending_the_order_again(shop: Callable[..., Shop]) -> None:
    one = shop()
    order = await one.order(2)
    one.aws.endpoint.faults.all.append(Fault(operation="LaunchInstances", sever="after", times=1))
    with pytest.raises(LostAnswerError):
        await one.provider.buy(order)
    assert len((await one.provider.buy(order)).instances) == 2
    assert one.group()["DesiredCapacity"] == 2


async def test_machines_that_one_zone_lacks_are_bought_in_the_next(shop: Callable[..., Shop]) -> None:
    one = shop()
    limit(one, 1, zone="us-east-1a")
    bought = await one.provider.buy(await one.order(3))
    assert sorted(each.zone for each in bought.instances) == ["us-east-1a", "us-east-1b", "us-east-1b"]
    assert {(each.cause, each.offering[3]) for each in bought.refusals} == {(CAPACITY, "us-east-1a")}


async def test_a_group_without_capacity_refuses_each_zone_and_keeps_its_desired_capacity(shop: Callable[..., Shop]) -> None:
    one = shop()
    limit(one, 0)
    bought = await one.provider.buy(await one.order(3))
    assert bought.instances == ()
    assert {each.offering[3] for each in bought.refusals} == set(ZONES)
    assert one.group()["DesiredCapacity"] == 0


async def test_a_quota_refusal_covers_all_its_types(shop: Callable[..., Shop]) -> None:
    one = shop()
    one.aws.account.region("us-east-1").hardware.troubles.append(Trouble("VcpuLimitExceeded"))
    bought = await one.provider.buy(await one.order(1))
    assert {(each.cause, each.bucket, each.every_zone) for each in bought.refusals} == {(QUOTA, ("g6.xlarge",), True)}


async def test_units_of_weighted_types_become_machines(shop: Callable[..., Shop]) -> None:
    one = shop()
    spot_group(one.aws, "g6.12xlarge", "g6.24xlarge", weights=("4", "4"))
    bought = await one.provider.buy(await one.order(3, pool="spots"))
    assert len(bought.instances) == 3
    assert one.group("spots")["DesiredCapacity"] == 12


async def test_the_desired_capacity_is_raised_if_the_settings_ask_for_it(shop: Callable[..., Shop]) -> None:
    one = shop(launch="desired-capacity")
    bought = await one.provider.buy(await one.order(3))
    assert (len(bought.instances), bought.pending, bought.refusals) == (3, 0, ())
    assert one.wrote() == {"SetDesiredCapacity": 1}
    assert not one.provider.keeps_tokens


async def test_the_desired_capacity_is_raised_if_the_settings_ask_for_a_fleet(shop: Callable[..., Shop]) -> None:
    one = shop(launch="fleet")
    assert len((await one.provider.buy(await one.order(1))).instances) == 1
    assert one.provider.way_to_buy("gpus") == ("desired-capacity", "aws.launch is fleet, and machines of fleets do not belong to the group")
    (aws_pool,) = one.discovery.discover().pools
    assert aws_pool.bought_by == "desired-capacity"
    assert any("aws.launch is fleet" in warning for warning in aws_pool.warnings)


async def test_a_finding_of_several_groups_is_one_warning(shop: Callable[..., Shop]) -> None:
    one = shop(NewInstancesProtectedFromScaleIn=False)
    for name in ("more", "others", "rest"):
        one.aws.group(name, instance_type="g5.xlarge", NewInstancesProtectedFromScaleIn=False)
    unprotected = [text for text in (await one.provider.read_account()).warnings if "not protected from scale-in" in text]

    assert [text.partition(":")[0] for text in unprotected] == ["pools gpus, more, others and 1 more"]


async def test_a_group_whose_desired_capacity_is_raised_chooses_the_zone(shop: Callable[..., Shop]) -> None:
    for one in (shop(launch="fleet"), shop(launch="desired-capacity")):
        assert [pool.chooser for pool in await one.provider.pools()] == ["cloud"]

    one = shop()
    assert [pool.chooser for pool in await one.provider.pools()] == ["buyer"]
    one.aws.endpoint.faults.all.append(denied("LaunchInstances"))
    await one.provider.buy(await one.order(1))
    assert [pool.chooser for pool in await one.provider.pools()] == ["cloud"]


async def test_without_permission_for_launch_instances_the_desired_capacity_is_raised(shop: Callable[..., Shop]) -> None:
    one = shop()
    one.aws.endpoint.faults.all.append(denied("LaunchInstances"))
    order = await one.order(2)
    assert len((await one.provider.buy(order)).instances) == 2
    way, why = one.provider.way_to_buy("gpus")
    assert way == "desired-capacity"
    assert "autoscaling:LaunchInstances" in why


async def test_the_permission_that_launch_instances_lacks_is_named(shop: Callable[..., Shop]) -> None:
    one = shop()
    said = "User: arn:aws:sts::1:assumed-role/a/b is not authorized to perform: ec2:CreateFleet on resource: *"
    one.aws.endpoint.faults.all.append(Fault(operation="LaunchInstances", code="AccessDenied", status=403, message=said))
    await one.provider.buy(await one.order(1))
    assert "IAM does not allow ec2:CreateFleet" in one.provider.way_to_buy("gpus")[1]


async def test_an_increment_that_fails_is_withdrawn_before_it_is_refused(shop: Callable[..., Shop]) -> None:
    one = shop(launch="desired-capacity")
    limit(one, 1)
    began = one.aws.time
    bought = await one.provider.buy(await one.order(5))
    assert (len(bought.instances), bought.pending) == (2, 0)
    assert {(each.cause, each.offering[3]) for each in bought.refusals} == {(CAPACITY, "us-east-1a"), (CAPACITY, "us-east-1b")}
    assert one.aws.time - began <= 8.0
    assert one.group()["DesiredCapacity"] == 2
    limit(one, None)
    await one.pass_time(600)
    assert len(one.group()["Instances"]) == 2


def rest(order: Order, *, at: float = BEGAN, accepted: bool = True) -> Unfilled:
    """``order`` with all its machines still missing."""
    return Unfilled(order, order.count, at, accepted)


async def test_late_failures_are_withdrawn_before_they_are_reported(shop: Callable[..., Shop]) -> None:
    one = shop(Conditions(activity=20.0), launch="desired-capacity")
    limit(one, 0)
    bought = await one.provider.buy(await one.order(4))
    assert (bought.instances, bought.pending, bought.refusals) == ((), 4, ())
    assert await one.provider.follow() == []
    await one.pass_time(20)
    ((token, settled),) = await one.provider.follow()
    assert (token, settled.instances, settled.pending) == ("order-1", (), 0)
    assert {each.cause for each in settled.refusals} == {CAPACITY}
    assert one.group()["DesiredCapacity"] == 0
    assert await one.provider.follow() == []


async def test_an_order_whose_caller_timed_out_is_completed_and_reported_later(shop: Callable[..., Shop]) -> None:
    one = shop(launch="desired-capacity")
    limit(one, 0)
    order = await one.order(4)
    buying = asyncio.create_task(one.provider.buy(order))
    await one.waits.wait()
    buying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await buying
    found: list[tuple[str, Bought]] = []
    for _ in range(2000):
        found += await one.provider.follow()
        if found:
            break
        await asyncio.sleep(0.001)
    assert [(token, len(each.instances), each.pending) for token, each in found] == [("order-1", 0, 0)]
    assert one.group()["DesiredCapacity"] == 0


async def test_raises_of_others_are_kept_when_ours_is_withdrawn(shop: Callable[..., Shop]) -> None:
    one = shop(Conditions(activity=20.0), launch="desired-capacity")
    limit(one, 0)
    order = await one.order(4)
    await one.provider.buy(order)
    one.aws.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=7)
    await one.provider.withdraw(rest(order))
    assert one.group()["DesiredCapacity"] == 3
    await one.provider.withdraw(rest(order))
    assert one.group()["DesiredCapacity"] == 3


async def test_late_machines_are_kept_when_the_rest_is_withdrawn(shop: Callable[..., Shop]) -> None:
    one = shop(Conditions(reaction=9.0), launch="desired-capacity", NewInstancesProtectedFromScaleIn=False, AvailabilityZones=ZONES[:1])
    limit(one, 1)
    order = await one.order(3)
    assert (await one.provider.buy(order)).pending == 3
    await one.pass_time(30)
    await one.provider.withdraw(rest(order))
    await one.pass_time(300)
    (machine,) = one.group()["Instances"]
    assert machine["ProtectedFromScaleIn"]
    assert one.group()["DesiredCapacity"] == 1


async def test_a_raised_group_that_cannot_be_read_is_read_again(shop: Callable[..., Shop]) -> None:
    one = shop(launch="desired-capacity")
    limit(one, 0)
    order = await one.order(2)
    faults = one.aws.endpoint.faults.all
    one.meanwhile = lambda: faults.append(denied("DescribeScalingActivities"))
    bought = await one.provider.buy(order)
    assert (bought.instances, bought.pending, bought.refusals) == ((), 2, ())
    with pytest.raises(CloudError, match="autoscaling:DescribeScalingActivities"):
        await one.provider.follow()
    faults.clear()
    ((token, settled),) = await one.provider.follow()
    assert (token, settled.pending) == ("order-1", 0)
    assert one.group()["DesiredCapacity"] == 0


async def test_a_full_group_refuses_an_order(shop: Callable[..., Shop]) -> None:
    one = shop(launch="desired-capacity", MaxSize=2)
    bought = await one.provider.buy(await one.order(3))
    assert (len(bought.instances), bought.pending) == (2, 0)
    bought = await one.provider.buy(await one.order(1, token="order-2"))
    assert {each.detail for each in bought.refusals} == {"group gpus in us-east-1 is at its maximum of 2"}


async def test_two_orders_of_one_group_do_not_share_machines(shop: Callable[..., Shop]) -> None:
    one = shop(launch="desired-capacity")
    first = await one.provider.buy(await one.order(2))
    second = await one.provider.buy(await one.order(2, token="order-2"))
    assert len({each.id for each in (*first.instances, *second.instances)}) == 4
    assert one.group()["DesiredCapacity"] == 4


async def test_a_throttled_write_is_not_repeated(shop: Callable[..., Shop]) -> None:
    one = shop()
    order = await one.order(1)
    one.aws.endpoint.faults.all.append(throttled("LaunchInstances", retry_after=3))
    with pytest.raises(CloudError) as caught:
        await one.provider.buy(order)
    assert (caught.value.cause, caught.value.retry_after) == (THROTTLED, 3.0)
    assert one.wrote() == {"LaunchInstances": 1}


async def test_a_closed_fence_stops_every_write(shop: Callable[..., Shop]) -> None:
    one = shop()
    order = await one.order(1)
    one.leading = False
    with pytest.raises(RuntimeError, match="not the leader"):
        await one.provider.buy(order)
    assert one.wrote() == {}


async def test_machines_are_ended_by_id_and_the_desired_capacity_is_lowered(shop: Callable[..., Shop]) -> None:
    one = shop()
    bought = await one.provider.buy(await one.order(3))
    gone = bought.instances[0].id
    await one.provider.inventory()
    assert await one.provider.remove((gone,)) == {gone: None}
    assert one.group()["DesiredCapacity"] == 2
    states = {each.id: each.state for each in (await one.provider.inventory()).instances}
    assert states.pop(gone, "stopping") == "stopping"
    assert len(states) == 2
    assert await one.provider.remove((gone,)) == {gone: None}
    assert one.group()["DesiredCapacity"] == 2


async def test_a_machine_of_a_group_at_its_minimum_is_ended_and_replaced(shop: Callable[..., Shop]) -> None:
    one = shop(MinSize=1, DesiredCapacity=1)
    await one.pass_time(60)
    (machine,) = (await one.provider.inventory()).instances
    assert await one.provider.remove((machine.id,)) == {machine.id: None}
    assert one.group()["DesiredCapacity"] == 1


async def test_a_machine_that_no_group_of_ours_lists_is_never_touched(shop: Callable[..., Shop]) -> None:
    one = shop()
    foreign = {"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/other": "owned"}
    one.aws.group("others", foreign, instance_type="g5.xlarge", MinSize=1)
    await one.pass_time(60)
    (machine,) = one.group("others")["Instances"]
    name = f"aws:///us-east-1a/{machine['InstanceId']}"
    assert await one.provider.remove((name, "gce://else")) == {name: None, "gce://else": None}
    assert one.wrote() == {}


async def test_a_missing_permission_is_named_if_a_machine_cannot_be_ended(shop: Callable[..., Shop]) -> None:
    one = shop()
    (machine,) = (await one.provider.buy(await one.order(1))).instances
    one.aws.endpoint.faults.all.append(denied("TerminateInstanceInAutoScalingGroup"))
    refusal = (await one.provider.remove((machine.id,)))[machine.id]
    assert refusal is not None
    assert refusal.cause == UNAUTHORISED
    assert "autoscaling:TerminateInstanceInAutoScalingGroup" in refusal.detail


async def test_a_partial_list_is_an_error(shop: Callable[..., Shop]) -> None:
    one = shop()
    await one.provider.buy(await one.order(1))
    one.aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups"))
    with pytest.raises(CloudError, match="autoscaling:DescribeAutoScalingGroups"):
        await one.provider.inventory()


async def test_spot_machines_are_listed_as_such_and_described_once(shop: Callable[..., Shop]) -> None:
    one = shop()
    spot_group(one.aws, "g6.xlarge", "g5.xlarge")
    await one.provider.buy(await one.order(2, pool="spots"))
    for _ in range(3):
        inventory = await one.provider.inventory()
    assert {each.market for each in inventory.instances} == {"spot"}
    # One more call is for machines that ended before the first pass.
    assert one.aws.session.asked["DescribeInstances"] == 2


async def test_there_is_no_list_before_every_region_has_answered_once() -> None:
    aws = Aws(regions=("us-east-1", "us-west-2"))
    for region in aws.regions:
        aws.group(f"gpus-{region}", region=region, instance_type="g6.xlarge")
    shop = Shop(aws)
    aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups", region="us-west-2"))
    looked = await shop.provider.read_account()
    assert ([pool.name for pool in looked.pools], looked.complete, len(looked.failed)) == (["gpus-us-east-1"], False, 1)
    with pytest.raises(CloudError, match="nothing is known yet about us-west-2"):
        await shop.provider.inventory()
    aws.endpoint.faults.all.clear()
    await shop.provider.inventory()
    aws.endpoint.faults.all.append(denied("DescribeLaunchTemplateVersions", region="us-west-2"))
    aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups", region="us-west-2"))
    looked = await shop.provider.read_account()
    assert ([pool.name for pool in looked.pools], looked.complete) == (["gpus-us-east-1", "gpus-us-west-2"], True)
    await shop.provider.close()
