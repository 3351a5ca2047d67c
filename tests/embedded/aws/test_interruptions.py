"""Reclaimed spot machines, lifecycle hooks, and the notices of both in queues."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import code, group_of, instance_ids, make_group, members, mixed

from gpuscaler.embedded.aws.autoscaling import scaling as behaviour
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.simulation.cloud.delays import Delay, Faults

RECLAIMED = Conditions(
    machines=Faults(
        never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0, reclaim=Delay(0.0, 0.0, 0.0), without_notice=0.0
    )
)
LAUNCHING, TERMINATING = "autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"


def make_queue(aws: Aws) -> tuple[Any, str]:
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="events")["QueueUrl"]
    aws.account.region("us-east-1").queues["events"].receives_notices = True
    return sqs, str(url)


def received(queue: tuple[Any, str]) -> list[dict[str, Any]]:
    """All messages of the queue, which are deleted."""
    sqs, url = queue
    bodies = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies += [json.loads(message["Body"]) for message in messages]
        entries = [{"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]} for number, message in enumerate(messages)]
        assert len(sqs.delete_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == len(entries)
    return bodies


def kinds(queue: tuple[Any, str]) -> list[str]:
    return [event["detail-type"] + (f": {event['detail']['state']}" if "state" in event["detail"] else "") for event in received(queue)]


def test_spot_reclaims_are_announced_two_minutes_ahead_and_the_group_launches_replacements(make_aws: Callable[..., Aws]) -> None:
    aws = make_aws(RECLAIMED)
    queue, scaling = make_queue(aws), make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge", "g6.xlarge"))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    (before,) = instance_ids(scaling)
    ((kind, _, _),) = members(scaling)
    received(queue)
    set_capacity(aws.account.region("us-east-1"), Limit(0, market="spot", instance_type=kind))
    events = received(queue)
    assert [event["detail-type"] for event in events] == ["EC2 Instance Rebalance Recommendation", "EC2 Spot Instance Interruption Warning"]
    warning = events[1]
    assert warning["detail"] == {"instance-id": before, "instance-action": "terminate"}
    assert (warning["source"], warning["region"], warning["time"]) == ("aws.ec2", "us-east-1", "2026-09-21T14:13:40Z")
    assert warning["resources"] == [f"arn:aws:ec2:us-east-1a:instance/{before}"]
    aws.later(119)
    assert instance_ids(scaling) == [before]
    aws.later(2)
    assert kinds(queue)[0] == "EC2 Instance State-change Notification: terminated"
    (after,) = instance_ids(scaling)
    assert after != before
    assert [member[0] for member in members(scaling)] == [{"g5.xlarge": "g6.xlarge", "g6.xlarge": "g5.xlarge"}[kind]]


def test_capacity_rebalancing_launches_a_replacement_before_it_terminates(aws: Aws) -> None:
    scaling = make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge"), CapacityRebalance=True)
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    (before,) = instance_ids(scaling)
    region = aws.account.region("us-east-1")
    behaviour.recommend_rebalance(region, region.instances[before])
    aws.later(2)
    assert [state for *_, state in members(scaling)] == ["InService", "Pending"]
    aws.later(60)
    assert before not in instance_ids(scaling)
    assert [state for *_, state in members(scaling)] == ["InService"]
    assert group_of(scaling)["DesiredCapacity"] == 1


def test_a_spot_instance_can_be_reclaimed_without_notice(aws: Aws) -> None:
    queue, scaling = make_queue(aws), make_group(aws, MixedInstancesPolicy=mixed("g5.xlarge"))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    received(queue)
    region = aws.account.region("us-east-1")
    behaviour.reclaim(region, region.instances[instance_ids(scaling)[0]], notice=0.0)
    aws.later(0)
    assert kinds(queue) == ["EC2 Instance State-change Notification: terminated"]
    assert members(scaling) == []
    ec2 = aws.client("ec2").describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["terminated"]}])
    assert ec2["Reservations"][0]["Instances"][0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_an_instance_waits_for_its_lifecycle_hook_until_the_action_is_completed(aws: Aws) -> None:
    queue, scaling = make_queue(aws), make_group(aws)
    scaling.put_lifecycle_hook(
        AutoScalingGroupName="gpus",
        LifecycleHookName="drain",
        LifecycleTransition=TERMINATING,
        HeartbeatTimeout=300,
        DefaultResult="CONTINUE",
    )
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    received(queue)
    (ident,) = instance_ids(scaling)
    scaling.terminate_instance_in_auto_scaling_group(InstanceId=ident, ShouldDecrementDesiredCapacity=True)
    assert [state for *_, state in members(scaling)] == ["Terminating:Wait"]
    (event,) = received(queue)
    assert event["detail-type"] == "EC2 Instance-terminate Lifecycle Action"
    detail = event["detail"]
    assert (detail["EC2InstanceId"], detail["LifecycleHookName"], detail["LifecycleTransition"]) == (ident, "drain", TERMINATING)
    aws.later(250)
    action = {"AutoScalingGroupName": "gpus", "LifecycleHookName": "drain"}
    scaling.record_lifecycle_action_heartbeat(**action, InstanceId=ident)
    aws.later(250)
    assert [state for *_, state in members(scaling)] == ["Terminating:Wait"]
    scaling.complete_lifecycle_action(**action, LifecycleActionToken=detail["LifecycleActionToken"], LifecycleActionResult="CONTINUE")
    assert [state for *_, state in members(scaling)] == ["Terminating:Proceed"]
    aws.later(30)
    assert members(scaling) == []
    with pytest.raises(ClientError, match="No active Lifecycle Action found") as refused:
        scaling.complete_lifecycle_action(**action, InstanceId=ident, LifecycleActionResult="CONTINUE")
    assert code(refused) == "ValidationError"


@pytest.mark.parametrize(("default", "states"), [("CONTINUE", ["InService"]), ("ABANDON", ["Terminating", "Pending"])])
def test_a_lifecycle_hook_that_times_out_has_its_default_result(aws: Aws, default: str, states: list[str]) -> None:
    hook = {"LifecycleHookName": "boot", "LifecycleTransition": LAUNCHING, "HeartbeatTimeout": 60, "DefaultResult": default}
    scaling = make_group(aws, LifecycleHookSpecificationList=[hook])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    assert [state for *_, state in members(scaling)] == ["Pending:Wait"]
    aws.later(52)
    assert [state for *_, state in members(scaling)] == states


@pytest.mark.parametrize(("transition", "state"), [(LAUNCHING, "Terminating"), (TERMINATING, "Terminating:Proceed")])
def test_instances_that_wait_for_a_deleted_lifecycle_hook_continue(aws: Aws, transition: str, state: str) -> None:
    hook = {"LifecycleHookName": "drain", "LifecycleTransition": transition, "HeartbeatTimeout": 600, "DefaultResult": "CONTINUE"}
    scaling = make_group(aws, LifecycleHookSpecificationList=[hook])
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    aws.later(20)
    if transition == TERMINATING:
        scaling.terminate_instance_in_auto_scaling_group(InstanceId=instance_ids(scaling)[0], ShouldDecrementDesiredCapacity=True)

    scaling.delete_lifecycle_hook(AutoScalingGroupName="gpus", LifecycleHookName="drain")

    assert members(scaling)[0][-1] == state
    assert scaling.describe_lifecycle_hooks(AutoScalingGroupName="gpus")["LifecycleHooks"] == []


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"LifecycleTransition": TERMINATING, "DefaultResult": "GO"}, "DefaultResult must be CONTINUE or ABANDON"),
        ({"LifecycleTransition": TERMINATING, "HeartbeatTimeout": 29}, "HeartbeatTimeout must be between 30 and 7200 seconds"),
        ({}, "Lifecycle transition must be"),
        ({"LifecycleTransition": TERMINATING}, "the limit of 50 lifecycle hooks"),
    ],
)
def test_a_lifecycle_hook_with_settings_that_aws_rejects_is_refused(aws: Aws, params: dict[str, Any], reason: str) -> None:
    scaling = make_group(aws)
    for number in range(50 if "limit" in reason else 0):
        scaling.put_lifecycle_hook(AutoScalingGroupName="gpus", LifecycleHookName=f"hook-{number}", LifecycleTransition=LAUNCHING)

    with pytest.raises(ClientError, match=reason):
        scaling.put_lifecycle_hook(AutoScalingGroupName="gpus", LifecycleHookName="drain", **params)


def test_a_queue_message_becomes_visible_again_unless_it_is_deleted(aws: Aws) -> None:
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "20"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="hello ✓ <&>")
    (first,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert first["Body"] == "hello ✓ <&>"
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    aws.later(20)
    (again,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert (again["MessageId"], again["Attributes"]["ApproximateReceiveCount"]) == (first["MessageId"], "2")
    # The first receipt is stale: it deletes nothing.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    aws.later(20)
    (last,) = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=last["ReceiptHandle"])
    aws.later(20)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_valid_entries_of_a_message_batch_are_sent_and_the_others_reported(aws: Aws) -> None:
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    late = {"Id": "late", "MessageBody": "two", "DelaySeconds": 901}
    answer = sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "good", "MessageBody": "one"}, late])
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert [(entry["Id"], entry["SenderFault"], entry["Code"]) for entry in answer["Failed"]] == [("late", True, "InvalidParameterValue")]
    assert [message["Body"] for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]] == ["one"]
    half = "x" * 600_000
    with pytest.raises(ClientError) as refused:
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": name, "MessageBody": half} for name in "ab"])
    assert code(refused) == "AWS.SimpleQueueService.BatchRequestTooLong"
    with pytest.raises(ClientError) as refused:
        sqs.send_message(QueueUrl=url, MessageBody=half + half)
    assert code(refused) == "InvalidParameterValue"


def test_invalid_message_batches_and_unknown_queues_are_refused(aws: Aws) -> None:
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": "made up"}])
    assert [entry["Code"] for entry in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    with pytest.raises(ClientError) as refused:
        sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": str(number), "ReceiptHandle": "x"} for number in range(11)])
    assert code(refused) == "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.receive_message(QueueUrl=url.replace("jobs", "none"))


def test_a_capacity_of_an_unknown_market_is_refused() -> None:
    with pytest.raises(ValueError, match="saw the market 'Spot', expected one of reserved, spot, on-demand; leave market out for each"):
        Limit(0, market="Spot")
