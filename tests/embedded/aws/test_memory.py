"""boto3 against the endpoint without sockets, with calls whose durations pass only on the event loop's clock."""

import asyncio
from email.utils import parsedate_to_datetime

import pytest
from botocore.exceptions import ConnectionClosedError, ParamValidationError
from tests.embedded.aws.conftest import BEGAN, Aws
from tests.embedded.aws.memory import LoopExecutor, Session

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.faults import Fault


async def test_a_boto3_call_takes_its_response_times_on_the_event_loops_clock(aws: Aws) -> None:
    aws.endpoint.faults.all.append(Fault(delay=30.0))
    executor, loop = LoopExecutor(), asyncio.get_running_loop()
    client = Session(aws.endpoint, executor.took).client("sts", region_name="us-east-1")
    before = loop.time()
    identity = await asyncio.wrap_future(executor.submit(client.get_caller_identity))
    assert identity["Account"] == aws.account.id
    assert loop.time() - before == pytest.approx(30.0)


async def test_an_error_of_a_boto3_call_is_raised_where_it_is_awaited(aws: Aws) -> None:
    executor = LoopExecutor()
    client = Session(aws.endpoint, executor.took).client("sqs", region_name="us-east-1")
    with pytest.raises(client.exceptions.QueueDoesNotExist):
        await asyncio.wrap_future(executor.submit(lambda: client.get_queue_url(QueueName="none")))


async def test_a_boto3_call_takes_effect_even_if_waiting_for_it_is_cancelled(aws: Aws) -> None:
    aws.endpoint.faults.all.append(Fault(delay=30.0))
    executor = LoopExecutor()
    client = Session(aws.endpoint, executor.took).client("sqs", region_name="us-east-1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.wrap_future(executor.submit(lambda: client.create_queue(QueueName="events")))
    await asyncio.sleep(30)
    assert "events" in aws.account.region("us-east-1").queues


def test_responses_are_dated_by_the_clock_of_the_account(aws: Aws) -> None:
    aws.later(1000.0)
    reply = aws.client("sts").get_caller_identity()
    date = reply["ResponseMetadata"]["HTTPHeaders"]["date"]
    assert parsedate_to_datetime(date).timestamp() == BEGAN + 1000.0


def test_launch_calls_report_how_long_they_take(make_aws: type[Aws]) -> None:
    aws, seconds = make_aws(Conditions(answer=2.0)), list[float]()
    client = Session(aws.endpoint, seconds.append).client("autoscaling", region_name="us-east-1")
    client.describe_auto_scaling_groups()
    ec2 = Session(aws.endpoint).client("ec2", region_name="us-east-1")
    ec2.create_launch_template(LaunchTemplateName="one", LaunchTemplateData={"ImageId": "ami-1", "InstanceType": "g5.xlarge"})
    template = {"LaunchTemplateName": "one", "Version": "$Latest"}
    client.create_auto_scaling_group(
        AutoScalingGroupName="gpus", MinSize=0, MaxSize=1, AvailabilityZones=["us-east-1a"], LaunchTemplate=template
    )
    client.launch_instances(AutoScalingGroupName="gpus", RequestedCapacity=1, ClientToken="a")
    assert seconds == [0.0, 0.0, 2.0]


def test_a_repeated_read_is_answered_again_and_dated_by_its_own_answer(aws: Aws) -> None:
    client = Session(aws.endpoint).client("sqs", region_name="us-east-1")
    client.create_queue(QueueName="first")
    first = client.list_queues()
    first["QueueUrls"].clear()
    aws.later(1000.0)
    second = client.list_queues()
    client.create_queue(QueueName="second")
    third = client.list_queues()

    assert [len(reply["QueueUrls"]) for reply in (first, second, third)] == [0, 1, 2]
    answers = [reply["ResponseMetadata"] for reply in (first, second, third)]
    assert [parsedate_to_datetime(answer["HTTPHeaders"]["date"]).timestamp() - BEGAN for answer in answers] == [0.0, 1000.0, 1000.0]
    assert len({answer["RequestId"] for answer in answers}) == 3


def test_a_repeated_read_meets_the_faults_of_its_own_time(aws: Aws) -> None:
    client = Session(aws.endpoint).client("autoscaling", region_name="us-east-1")
    assert client.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    aws.endpoint.faults.all.append(Fault(code="Throttling"))
    with pytest.raises(client.exceptions.ClientError, match="Throttling"):
        client.describe_auto_scaling_groups()
    aws.endpoint.faults.all[:] = [Fault(sever="before")]
    with pytest.raises(ConnectionClosedError):
        client.describe_auto_scaling_groups()
    aws.endpoint.faults.all.clear()
    assert client.describe_auto_scaling_groups()["AutoScalingGroups"] == []


def test_sessions_share_clients_and_no_answers(make_aws: type[Aws]) -> None:
    full, empty = make_aws(), make_aws()
    Session(full.endpoint).client("sqs", region_name="us-east-1").create_queue(QueueName="events")
    replies = [Session(each.endpoint).client("sqs", region_name="us-east-1").list_queues() for each in (full, empty)]
    assert [len(reply.get("QueueUrls", ())) for reply in replies] == [1, 0]


def test_a_read_that_does_not_fit_the_model_is_refused_by_boto3(aws: Aws) -> None:
    client = Session(aws.endpoint).client("autoscaling", region_name="us-east-1")
    with pytest.raises(ParamValidationError):
        client.describe_auto_scaling_groups(AutoScalingGroupNames="gpus")
