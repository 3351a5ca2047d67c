"""The provider against our own endpoint, through the real boto3: buying, listing, withdrawing, ending."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.clouds.aws.accounts import BEGAN, Aws
from tests.clouds.aws.providers import ProviderHarness

from gpuscaler.clouds.protocol import CAPACITY, QUOTA, THROTTLED, UNAUTHORISED, BuyResult, CloudError, LostAnswerError, Order, UnfilledOrder
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.hardware import Trouble
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.embedded.aws.serving.faults import Fault, denied, throttled

pytestmark = pytest.mark.looptime(False)

ZONES = ["us-east-1a", "us-east-1b"]
SPOT = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized"}


@pytest.fixture
async def make_harness() -> AsyncIterator[Callable[..., ProviderHarness]]:
    made = []

    def make(conditions: Conditions | None = None, *, launch: str = "auto", **group: Any) -> ProviderHarness:
        aws = Aws(conditions=conditions)
        aws.group("gpus", **{"instance_type": "g6.xlarge", "AvailabilityZones": ZONES, "MaxSize": 20, **group})
        made.append(ProviderHarness(aws, launch=launch))
        return made[-1]

    yield make
    for harness in made:
        await harness.provider.close()


def spot_group(aws: Aws, *types: str, weights: tuple[str, ...] = ()) -> None:
    aws.template("spot", InstanceType=types[0])
    overrides = [{"InstanceType": instance_type} for instance_type in types]
    for override, weight in zip(overrides, weights, strict=False):
        override["WeightedCapacity"] = weight
    template = {"LaunchTemplateSpecification": {"LaunchTemplateName": "spot", "Version": "$Latest"}, "Overrides": overrides}
    policy = {"LaunchTemplate": template, "InstancesDistribution": SPOT}
    aws.group("spots", MixedInstancesPolicy=policy, AvailabilityZones=ZONES, MaxSize=40)


def limit(harness: ProviderHarness, machines: int | None, **where: str) -> None:
    set_capacity(harness.aws.account.region("us-east-1"), Limit(machines, **where))


async def test_machines_are_launched_synchronously_and_returned_with_ids(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    bought = await harness.provider.buy(await harness.order(3))
    assert len(bought.instances) == 3
    assert bought.refusals == ()
    assert {(each.pool, each.market, each.instance_type, each.token) for each in bought.instances} == {
        ("gpus", "on-demand", "g6.xlarge", "order-1")
    }
    assert harness.write_counts() == {"LaunchInstances": 1}
    assert harness.fenced == [10.0]
    inventory = await harness.provider.inventory()
    assert {each.id for each in inventory.instances} == {each.id for each in bought.instances}
    assert {(each.token, each.launched > 0) for each in inventory.instances} == {("order-1", True)}


async def test_repeating_an_order_buys_nothing_more(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    order = await harness.order(2)
    first = await harness.provider.buy(order)
    assert {each.id for each in (await harness.provider.buy(order)).instances} == {each.id for each in first.instances}
    assert harness.group()["DesiredCapacity"] == 2
    assert harness.provider.keeps_tokens


async def test_the_result_of_an_order_with_a_lost_answer_is_recovered_by_repeating_the_order(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness()
    order = await harness.order(2)
    harness.aws.endpoint.faults.all.append(Fault(operation="LaunchInstances", sever="after", times=1))
    with pytest.raises(LostAnswerError):
        await harness.provider.buy(order)
    assert len((await harness.provider.buy(order)).instances) == 2
    assert harness.group()["DesiredCapacity"] == 2


async def test_machines_that_one_zone_cannot_provide_are_bought_in_the_next_zone(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    limit(harness, 1, zone="us-east-1a")
    bought = await harness.provider.buy(await harness.order(3))
    assert sorted(each.zone for each in bought.instances) == ["us-east-1a", "us-east-1b", "us-east-1b"]
    assert {(each.cause, each.offering[3]) for each in bought.refusals} == {(CAPACITY, "us-east-1a")}


async def test_without_capacity_each_zone_is_refused_and_the_desired_capacity_stays(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness()
    limit(harness, 0)
    bought = await harness.provider.buy(await harness.order(3))
    assert bought.instances == ()
    assert {each.offering[3] for each in bought.refusals} == set(ZONES)
    assert harness.group()["DesiredCapacity"] == 0


async def test_a_quota_refusal_concerns_all_types_of_the_quota(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    harness.aws.account.region("us-east-1").hardware.troubles.append(Trouble("VcpuLimitExceeded"))
    bought = await harness.provider.buy(await harness.order(1))
    assert {(each.cause, each.bucket, each.every_zone) for each in bought.refusals} == {(QUOTA, ("g6.xlarge",), True)}


async def test_capacity_units_of_weighted_types_are_converted_to_machines(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    spot_group(harness.aws, "g6.12xlarge", "g6.24xlarge", weights=("4", "4"))
    bought = await harness.provider.buy(await harness.order(3, pool="spots"))
    assert len(bought.instances) == 3
    assert harness.group("spots")["DesiredCapacity"] == 12


async def test_the_desired_capacity_is_increased_if_buying_that_way_is_configured(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="desired-capacity")
    bought = await harness.provider.buy(await harness.order(3))
    assert (len(bought.instances), bought.pending, bought.refusals) == (3, 0, ())
    assert harness.write_counts() == {"SetDesiredCapacity": 1}
    assert not harness.provider.keeps_tokens


async def test_the_desired_capacity_is_increased_if_a_fleet_is_configured(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="fleet")
    assert len((await harness.provider.buy(await harness.order(1))).instances) == 1
    assert harness.provider.way_to_buy("gpus") == (
        "desired-capacity",
        "aws.launch is fleet, and machines of fleets do not belong to the group",
    )
    (aws_pool,) = harness.discovery.discover().pools
    assert aws_pool.bought_by == "desired-capacity"
    assert any("aws.launch is fleet" in warning for warning in aws_pool.warnings)


async def test_the_same_finding_of_several_groups_is_logged_as_one_warning(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(NewInstancesProtectedFromScaleIn=False)
    for name in ("more", "others", "rest"):
        harness.aws.group(name, instance_type="g5.xlarge", NewInstancesProtectedFromScaleIn=False)
    unprotected = [text for text in (await harness.provider.read_account()).warnings if "not protected from scale-in" in text]

    assert [text.partition(":")[0] for text in unprotected] == ["pools gpus, more, others and 1 more"]


async def test_an_increase_of_the_desired_capacity_lets_the_group_choose_the_zone(make_harness: Callable[..., ProviderHarness]) -> None:
    for harness in (make_harness(launch="fleet"), make_harness(launch="desired-capacity")):
        assert [pool.chooser for pool in await harness.provider.pools()] == ["cloud"]

    harness = make_harness()
    assert [pool.chooser for pool in await harness.provider.pools()] == ["buyer"]
    harness.aws.endpoint.faults.all.append(denied("LaunchInstances"))
    await harness.provider.buy(await harness.order(1))
    assert [pool.chooser for pool in await harness.provider.pools()] == ["cloud"]


async def test_without_permission_for_launch_instances_the_desired_capacity_is_increased(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness()
    harness.aws.endpoint.faults.all.append(denied("LaunchInstances"))
    order = await harness.order(2)
    assert len((await harness.provider.buy(order)).instances) == 2
    way, why = harness.provider.way_to_buy("gpus")
    assert way == "desired-capacity"
    assert "autoscaling:LaunchInstances" in why


async def test_the_permission_that_launch_instances_lacks_is_named(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    message = "User: arn:aws:sts::1:assumed-role/a/b is not authorized to perform: ec2:CreateFleet on resource: *"
    harness.aws.endpoint.faults.all.append(Fault(operation="LaunchInstances", code="AccessDenied", status=403, message=message))
    await harness.provider.buy(await harness.order(1))
    assert "IAM does not allow ec2:CreateFleet" in harness.provider.way_to_buy("gpus")[1]


async def test_a_failed_capacity_increase_is_withdrawn_before_the_order_is_refused(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="desired-capacity")
    limit(harness, 1)
    began = harness.aws.time
    bought = await harness.provider.buy(await harness.order(5))
    assert (len(bought.instances), bought.pending) == (2, 0)
    assert {(each.cause, each.offering[3]) for each in bought.refusals} == {(CAPACITY, "us-east-1a"), (CAPACITY, "us-east-1b")}
    assert harness.aws.time - began <= 8.0
    assert harness.group()["DesiredCapacity"] == 2
    limit(harness, None)
    await harness.pass_time(600)
    assert len(harness.group()["Instances"]) == 2


def rest(order: Order, *, at: float = BEGAN, accepted: bool = True) -> UnfilledOrder:
    """``order`` with all its machines still missing."""
    return UnfilledOrder(order, order.count, at, accepted)


async def test_capacity_increases_that_fail_late_are_withdrawn_before_they_are_reported(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness(Conditions(activity=20.0), launch="desired-capacity")
    limit(harness, 0)
    bought = await harness.provider.buy(await harness.order(4))
    assert (bought.instances, bought.pending, bought.refusals) == ((), 4, ())
    assert await harness.provider.follow() == []
    await harness.pass_time(20)
    ((token, settled),) = await harness.provider.follow()
    assert (token, settled.instances, settled.pending) == ("order-1", (), 0)
    assert {each.cause for each in settled.refusals} == {CAPACITY}
    assert harness.group()["DesiredCapacity"] == 0
    assert await harness.provider.follow() == []


async def test_an_order_whose_caller_timed_out_is_completed_and_reported_later(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="desired-capacity")
    limit(harness, 0)
    order = await harness.order(4)
    buying = asyncio.create_task(harness.provider.buy(order))
    await harness.waits.wait()
    buying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await buying
    answers: list[tuple[str, BuyResult]] = []
    for _ in range(2000):
        answers += await harness.provider.follow()
        if answers:
            break
        await asyncio.sleep(0.001)
    assert [(token, len(each.instances), each.pending) for token, each in answers] == [("order-1", 0, 0)]
    assert harness.group()["DesiredCapacity"] == 0


async def test_capacity_increases_of_others_are_kept_when_ours_is_withdrawn(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(Conditions(activity=20.0), launch="desired-capacity")
    limit(harness, 0)
    order = await harness.order(4)
    await harness.provider.buy(order)
    harness.aws.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=7)
    await harness.provider.withdraw(rest(order))
    assert harness.group()["DesiredCapacity"] == 3
    await harness.provider.withdraw(rest(order))
    assert harness.group()["DesiredCapacity"] == 3


async def test_machines_launched_late_are_kept_when_the_rest_of_the_order_is_withdrawn(
    make_harness: Callable[..., ProviderHarness],
) -> None:
    harness = make_harness(
        Conditions(reaction=9.0), launch="desired-capacity", NewInstancesProtectedFromScaleIn=False, AvailabilityZones=ZONES[:1]
    )
    limit(harness, 1)
    order = await harness.order(3)
    assert (await harness.provider.buy(order)).pending == 3
    await harness.pass_time(30)
    await harness.provider.withdraw(rest(order))
    await harness.pass_time(300)
    (machine,) = harness.group()["Instances"]
    assert machine["ProtectedFromScaleIn"]
    assert harness.group()["DesiredCapacity"] == 1


async def test_after_a_capacity_increase_a_failed_read_of_the_group_is_retried(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="desired-capacity")
    limit(harness, 0)
    order = await harness.order(2)
    faults = harness.aws.endpoint.faults.all
    harness.meanwhile = lambda: faults.append(denied("DescribeScalingActivities"))
    bought = await harness.provider.buy(order)
    assert (bought.instances, bought.pending, bought.refusals) == ((), 2, ())
    with pytest.raises(CloudError, match="autoscaling:DescribeScalingActivities"):
        await harness.provider.follow()
    faults.clear()
    ((token, settled),) = await harness.provider.follow()
    assert (token, settled.pending) == ("order-1", 0)
    assert harness.group()["DesiredCapacity"] == 0


async def test_an_order_for_a_group_at_its_maximum_is_refused(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="desired-capacity", MaxSize=2)
    bought = await harness.provider.buy(await harness.order(3))
    assert (len(bought.instances), bought.pending) == (2, 0)
    bought = await harness.provider.buy(await harness.order(1, token="order-2"))
    assert {each.detail for each in bought.refusals} == {"group gpus in us-east-1 is at its maximum of 2"}


async def test_two_orders_for_one_group_do_not_count_the_same_machines(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(launch="desired-capacity")
    first = await harness.provider.buy(await harness.order(2))
    second = await harness.provider.buy(await harness.order(2, token="order-2"))
    assert len({each.id for each in (*first.instances, *second.instances)}) == 4
    assert harness.group()["DesiredCapacity"] == 4


async def test_a_throttled_write_is_not_repeated(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    order = await harness.order(1)
    harness.aws.endpoint.faults.all.append(throttled("LaunchInstances", retry_after=3))
    with pytest.raises(CloudError) as caught:
        await harness.provider.buy(order)
    assert (caught.value.cause, caught.value.retry_after) == (THROTTLED, 3.0)
    assert harness.write_counts() == {"LaunchInstances": 1}


async def test_no_write_is_sent_once_the_fence_is_closed(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    order = await harness.order(1)
    harness.leading = False
    with pytest.raises(RuntimeError, match="not the leader"):
        await harness.provider.buy(order)
    assert harness.write_counts() == {}


async def test_machines_are_ended_by_id_and_the_desired_capacity_is_lowered(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    bought = await harness.provider.buy(await harness.order(3))
    ended_id = bought.instances[0].id
    await harness.provider.inventory()
    assert await harness.provider.remove((ended_id,)) == {ended_id: None}
    assert harness.group()["DesiredCapacity"] == 2
    states = {each.id: each.state for each in (await harness.provider.inventory()).instances}
    assert states.pop(ended_id, "stopping") == "stopping"
    assert len(states) == 2
    assert await harness.provider.remove((ended_id,)) == {ended_id: None}
    assert harness.group()["DesiredCapacity"] == 2


async def test_an_end_that_waits_for_other_changes_of_its_group_says_so(
    make_harness: Callable[..., ProviderHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscaler.clouds.aws.provider.TURN_SECONDS", 0.0)
    harness = make_harness()
    first, second = [instance.id for instance in (await harness.provider.buy(await harness.order(2))).instances]
    await harness.provider.inventory()
    answers = await asyncio.gather(harness.provider.remove((first,)), harness.provider.remove((second,)))
    refusal = answers[1][second]
    assert refusal is not None
    assert refusal.cause == THROTTLED
    assert "group gpus: other changes of its capacity by this process come first" in refusal.detail
    assert answers[0] == {first: None}
    assert harness.write_counts() == {"LaunchInstances": 1, "TerminateInstanceInAutoScalingGroup": 1}
    assert await harness.provider.remove((second,)) == {second: None}
    assert harness.group()["DesiredCapacity"] == 0


async def test_a_machine_of_a_group_at_its_minimum_is_ended_and_replaced(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness(MinSize=1, DesiredCapacity=1)
    await harness.pass_time(60)
    (machine,) = (await harness.provider.inventory()).instances
    assert await harness.provider.remove((machine.id,)) == {machine.id: None}
    assert harness.group()["DesiredCapacity"] == 1


async def test_a_machine_outside_of_our_groups_is_never_ended(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    foreign = {"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/other": "owned"}
    harness.aws.group("others", foreign, instance_type="g5.xlarge", MinSize=1)
    await harness.pass_time(60)
    (machine,) = harness.group("others")["Instances"]
    name = f"aws:///us-east-1a/{machine['InstanceId']}"
    assert await harness.provider.remove((name, "gce://else")) == {name: None, "gce://else": None}
    assert harness.write_counts() == {}


async def test_the_error_names_the_missing_permission_if_a_machine_cannot_be_ended(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    (machine,) = (await harness.provider.buy(await harness.order(1))).instances
    harness.aws.endpoint.faults.all.append(denied("TerminateInstanceInAutoScalingGroup"))
    refusal = (await harness.provider.remove((machine.id,)))[machine.id]
    assert refusal is not None
    assert refusal.cause == UNAUTHORISED
    assert "autoscaling:TerminateInstanceInAutoScalingGroup" in refusal.detail


async def test_an_incomplete_list_of_machines_raises_an_error(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    await harness.provider.buy(await harness.order(1))
    harness.aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups"))
    with pytest.raises(CloudError, match="autoscaling:DescribeAutoScalingGroups"):
        await harness.provider.inventory()


async def test_spot_machines_are_listed_as_spot_and_described_once(make_harness: Callable[..., ProviderHarness]) -> None:
    harness = make_harness()
    spot_group(harness.aws, "g6.xlarge", "g5.xlarge")
    await harness.provider.buy(await harness.order(2, pool="spots"))
    for _ in range(3):
        inventory = await harness.provider.inventory()
    assert {each.market for each in inventory.instances} == {"spot"}
    # One more call is for machines that ended before the first pass.
    assert harness.aws.session.call_counts["DescribeInstances"] == 2


async def test_machines_are_not_listed_before_every_region_has_answered_once() -> None:
    aws = Aws(regions=("us-east-1", "us-west-2"))
    for region in aws.regions:
        aws.group(f"gpus-{region}", region=region, instance_type="g6.xlarge")
    harness = ProviderHarness(aws)
    aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups", region="us-west-2"))
    looked = await harness.provider.read_account()
    assert ([pool.name for pool in looked.pools], looked.complete, len(looked.failed)) == (["gpus-us-east-1"], False, 1)
    with pytest.raises(CloudError, match="nothing is known yet about us-west-2"):
        await harness.provider.inventory()
    aws.endpoint.faults.all.clear()
    await harness.provider.inventory()
    aws.endpoint.faults.all.append(denied("DescribeLaunchTemplateVersions", region="us-west-2"))
    aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups", region="us-west-2"))
    looked = await harness.provider.read_account()
    assert ([pool.name for pool in looked.pools], looked.complete) == (["gpus-us-east-1", "gpus-us-west-2"], True)
    await harness.provider.close()
